"""Index over a run's recorded files, refreshed on request and built in the background."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from marft_serve.viewer.file_index import FileVersion, IndexCache, SearchTexts

SCAN_SECONDS = 0.3  # minimum seconds between two scans of a folder
WAIT_SECONDS = 0.15  # seconds that a response waits for files not indexed yet


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
    texts: SearchTexts = field(default_factory=lambda: SearchTexts(pa.array([], pa.string())))
    problem: str = ""

    def __len__(self) -> int:
        return len(self.table) if self.table is not None else 0


class EpisodeIndex:
    """Recorded files for a run."""

    def __init__(self, run: Path, cache: IndexCache) -> None:
        self._run, self._cache = run, cache
        self._lock, self._last_scan = threading.Lock(), float("-inf")
        self._steps: dict[str, EpisodeFile] = {}
        self._evaluations: dict[str, EpisodeFile] = {}
        self._credit_files: dict[str, EpisodeFile] = {}
        self._indexes: dict[Path, FileIndex] = {}
        self._worker: threading.Thread | None = None

    def refresh(self) -> None:
        """Scan for files unless a scan is recent; index new files in the background."""
        with self._lock:
            if time.monotonic() - self._last_scan >= SCAN_SECONDS:
                self._steps = _find_step_files(self._run / "episodes")
                self._credit_files = _find_step_files(self._run / "credit")
                files = _iter_parquet_files(self._run / "evaluations")
                self._evaluations = {path.stem: EpisodeFile(path.stem, path, version) for path, version in files}
                present = {file.path for file in self._steps.values()} | {
                    evaluation.path for evaluation in self._evaluations.values()
                }
                self._indexes = {path: index for path, index in self._indexes.items() if path in present}
                self._last_scan = time.monotonic()
            idle = self._worker is None or not self._worker.is_alive()
            if idle and next(self._iter_pending(), None):
                worker = threading.Thread(target=self._index_all, name="marft-view-index", daemon=True)
                worker.start()
                self._worker = worker  # assigned after the start, since others join the thread

    @property
    def steps(self) -> Mapping[str, EpisodeFile]:
        """Training steps with recorded episodes, oldest first."""
        return self._steps

    @property
    def evaluations(self) -> Mapping[str, EpisodeFile]:
        """Evaluations with recorded episodes, by name."""
        return self._evaluations

    @property
    def credit_files(self) -> Mapping[str, EpisodeFile]:
        """Credit files, by step."""
        return self._credit_files

    def find_file(self, name: str) -> EpisodeFile | None:
        """Return the file for a step or an evaluation; None for an unknown name."""
        return self._steps.get(name) or self._evaluations.get(name)

    def get_index(self, file: EpisodeFile) -> FileIndex:
        """Return a file's index; build it now if necessary."""
        index = self._indexes.get(file.path)
        if index is None or index.file.version != file.version:
            index = self._build_index(file)
        return index

    def list_steps(self, seconds: float = WAIT_SECONDS) -> list[FileIndex | EpisodeFile]:
        """Return all training steps, indexed as far as possible within ``seconds``; small runs finish in time."""
        worker = self._worker
        if worker is not None:
            worker.join(seconds)
        files, indexes = list(self._steps.values()), self._indexes
        pairs = [(file, indexes.get(file.path)) for file in files]
        return [index if index is not None and index.file.version == file.version else file for file, index in pairs]

    def _iter_pending(self) -> Iterator[EpisodeFile]:
        """Yield files without an index, newest steps first."""
        indexes = self._indexes
        for file in reversed([*self._evaluations.values(), *self._steps.values()]):
            index = indexes.get(file.path)
            if index is None or index.file.version != file.version:
                yield file

    def _index_all(self) -> None:
        for file in list(self._iter_pending()):
            self._build_index(file)

    def _build_index(self, file: EpisodeFile) -> FileIndex:
        try:
            table = self._cache.load_index(file.path, file.version)
            index = FileIndex(file, table.drop_columns("text"), SearchTexts(table["text"]))
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
