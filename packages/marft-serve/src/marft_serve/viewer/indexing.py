"""What is known of each episode of a file without reading it again: a few small columns, and its texts to search in.

Of a file of episodes only these columns are read. The index of a file is kept in the user's cache, by the file's path,
time and size: a run's folder is never written to.
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

VERSION = "1"  # of what an index holds
READ = (
    "stream", "task", "prompt_text", "sample", "status", "error", "success", "total_reward", "episode_seconds", "fork",
    "agent", "text",
)  # fmt: skip
NEEDED = ("stream", "task", "prompt_text", "sample", "status", "total_reward", "episode_seconds")
PREVIEW = 160  # characters of what was said last
END = "\0"  # of an episode's text
ERROR = 400  # of why an episode could not be scored
SEAL = hashlib.sha256().digest_size  # bytes before an index on disk: Arrow reads damaged ones beyond their ends
Ints = npt.NDArray[np.int64]


class Stamp(NamedTuple):
    """What a file is told by from one that has taken its place."""

    modified: int  # ns
    size: int
    inode: int

    @staticmethod
    def of(stat: os.stat_result) -> Stamp:
        return Stamp(stat.st_mtime_ns, stat.st_size, stat.st_ino)


def index_of(path: Path) -> pa.Table:
    """The index of a file of episodes: one row an episode, in their order.

    ``row`` and ``rows`` say where it is in the file; ``text`` is all that may be searched, in small letters: task,
    what it asks, what was said, and what went wrong.

    Raises:
        ValueError: the file is none of ours, damaged, or gone.
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
    """Where each episode begins: where stream, task or sample is another than in the row before."""
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
    """Who acted, each once, in the order of their first actions, with commas."""
    pairs = zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    return pa.array([",".join(filter(None, dict.fromkeys(agents[a:b]))) for a, b in pairs], pa.string())


def _searched(texts: pa.Array, bounds: Ints, more: list[Any]) -> pa.Array:
    """All that may be searched of each episode, line by line, in small letters, and an end that is in no search."""
    said = pc.binary_join(pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), texts), "\n")
    lines = pc.utf8_lower(pc.binary_join_element_wise(*more, said, "\n"))
    return pc.binary_join_element_wise(lines, END, "")


class Texts:
    """What may be searched of a file's episodes, one after the other.

    >>> Texts(pa.array(["abc\\0", "bcd\\0", "\\0"])).holding("bc").tolist()
    [True, True, False]
    """

    def __init__(self, texts: pa.Array | pa.ChunkedArray) -> None:
        parts = [text.encode() for text in texts.to_pylist()]
        self._bytes, self._starts = b"".join(parts), [0, *accumulate(map(len, parts))]

    def holding(self, text: str) -> npt.NDArray[np.bool_]:
        """Which episodes hold a text, in small letters."""
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
    """Indices on disk, one a file of episodes, in the user's cache.

    Args:
        root: where; None keeps none.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root

    @staticmethod
    def of_user() -> IndexCache:
        return IndexCache(atomic.user_cache() / "view")

    def index_of(self, path: Path, stamp: Stamp) -> pa.Table:
        """The index of a file, made where it is not there.

        Raises:
            ValueError: as :func:`index_of`.
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
        with suppress(OSError):  # a full disk: it is made again
            atomic.write_file(place, _seal(mark, content) + content)
        return table

    def prune(self) -> None:
        """Remove what is kept of folders that are gone."""
        with suppress(OSError):
            for folder in self._root.iterdir() if self._root else ():
                with suppress(OSError, UnicodeDecodeError):
                    if not Path((folder / "of").read_text(encoding="utf-8")).is_dir():
                        shutil.rmtree(folder)

    def _place(self, path: Path) -> Path | None:
        """Where the index of a file lies; its folder says of which one."""
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
    """What stands before the index of the file that ``mark`` tells of."""
    return hashlib.sha256(mark + b"\0" + content).digest()
