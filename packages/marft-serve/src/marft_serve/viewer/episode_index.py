"""Index over a run's recorded files, refreshed on request and built in the background.

The index of a file has a few small columns, and the texts for search. Building it reads only these columns. Indexes are
cached in the user's cache directory, by path, time and size of the file. Run folders are never written.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marft.common import atomic
from marft.common.errors import UserError
from marft.common.texts import single_line
from marft.runs.episode_files import SCHEMA, open_parquet

FORMAT_VERSION = "2"  # format version of an index
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
MAX_ERROR_CHARS = 400  # characters of an error message
# bytes of the checksum before an index on disk; Arrow reads beyond the buffer of a damaged file
DIGEST_BYTES = hashlib.sha256().digest_size
Ints = npt.NDArray[np.int64]
SCAN_SECONDS = 0.3  # minimum seconds between two scans of a folder
WAIT_SECONDS = 0.15  # seconds that a response waits for files not indexed yet


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
        UserError: the file has another format, is damaged, or does not exist.
    """
    try:
        with open_parquet(path) as source, pq.ParquetFile(source, page_checksum_verification=True) as file:
            schema = file.schema_arrow
            if any(
                name not in schema.names or schema.field(name).type != SCHEMA.field(name).type
                for name in INDEXED_COLUMNS
            ):
                raise UserError(f"{path} holds no episodes of this version of MARFT")
            table = file.read(INDEXED_COLUMNS).combine_chunks()
            groups = (file.read_row_group(number, ["tokens"])["tokens"] for number in range(file.num_row_groups))
            sizes = [pc.list_value_length(tokens).to_numpy() for tokens in groups]
        if any(table[name].null_count for name in REQUIRED_COLUMNS):
            raise UserError(f"cannot read the episodes of {path}: a value is missing")
        return _build_table(table, np.nan_to_num(np.concatenate([*sizes, []])).astype(np.int64))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the episodes of {path}: {single_line(str(error))}") from error


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


def _build_search_texts(texts: pa.Array, bounds: Ints, more: list[pa.Array]) -> pa.Array:
    """Return each episode's searchable text in lower case."""
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), texts), "\n")
    return pc.utf8_lower(pc.binary_join_element_wise(*more, joined, "\n"))


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
            UserError: as for :func:`load_index`.
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


@dataclass(frozen=True, slots=True)
class EpisodeFile:
    """Episode file from a training step or an evaluation."""

    name: str  # the step, or the name of the evaluation
    path: Path
    version: FileVersion

    @property
    def step(self) -> int | str:
        """Step number, or name for an evaluation."""
        return int(self.name) if self.path.parent.name == "episodes" else self.name


@dataclass(frozen=True, slots=True, eq=False)
class FileIndex:
    """Index for a file, or the problem with the file."""

    file: EpisodeFile
    table: pa.Table | None = None
    texts: pa.ChunkedArray = field(default_factory=lambda: pa.chunked_array([], pa.string()))
    problem: str = ""

    def __len__(self) -> int:
        return len(self.table) if self.table is not None else 0


class EpisodeIndex:
    """Recorded files for a run.

    Attributes:
        steps: training steps with recorded episodes, oldest first.
        evaluations: evaluations with recorded episodes, by name.
        credit_files: credit files, by step.
    """

    def __init__(self, run: Path, cache: IndexCache) -> None:
        self._run, self._cache = run, cache
        self._lock, self._last_scan = threading.Lock(), float("-inf")
        self.steps: dict[str, EpisodeFile] = {}
        self.evaluations: dict[str, EpisodeFile] = {}
        self.credit_files: dict[str, EpisodeFile] = {}
        self._indexes: dict[Path, FileIndex] = {}
        self._worker: threading.Thread | None = None

    def refresh(self) -> None:
        """Scan for files unless a scan is recent; index new files in the background."""
        with self._lock:
            if time.monotonic() - self._last_scan >= SCAN_SECONDS:
                self.steps = _find_step_files(self._run / "episodes")
                self.credit_files = _find_step_files(self._run / "credit")
                files = _iter_parquet_files(self._run / "evaluations")
                self.evaluations = {path.stem: EpisodeFile(path.stem, path, version) for path, version in files}
                present = {file.path for file in self.steps.values()} | {
                    evaluation.path for evaluation in self.evaluations.values()
                }
                self._indexes = {path: index for path, index in self._indexes.items() if path in present}
                self._last_scan = time.monotonic()
            idle = self._worker is None or not self._worker.is_alive()
            if idle and next(self._iter_pending(), None):
                worker = threading.Thread(target=self._index_all, name="marft-view-index", daemon=True)
                worker.start()
                self._worker = worker  # assigned after the start, since others join the thread

    def find_file(self, name: str) -> EpisodeFile | None:
        """Return the file for a step or an evaluation; None for an unknown name."""
        return self.steps.get(name) or self.evaluations.get(name)

    def get_index(self, file: EpisodeFile) -> FileIndex:
        """Return a file's index; build it now if necessary."""
        index = self._indexes.get(file.path)
        if index is None or index.file.version != file.version:
            index = self._build_index(file)
        return index

    def list_steps(self) -> list[FileIndex | EpisodeFile]:
        """Return all training steps, indexed as far as possible within ``WAIT_SECONDS``; small runs finish in time."""
        worker = self._worker
        if worker is not None:
            worker.join(WAIT_SECONDS)
        files, indexes = list(self.steps.values()), self._indexes
        pairs = [(file, indexes.get(file.path)) for file in files]
        return [index if index is not None and index.file.version == file.version else file for file, index in pairs]

    def _iter_pending(self) -> Iterator[EpisodeFile]:
        """Yield files without an index, newest steps first."""
        indexes = self._indexes
        for file in reversed([*self.evaluations.values(), *self.steps.values()]):
            index = indexes.get(file.path)
            if index is None or index.file.version != file.version:
                yield file

    def _index_all(self) -> None:
        for file in list(self._iter_pending()):
            self._build_index(file)

    def _build_index(self, file: EpisodeFile) -> FileIndex:
        try:
            table = self._cache.load_index(file.path, file.version)
            index = FileIndex(file, table.drop_columns("text"), table["text"])
        except ValueError as error:
            index = FileIndex(file, problem=str(error))
        with self._lock:
            self._indexes = {**self._indexes, file.path: index}
        return index


def _find_step_files(folder: Path) -> dict[str, EpisodeFile]:
    """Return the training-step files in a folder, oldest first."""
    files = {}
    for path, version in _iter_parquet_files(folder):
        number = path.stem.removeprefix("step_")
        if path.stem.startswith("step_") and number.isascii() and number.isdigit():
            files[int(number)] = EpisodeFile(str(int(number)), path, version)
    return {file.name: file for _, file in sorted(files.items())}


def _iter_parquet_files(folder: Path) -> Iterator[tuple[Path, FileVersion]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.endswith(".parquet") and not entry.name.startswith("."):
                with suppress(OSError):
                    if entry.is_file():
                        yield folder / entry.name, FileVersion.from_stat(entry.stat())
