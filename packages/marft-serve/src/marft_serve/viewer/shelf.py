"""The recorded files of a run, each with its index: found anew at every look, indexed in the background."""

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

LOOKED_AT = 0.3  # seconds between two looks at a folder
WAITED = 0.15  # seconds that an answer waits for files that are not indexed yet


@dataclass(frozen=True, slots=True)
class Recorded:
    """A file of episodes: of a training step, or of an evaluation."""

    name: str  # the step, or what the evaluation is called
    path: Path
    stamp: Stamp

    @property
    def step(self) -> int | str:
        """As it is said in answers: a number, or the evaluation's name."""
        return int(self.name) if self.path.parent.name == "episodes" else self.name


@dataclass(frozen=True, slots=True, eq=False)
class Indexed:
    """A file's index, or what is wrong with the file."""

    of: Recorded
    table: pa.Table | None = None
    texts: Texts = field(default_factory=lambda: Texts(pa.array([], pa.string())))
    problem: str = ""

    def __len__(self) -> int:
        return len(self.table) if self.table is not None else 0


class Shelf:
    """The files of one run."""

    def __init__(self, run: Path, cache: IndexCache) -> None:
        self._run, self._cache = run, cache
        self._lock, self._looked = threading.Lock(), float("-inf")
        self._steps: dict[str, Recorded] = {}
        self._evaluations: dict[str, Recorded] = {}
        self._credits: dict[str, Recorded] = {}
        self._indexed: dict[Path, Indexed] = {}
        self._at_work: threading.Thread | None = None

    def look(self) -> None:
        """Look which files are there, unless that has just been done; index new ones in the background."""
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
                self._at_work = worker  # begun: others wait for it

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
        """Files of what was recorded after credit, by step."""
        return self._credits

    def find(self, name: str) -> Recorded | None:
        """The file of a step or an evaluation: one of those that are there, whatever was asked for."""
        return self._steps.get(name) or self._evaluations.get(name)

    def indexed(self, file: Recorded) -> Indexed:
        """The index of a file, made now where it is not there."""
        known = self._indexed.get(file.path)
        if known is None or known.of.stamp != file.stamp:
            known = self._index(file)
        return known

    def known(self, seconds: float = WAITED) -> list[Indexed | Recorded]:
        """All training steps, indexed as far as that has come when ``seconds`` are over: a small run's all are."""
        worker = self._at_work
        if worker is not None:
            worker.join(seconds)
        files, indexed = list(self._steps.values()), self._indexed
        known = [(file, indexed.get(file.path)) for file in files]
        return [one if one is not None and one.of.stamp == file.stamp else file for file, one in known]

    def _waiting(self) -> Iterator[Recorded]:
        """Files without an index, newest steps first."""
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
    """Files that are called as a training step, oldest first."""
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
