"""Index for a file with episodes: a few small columns, and the texts for search.

Building the index reads only these columns. Indexes are cached in the user's cache directory, by path, time and
size of the file. Run folders are never written.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from bisect import bisect_right
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marft.common import atomic
from marft.common.texts import one_line
from marft.runs.episodes import SCHEMA
from marft.runs.parquet import opened

VERSION = "1"  # format version of an index
READ = (
    "stream", "task", "prompt_text", "sample", "status", "error", "success", "total_reward", "episode_seconds", "fork",
    "agent", "text",
)  # fmt: skip
NEEDED = ("stream", "task", "prompt_text", "sample", "status", "total_reward", "episode_seconds")
PREVIEW = 160  # characters of the final message
END = "\0"  # end of an episode's text
ERROR = 400  # characters of an error message
# bytes of the checksum before an index on disk; Arrow reads beyond the buffer of a damaged file
SEAL = hashlib.sha256().digest_size
Ints = npt.NDArray[np.int64]


class Stamp(NamedTuple):
    """File version, to detect replaced files."""

    modified: int  # in nanoseconds
    size: int
    inode: int

    @staticmethod
    def of(stat: os.stat_result) -> Stamp:
        """Return the version from a file's status."""
        return Stamp(stat.st_mtime_ns, stat.st_size, stat.st_ino)


def index_of(path: Path) -> pa.Table:
    """Build the index for a file with episodes: one row per episode, in order.

    ``row`` and ``rows`` give the position in the file. ``text`` is the searchable text in lower case: task id, task
    prompt, messages and errors.

    Raises:
        ValueError: the file has another format, is damaged, or does not exist.
    """
    try:
        with opened(path) as source, pq.ParquetFile(source, page_checksum_verification=True) as file:
            schema = file.schema_arrow
            if any(name not in schema.names or schema.field(name).type != SCHEMA.field(name).type for name in READ):
                raise ValueError(f"{path} holds no episodes of this version of MARFT")
            table = file.read(READ).combine_chunks()
            groups = (file.read_row_group(number, ["tokens"])["tokens"] for number in range(file.num_row_groups))
            sizes = [pc.list_value_length(tokens).to_numpy() for tokens in groups]
        if any(table[name].null_count for name in NEEDED):
            raise ValueError(f"cannot read the episodes of {path}: a value is missing")
        return _by_episode(table, np.nan_to_num(np.concatenate([*sizes, []])).astype(np.int64))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the episodes of {path}: {one_line(str(error))}") from error


def _by_episode(table: pa.Table, tokens: Ints) -> pa.Table:
    first = _first_rows(table)
    bounds = np.append(first, len(table))
    acted = table["agent"].is_valid().to_numpy().astype(np.int64)
    of = table.select([name for name in READ if name not in ("agent", "text")]).take(pa.array(first))
    at_first = {name: of[name].combine_chunks() for name in of.column_names}
    texts = pc.fill_null(table["text"].combine_chunks(), "")
    last = pc.utf8_slice_codeunits(texts.take(pa.array(bounds[1:] - 1)), 0, 2 * PREVIEW)
    error = pc.fill_null(at_first["error"], "")
    return pa.table(
        {
            "row": first,
            "rows": np.diff(bounds),
            "actions": _sums(acted, bounds),
            "tokens": _sums(tokens, bounds),
            "task": at_first["task"],
            "stream": at_first["stream"],
            "sample": at_first["sample"],
            "status": at_first["status"],
            "success": at_first["success"],
            "reward": at_first["total_reward"],
            "seconds": at_first["episode_seconds"],
            "error": pc.utf8_slice_codeunits(error, 0, ERROR),
            "origin": pc.struct_field(at_first["fork"], "origin"),
            "at": pc.struct_field(at_first["fork"], "at"),
            "agents": _casts(table["agent"].to_pylist(), bounds),
            "preview": pa.array([one_line(text or "")[:PREVIEW] for text in last.to_pylist()], pa.string()),
            "text": _searched(texts, bounds, [at_first["task"], at_first["prompt_text"], error]),
        }
    )


def _first_rows(table: pa.Table) -> Ints:
    """Return each episode's first row; a change in stream, task or sample starts a new episode."""
    if not len(table):
        return np.zeros(0, np.int64)
    begins = np.zeros(len(table) - 1, bool)
    for name in ("stream", "task", "sample"):
        column = table[name].combine_chunks()
        begins |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], 1 + np.flatnonzero(begins)])


def _sums(values: Ints, bounds: Ints) -> Ints:
    totals = np.concatenate([[0], np.cumsum(values)])
    sums: Ints = totals[bounds[1:]] - totals[bounds[:-1]]
    return sums


def _casts(agents: list[str | None], bounds: Ints) -> pa.Array:
    """Return each episode's agents in order of their first action, without repeats, joined by commas."""
    pairs = zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    return pa.array([",".join(filter(None, dict.fromkeys(agents[a:b]))) for a, b in pairs], pa.string())


def _searched(texts: pa.Array, bounds: Ints, more: list[Any]) -> pa.Array:
    """Return each episode's searchable text in lower case, with an end mark that no search contains."""
    said = pc.binary_join(pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), texts), "\n")
    lines = pc.utf8_lower(pc.binary_join_element_wise(*more, said, "\n"))
    return pc.binary_join_element_wise(lines, END, "")


class Texts:
    """Searchable texts for a file's episodes, concatenated.

    >>> Texts(pa.array(["abc\\0", "bcd\\0", "\\0"])).holding("bc").tolist()
    [True, True, False]
    """

    def __init__(self, texts: pa.Array | pa.ChunkedArray) -> None:
        parts = [text.encode() for text in texts.to_pylist()]
        self._bytes, self._starts = b"".join(parts), [0, *accumulate(map(len, parts))]

    def holding(self, text: str) -> npt.NDArray[np.bool_]:
        """Return a mask with True for episodes that contain a lower-case text."""
        wanted, starts = text.encode("utf-8", "replace"), self._starts
        found = np.zeros(len(starts) - 1, bool)
        if not wanted:
            return ~found
        at, number = self._bytes.find(wanted), 0
        while at >= 0:
            if at >= starts[number + 1]:
                number = bisect_right(starts, at) - 1
            found[number] = True
            number += 1
            at = self._bytes.find(wanted, starts[number])
        return found


class IndexCache:
    """On-disk cache for indexes, one file per episode file.

    Args:
        root: directory of the cache; None disables the cache.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root

    @staticmethod
    def of_user() -> IndexCache:
        """Return the cache in the user's cache directory."""
        return IndexCache(atomic.user_cache() / "view")

    def index_of(self, path: Path, stamp: Stamp) -> pa.Table:
        """Load a file's index; build and cache it if necessary.

        Raises:
            ValueError: as for :func:`index_of`.
        """
        place = self._place(path)
        mark = f"{VERSION} {pa.__version__} {stamp}".encode()
        if place is None:
            return index_of(path)
        with suppress(OSError):
            kept = place.read_bytes()
            if kept[:SEAL] == _seal(mark, kept[SEAL:]):
                return pa.ipc.open_file(kept[SEAL:]).read_all()
        table, sink = index_of(path), pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        content = sink.getvalue().to_pybytes()
        with suppress(OSError):  # a full disk; the index is built again next time
            atomic.write_file(place, _seal(mark, content) + content)
        return table

    def prune(self) -> None:
        """Remove indexes for deleted folders."""
        with suppress(OSError):
            for folder in self._root.iterdir() if self._root else ():
                with suppress(OSError, UnicodeDecodeError):
                    if not Path((folder / "of").read_text(encoding="utf-8")).is_dir():
                        shutil.rmtree(folder)

    def _place(self, path: Path) -> Path | None:
        """Return the path for a file's index; its directory stores the path of the source folder."""
        if self._root is None:
            return None
        of = str(path.parent.resolve())
        folder = self._root / hashlib.sha256(of.encode("utf-8", "surrogateescape")).hexdigest()[:24]
        with suppress(OSError, UnicodeEncodeError):
            if not (folder / "of").exists():
                atomic.write_file(folder / "of", of)
            return folder / f"{path.stem}.arrow"
        return None


def _seal(mark: bytes, content: bytes) -> bytes:
    """Return the checksum before an index; ``mark`` identifies the source file."""
    return hashlib.sha256(mark + b"\0" + content).digest()
