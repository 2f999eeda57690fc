"""Search, filter and sort for a run's episodes, based on their indexes."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from marft_serve.viewer.indexing import END
from marft_serve.viewer.shelf import Indexed

Sort = Literal["step", "reward", "task", "tokens", "seconds"]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
REMEMBERED = 8  # number of cached searches
TOGETHER = ("task", "status", "success", "reward", "tokens", "seconds", "agents")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Query for episodes; empty fields do not filter."""

    q: str = ""
    agent: str = ""
    task: str = ""
    status: str = ""
    success: bool | None = None
    guard: str = ""
    reward_min: float | None = None
    reward_max: float | None = None
    sort: Sort = "step"
    descending: bool = False


class Episodes:
    """Episodes from several files in a numeric table.

    Args:
        files: index of each file, oldest first; unreadable files contribute no episodes.
    """

    def __init__(self, files: Sequence[Indexed]) -> None:
        self.files = [file for file in files if file.table is not None]
        self.starts: Ints = np.cumsum([0, *(len(file) for file in self.files)])
        tables = [file.table.select(TOGETHER) for file in self.files if file.table is not None]
        table = pa.concat_tables(tables) if tables else None

        def column(name: str, kind: type) -> npt.NDArray[Any]:
            """Return a column as an array; empty without episodes."""
            return table[name].to_numpy().astype(kind) if table is not None else np.zeros(0, kind)

        self.reward, self.seconds = column("reward", np.float64), column("seconds", np.float64)
        self.tokens = column("tokens", np.int64)
        said = pc.fill_null(pc.cast(table["success"], pa.int8()), -1) if table is not None else pa.array([], pa.int8())
        self.success: npt.NDArray[np.int8] = np.asarray(said, np.int8)
        self.tasks, self.task = _coded(table, "task")
        self.statuses, self.status = _coded(table, "status")
        self.casts, self.cast = _coded(table, "agents")
        self._searches: OrderedDict[str, Bools] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self.starts[-1])

    def found(self, wanted: Wanted, guards: Callable[[int], Sequence[str]]) -> Ints:
        """Return the row numbers for a query, sorted.

        Args:
            wanted: the query.
            guards: function from a training step to the guards raised in it.
        """
        keep = np.ones(len(self), bool)
        if wanted.task:
            exact, part = wanted.task in self.tasks, wanted.task.lower()
            keep &= _among(self.task, self.tasks, lambda t: t == wanted.task if exact else part in t.lower())
        if wanted.status:
            keep &= _among(self.status, self.statuses, lambda status: status == wanted.status)
        if wanted.agent:
            keep &= _among(self.cast, self.casts, lambda cast: wanted.agent in cast.split(","))
        if wanted.success is not None:
            keep &= self.success == int(wanted.success)
        if wanted.reward_min is not None:
            keep &= self.reward >= wanted.reward_min
        if wanted.reward_max is not None:
            keep &= self.reward <= wanted.reward_max
        if wanted.guard:
            raised = [isinstance(f.of.step, int) and wanted.guard in guards(f.of.step) for f in self.files]
            keep &= np.repeat(np.array(raised, bool), np.diff(self.starts))
        if wanted.q:
            # lower case as in the index, for example for ΟΔΟΣ and İ
            keep &= self._with(pc.utf8_lower(wanted.q.replace(END, "")).as_py())
        return self._sorted(np.flatnonzero(keep), wanted)

    def _sorted(self, chosen: Ints, wanted: Wanted) -> Ints:
        if wanted.sort == "step":
            return chosen[::-1] if wanted.descending else chosen
        if wanted.sort == "task":
            order = np.argsort(np.argsort(np.array(self.tasks, object)))
            keys = order[self.task[chosen]].astype(np.float64)
        else:
            keys = getattr(self, wanted.sort)[chosen].astype(np.float64)
        keys = np.where(np.isnan(keys), math.inf, -keys if wanted.descending else keys)  # unknown values come last
        return chosen[np.argsort(keys, kind="stable")]

    def _with(self, text: str) -> Bools:
        """Return a mask with True for episodes that contain a text."""
        with self._lock:  # requests run concurrently
            found = self._searches.pop(text, None)
            if found is None:
                parts = [file.texts.holding(text) for file in self.files]
                found = np.concatenate([*parts, np.zeros(0, bool)])
            self._searches[text] = found
            while len(self._searches) > REMEMBERED:
                self._searches.popitem(last=False)
        return found

    def rows(self, chosen: Ints) -> list[tuple[Indexed, int]]:
        """Return the file and the position in it for each row number."""
        files = np.searchsorted(self.starts, chosen, side="right") - 1
        return [(self.files[f], int(n - self.starts[f])) for f, n in zip(files, chosen, strict=True)]


def listed(file: Indexed, number: int, guards: Sequence[str]) -> dict[str, Any]:
    """Return an episode's entry in a list."""
    assert file.table is not None
    (row,) = file.table.slice(number, 1).to_pylist()
    fork = {"origin": row["origin"], "at": row["at"]} if row["origin"] is not None else None
    return {
        "step": file.of.step,
        "index": number,
        **{name: row[name] for name in ("task", "sample", "stream", "reward", "success", "status", "actions")},
        **{name: row[name] for name in ("tokens", "seconds", "error", "preview")},
        "agents": [role for role in row["agents"].split(",") if role],
        "guards": list(guards),
        "fork": fork,
    }


def _coded(table: pa.Table | None, name: str) -> tuple[list[str], Ints]:
    """Return a column's distinct values, and the code for each row."""
    if table is None or not len(table):
        return [], np.zeros(0, np.int64)
    coded = table[name].combine_chunks().dictionary_encode()
    coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
    return coded.dictionary.to_pylist(), coded.indices.to_numpy().astype(np.int64)


def _among(codes: Ints, values: Sequence[str], wanted: Callable[[str], bool]) -> Bools:
    good = np.array([wanted(value) for value in values], bool)
    return good[codes] if len(values) else np.zeros(len(codes), bool)
