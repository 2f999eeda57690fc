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

from marft_serve.viewer.indexing import IndexCache, Stamp, Texts

LOOKED_AT = 0.3  # minimum seconds between two scans of a folder
WAITED = 0.15  # seconds that a response waits for files not indexed yet


@dataclass(frozen=True, slots=True)
class Recorded:
    """Episode file from a training step or an evaluation."""

    name: str  # the step, or the name of the evaluation
    path: Path
    stamp: Stamp

    @property
    def step(self) -> int | str:
        """Step number, or name for an evaluation."""
        return int(self.name) if self.path.parent.name == "episodes" else self.name


@dataclass(frozen=True, slots=True, eq=False)
class Indexed:
    """Index for a file, or the problem with the file."""

    of: Recorded
    table: pa.Table | None = None
    texts: Texts = field(default_factory=lambda: Texts(pa.array([], pa.string())))
    problem: str = ""

    def __len__(self) -> int:
        return len(self.table) if self.table is not None else 0


class Shelf:
    """Recorded files for a run."""

    def __init__(self, run: Path, cache: IndexCache) -> None:
        self._run, self._cache = run, cache
        self._lock, self._looked = threading.Lock(), float("-inf")
        self._steps: dict[str, Recorded] = {}
        self._evaluations: dict[str, Recorded] = {}
        self._credits: dict[str, Recorded] = {}
        self._indexed: dict[Path, Indexed] = {}
        self._at_work: threading.Thread | None = None

    def look(self) -> None:
        """Scan for files unless a scan is recent; index new files in the background."""
        with self._lock:
            if time.monotonic() - self._looked >= LOOKED_AT:
                self._steps = _steps_in(self._run / "episodes")
                self._credits = _steps_in(self._run / "credit")
                files = _parquet_in(self._run / "evaluations")
                self._evaluations = {path.stem: Recorded(path.stem, path, stamp) for path, stamp in files}
                there = {file.path for file in self._steps.values()} | {it.path for it in self._evaluations.values()}
                self._indexed = {path: one for path, one in self._indexed.items() if path in there}
                self._looked = time.monotonic()
            idle = self._at_work is None or not self._at_work.is_alive()
            if idle and next(self._waiting(), None):
                worker = threading.Thread(target=self._index_all, name="marft-view-index", daemon=True)
                worker.start()
                self._at_work = worker  # assigned after the start, since others join the thread

    @property
    def steps(self) -> Mapping[str, Recorded]:
        """Training steps with recorded episodes, oldest first."""
        return self._steps

    @property
    def evaluations(self) -> Mapping[str, Recorded]:
        """Evaluations with recorded episodes, by name."""
        return self._evaluations

    @property
    def credits(self) -> Mapping[str, Recorded]:
        """Credit files, by step."""
        return self._credits

    def find(self, name: str) -> Recorded | None:
        """Return the file for a step or an evaluation; None for an unknown name."""
        return self._steps.get(name) or self._evaluations.get(name)

    def indexed(self, file: Recorded) -> Indexed:
        """Return a file's index; build it now if necessary."""
        known = self._indexed.get(file.path)
        if known is None or known.of.stamp != file.stamp:
            known = self._index(file)
        return known

    def known(self, seconds: float = WAITED) -> list[Indexed | Recorded]:
        """Return all training steps, indexed as far as possible within ``seconds``; small runs finish in time."""
        worker = self._at_work
        if worker is not None:
            worker.join(seconds)
        files, indexed = list(self._steps.values()), self._indexed
        known = [(file, indexed.get(file.path)) for file in files]
        return [one if one is not None and one.of.stamp == file.stamp else file for file, one in known]

    def _waiting(self) -> Iterator[Recorded]:
        """Yield files without an index, newest steps first."""
        indexed = self._indexed
        for file in reversed([*self._evaluations.values(), *self._steps.values()]):
            one = indexed.get(file.path)
            if one is None or one.of.stamp != file.stamp:
                yield file

    def _index_all(self) -> None:
        for file in list(self._waiting()):
            self._index(file)

    def _index(self, file: Recorded) -> Indexed:
        try:
            table = self._cache.index_of(file.path, file.stamp)
            one = Indexed(file, table.drop_columns("text"), Texts(table["text"]))
        except ValueError as error:
            one = Indexed(file, problem=str(error))
        with self._lock:
            self._indexed = {**self._indexed, file.path: one}
        return one


def _steps_in(folder: Path) -> dict[str, Recorded]:
    """Return the training-step files in a folder, oldest first."""
    found = {}
    for path, stamp in _parquet_in(folder):
        number = path.stem.removeprefix("step_")
        if path.stem.startswith("step_") and number.isascii() and number.isdigit():
            found[int(number)] = Recorded(str(int(number)), path, stamp)
    return {file.name: file for _, file in sorted(found.items())}


def _parquet_in(folder: Path) -> Iterator[tuple[Path, Stamp]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.endswith(".parquet") and not entry.name.startswith("."):
                with suppress(OSError):
                    if entry.is_file():
                        yield folder / entry.name, Stamp.of(entry.stat())
