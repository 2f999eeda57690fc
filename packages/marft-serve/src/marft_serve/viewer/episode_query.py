"""Search, filter and sort for a run's episodes, based on their indexes."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, Field

from marft_serve.viewer.episode_index import FileIndex

QueryText = Annotated[str, Field(max_length=500)]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
SEARCH_CACHE_SIZE = 8  # number of cached searches
TABLE_COLUMNS = ("task", "status", "success", "reward", "tokens", "seconds", "agents")


class EpisodeQuery(BaseModel):
    """Query for a page of episodes, as the parameters of an address; empty fields do not filter."""

    step: QueryText = ""
    q: QueryText = ""
    agent: QueryText = ""
    task: QueryText = ""
    status: QueryText = ""
    success: Literal["true", "false", ""] = ""
    guard: QueryText = ""
    reward_min: float | Literal[""] = ""
    reward_max: float | Literal[""] = ""
    sort: Literal["step", "reward", "task", "tokens", "seconds"] = "step"
    order: Literal["asc", "desc"] = "asc"
    offset: Annotated[int, Field(ge=0, le=2**40)] = 0
    limit: Annotated[int, Field(ge=0, le=1000)] = 50


class EpisodeTable:
    """Episodes from several files in a numeric table.

    Args:
        files: index of each file, oldest first; unreadable files contribute no episodes.
    """

    def __init__(self, files: Sequence[FileIndex]) -> None:
        self.files = [file for file in files if file.table is not None]
        self.starts: Ints = np.cumsum([0, *(len(file) for file in self.files)])
        tables = [file.table.select(TABLE_COLUMNS) for file in self.files if file.table is not None]
        table = pa.concat_tables(tables) if tables else None

        def column(name: str, kind: type) -> npt.NDArray[Any]:
            """Return a column as an array; empty without episodes."""
            return table[name].to_numpy().astype(kind) if table is not None else np.zeros(0, kind)

        self.reward, self.seconds = column("reward", np.float64), column("seconds", np.float64)
        self.tokens = column("tokens", np.int64)
        success_codes = (
            pc.fill_null(pc.cast(table["success"], pa.int8()), -1) if table is not None else pa.array([], pa.int8())
        )
        self.success: npt.NDArray[np.int8] = np.asarray(success_codes, np.int8)
        self.tasks, self.task = _encode_column(table, "task")
        self.statuses, self.status = _encode_column(table, "status")
        self.agent_lists, self.agent_list = _encode_column(table, "agents")
        self._search_cache: OrderedDict[str, Bools] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self.starts[-1])

    def search(self, query: EpisodeQuery, guards: Callable[[int], Sequence[str]]) -> Ints:
        """Return the row numbers for a query, sorted.

        Args:
            query: the query.
            guards: function from a training step to the guards raised in it.
        """
        keep = np.ones(len(self), bool)
        if query.task:
            exact, part = query.task in self.tasks, query.task.lower()
            keep &= _match_codes(self.task, self.tasks, lambda t: t == query.task if exact else part in t.lower())
        if query.status:
            keep &= _match_codes(self.status, self.statuses, lambda status: status == query.status)
        if query.agent:
            keep &= _match_codes(self.agent_list, self.agent_lists, lambda cast: query.agent in cast.split(","))
        if query.success:
            keep &= self.success == int(query.success == "true")
        if isinstance(query.reward_min, float):
            keep &= self.reward >= query.reward_min
        if isinstance(query.reward_max, float):
            keep &= self.reward <= query.reward_max
        if query.guard:
            raised = [isinstance(f.file.step, int) and query.guard in guards(f.file.step) for f in self.files]
            keep &= np.repeat(np.array(raised, bool), np.diff(self.starts))
        if query.q:
            # lower case as in the index, for example for ΟΔΟΣ and İ
            keep &= self._match_text(pc.utf8_lower(query.q.replace("\0", "")).as_py())
        return self._sort(np.flatnonzero(keep), query)

    def _sort(self, numbers: Ints, query: EpisodeQuery) -> Ints:
        descending = query.order == "desc"
        if query.sort == "step":
            return numbers[::-1] if descending else numbers
        if query.sort == "task":
            order = np.argsort(np.argsort(np.array(self.tasks, object)))
            keys = order[self.task[numbers]].astype(np.float64)
        else:
            keys = getattr(self, query.sort)[numbers].astype(np.float64)
        keys = np.where(np.isnan(keys), math.inf, -keys if descending else keys)  # unknown values come last
        return numbers[np.argsort(keys, kind="stable")]

    def _match_text(self, text: str) -> Bools:
        """Return a mask with True for episodes that contain a text."""
        with self._lock:  # requests run concurrently
            mask = self._search_cache.pop(text, None)
            if mask is None:
                parts = [find_matches(file.texts, text) for file in self.files]
                mask = np.concatenate([*parts, np.zeros(0, bool)])
            self._search_cache[text] = mask
            while len(self._search_cache) > SEARCH_CACHE_SIZE:
                self._search_cache.popitem(last=False)
        return mask

    def find_rows(self, numbers: Ints) -> list[tuple[FileIndex, int]]:
        """Return the file and the position in it for each row number."""
        files = np.searchsorted(self.starts, numbers, side="right") - 1
        return [(self.files[f], int(n - self.starts[f])) for f, n in zip(files, numbers, strict=True)]


def find_matches(texts: pa.ChunkedArray, text: str) -> Bools:
    """Return a mask with True for texts that contain a text.

    >>> find_matches(pa.chunked_array([["abc", "bcd", ""]]), "bc").tolist()
    [True, True, False]
    """
    mask = pc.match_substring(texts, text.encode("utf-8", "replace").decode())
    return np.asarray(mask.to_numpy(), bool)


def build_list_entry(file: FileIndex, number: int, guards: Sequence[str]) -> dict[str, object]:
    """Return an episode's entry in a list."""
    assert file.table is not None
    (row,) = file.table.slice(number, 1).to_pylist()
    fork = {"origin": row["origin"], "at": row["at"]} if row["origin"] is not None else None
    return {
        "step": file.file.step,
        "index": number,
        **{name: row[name] for name in ("task", "sample", "stream", "reward", "success", "status", "actions")},
        **{name: row[name] for name in ("tokens", "seconds", "error", "preview")},
        "agents": [role for role in row["agents"].split(",") if role],
        "guards": list(guards),
        "fork": fork,
    }


def _encode_column(table: pa.Table | None, name: str) -> tuple[list[str], Ints]:
    """Return a column's distinct values, and the code for each row."""
    if table is None or not len(table):
        return [], np.zeros(0, np.int64)
    encoded = table[name].combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


def _match_codes(codes: Ints, values: Sequence[str], predicate: Callable[[str], bool]) -> Bools:
    matches = np.array([predicate(value) for value in values], bool)
    return matches[codes] if len(values) else np.zeros(len(codes), bool)
