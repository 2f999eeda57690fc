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
from marft.common.texts import single_line
from marft.runs.episode_files import SCHEMA
from marft.runs.parquet import open_parquet

FORMAT_VERSION = "1"  # format version of an index
INDEXED_COLUMNS = (
    "stream",
    "task",
    "prompt_text",
    "sample",
    "status",
    "error",
    "success",
    "total_reward",
    "episode_seconds",
    "fork",
    "agent",
    "text",
)
REQUIRED_COLUMNS = ("stream", "task", "prompt_text", "sample", "status", "total_reward", "episode_seconds")
MAX_PREVIEW_CHARS = 160  # characters of the final message
END_MARK = "\0"  # end of an episode's text
MAX_ERROR_CHARS = 400  # characters of an error message
# bytes of the checksum before an index on disk; Arrow reads beyond the buffer of a damaged file
DIGEST_BYTES = hashlib.sha256().digest_size
Ints = npt.NDArray[np.int64]


class FileVersion(NamedTuple):
    """File version, to detect replaced files."""

    modified: int  # in nanoseconds
    size: int
    inode: int

    @staticmethod
    def from_stat(stat: os.stat_result) -> FileVersion:
        """Return the version from a file's status."""
        return FileVersion(stat.st_mtime_ns, stat.st_size, stat.st_ino)


def build_index(path: Path) -> pa.Table:
    """Build the index for a file with episodes: one row per episode, in order.

    ``row`` and ``rows`` give the position in the file. ``text`` is the searchable text in lower case: task id, task
    prompt, messages and errors.

    Raises:
        ValueError: the file has another format, is damaged, or does not exist.
    """
    try:
        with open_parquet(path) as source, pq.ParquetFile(source, page_checksum_verification=True) as file:
            schema = file.schema_arrow
            if any(
                name not in schema.names or schema.field(name).type != SCHEMA.field(name).type
                for name in INDEXED_COLUMNS
            ):
                raise ValueError(f"{path} holds no episodes of this version of MARFT")
            table = file.read(INDEXED_COLUMNS).combine_chunks()
            groups = (file.read_row_group(number, ["tokens"])["tokens"] for number in range(file.num_row_groups))
            sizes = [pc.list_value_length(tokens).to_numpy() for tokens in groups]
        if any(table[name].null_count for name in REQUIRED_COLUMNS):
            raise ValueError(f"cannot read the episodes of {path}: a value is missing")
        return _build_table(table, np.nan_to_num(np.concatenate([*sizes, []])).astype(np.int64))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the episodes of {path}: {single_line(str(error))}") from error


def _build_table(table: pa.Table, tokens: Ints) -> pa.Table:
    first = _first_rows(table)
    bounds = np.append(first, len(table))
    has_action = table["agent"].is_valid().to_numpy().astype(np.int64)
    episode_columns = table.select([name for name in INDEXED_COLUMNS if name not in ("agent", "text")]).take(
        pa.array(first)
    )
    at_first = {name: episode_columns[name].combine_chunks() for name in episode_columns.column_names}
    texts = pc.fill_null(table["text"].combine_chunks(), "")
    last = pc.utf8_slice_codeunits(texts.take(pa.array(bounds[1:] - 1)), 0, 2 * MAX_PREVIEW_CHARS)
    error = pc.fill_null(at_first["error"], "")
    return pa.table(
        {
            "row": first,
            "rows": np.diff(bounds),
            "actions": _sum_by_episode(has_action, bounds),
            "tokens": _sum_by_episode(tokens, bounds),
            "task": at_first["task"],
            "stream": at_first["stream"],
            "sample": at_first["sample"],
            "status": at_first["status"],
            "success": at_first["success"],
            "reward": at_first["total_reward"],
            "seconds": at_first["episode_seconds"],
            "error": pc.utf8_slice_codeunits(error, 0, MAX_ERROR_CHARS),
            "origin": pc.struct_field(at_first["fork"], "origin"),
            "at": pc.struct_field(at_first["fork"], "at"),
            "agents": _join_agents(table["agent"].to_pylist(), bounds),
            "preview": pa.array(
                [single_line(text or "")[:MAX_PREVIEW_CHARS] for text in last.to_pylist()], pa.string()
            ),
            "text": _build_search_texts(texts, bounds, [at_first["task"], at_first["prompt_text"], error]),
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


def _sum_by_episode(values: Ints, bounds: Ints) -> Ints:
    totals = np.concatenate([[0], np.cumsum(values)])
    sums: Ints = totals[bounds[1:]] - totals[bounds[:-1]]
    return sums


def _join_agents(agents: list[str | None], bounds: Ints) -> pa.Array:
    """Return each episode's agents in order of their first action, without repeats, joined by commas."""
    pairs = zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    return pa.array([",".join(filter(None, dict.fromkeys(agents[a:b]))) for a, b in pairs], pa.string())


def _build_search_texts(texts: pa.Array, bounds: Ints, more: list[Any]) -> pa.Array:
    """Return each episode's searchable text in lower case, with an end mark that no search contains."""
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), texts), "\n")
    lines = pc.utf8_lower(pc.binary_join_element_wise(*more, joined, "\n"))
    return pc.binary_join_element_wise(lines, END_MARK, "")


class SearchTexts:
    """Searchable texts for a file's episodes, concatenated.

    >>> SearchTexts(pa.array(["abc\\0", "bcd\\0", "\\0"])).find_matches("bc").tolist()
    [True, True, False]
    """

    def __init__(self, texts: pa.Array | pa.ChunkedArray) -> None:
        parts = [text.encode() for text in texts.to_pylist()]
        self._bytes, self._starts = b"".join(parts), [0, *accumulate(map(len, parts))]

    def find_matches(self, text: str) -> npt.NDArray[np.bool_]:
        """Return a mask with True for episodes that contain a lower-case text."""
        pattern, starts = text.encode("utf-8", "replace"), self._starts
        mask = np.zeros(len(starts) - 1, bool)
        if not pattern:
            return ~mask
        at, number = self._bytes.find(pattern), 0
        while at >= 0:
            if at >= starts[number + 1]:
                number = bisect_right(starts, at) - 1
            mask[number] = True
            number += 1
            at = self._bytes.find(pattern, starts[number])
        return mask


class IndexCache:
    """On-disk cache for indexes, one file per episode file.

    Args:
        root: directory of the cache; None disables the cache.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root

    @staticmethod
    def for_user() -> IndexCache:
        """Return the cache in the user's cache directory."""
        return IndexCache(atomic.user_cache_dir() / "view")

    def load_index(self, path: Path, version: FileVersion) -> pa.Table:
        """Load a file's index; build and cache it if necessary.

        Raises:
            ValueError: as for :func:`load_index`.
        """
        cache_path = self._get_cache_path(path)
        source_id = f"{FORMAT_VERSION} {pa.__version__} {version}".encode()
        if cache_path is None:
            return build_index(path)
        with suppress(OSError):
            cached = cache_path.read_bytes()
            if cached[:DIGEST_BYTES] == _compute_digest(source_id, cached[DIGEST_BYTES:]):
                return pa.ipc.open_file(cached[DIGEST_BYTES:]).read_all()
        table, sink = build_index(path), pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        content = sink.getvalue().to_pybytes()
        with suppress(OSError):  # a full disk; the index is built again next time
            atomic.write_file(cache_path, _compute_digest(source_id, content) + content)
        return table

    def prune(self) -> None:
        """Remove indexes for deleted folders."""
        with suppress(OSError):
            for folder in self._root.iterdir() if self._root else ():
                with suppress(OSError, UnicodeDecodeError):
                    if not Path((folder / "of").read_text(encoding="utf-8")).is_dir():
                        shutil.rmtree(folder)

    def _get_cache_path(self, path: Path) -> Path | None:
        """Return the path for a file's index; its directory stores the path of the source folder."""
        if self._root is None:
            return None
        source_folder = str(path.parent.resolve())
        folder = self._root / hashlib.sha256(source_folder.encode("utf-8", "surrogateescape")).hexdigest()[:24]
        with suppress(OSError, UnicodeEncodeError):
            if not (folder / "of").exists():
                atomic.write_file(folder / "of", source_folder)
            return folder / f"{path.stem}.arrow"
        return None


def _compute_digest(source_id: bytes, content: bytes) -> bytes:
    """Return the checksum before an index; ``source_id`` identifies the source file."""
    return hashlib.sha256(source_id + b"\0" + content).digest()
