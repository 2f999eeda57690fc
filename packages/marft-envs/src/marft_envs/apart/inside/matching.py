"""Fast search for the best milestone matches in ``tool_sandbox``.

The package's own search tries every path to the same state. With six unmet milestones over thirty messages it takes
minutes. This search finds the same optimum and tries each state once.
"""

from __future__ import annotations

import copy
from bisect import bisect
from collections import OrderedDict
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

Met = dict[int, "tuple[int, float]"]  # by milestone: index of the matched message, and similarity


class Alike(dict):  # type: ignore[type-arg]
    """Cache of similarities by message indices; indices with no database change in between share an entry.

    Args:
        changes: indices of the messages that changed the database, in order.
    """

    def __init__(self, changes: list[int]) -> None:
        super().__init__()
        self.changes = changes

    def _of(self, places: Any) -> tuple[int, ...]:
        return tuple(-1 if place is None else bisect(self.changes, place) for place in places)

    def __contains__(self, places: object) -> bool:
        return super().__contains__(self._of(places))

    def __getitem__(self, places: Any) -> Any:
        return super().__getitem__(self._of(places))

    def __setitem__(self, places: Any, similarity: Any) -> None:
        super().__setitem__(self._of(places), similarity)


class Search:
    """Search for the best message for each milestone, after the messages of its predecessors.

    Args:
        calculators: similarity calculators of the package, by milestone.
        graph: the package's milestone graph.
        last: index of the last message.
    """

    def __init__(self, calculators: Any, graph: Any, last: int) -> None:
        self.calculators, self.last = calculators, last
        self.follows = {node: frozenset(graph.predecessors(node)) for node in graph.nodes}
        self.known: dict[Any, tuple[float, tuple[Any, ...]]] = {}
        # by milestone: pairs of the reference milestone and the database compared at its match
        self.compared: dict[int, list[tuple[Any, Any]]] = {}
        self.changes: dict[Any, list[int]] = {}  # by database: indices of the messages that changed it
        context = calculators[0].execution_context
        seen = SimpleNamespace(  # each state is looked up once
            get_database=lru_cache(maxsize=None)(context.get_database),
            first_user_sandbox_message_index=context.first_user_sandbox_message_index,
        )
        for node in graph.nodes:
            calculator = calculators[node]
            calculator.execution_context = seen
            constraints = calculator.milestone.snapshot_constraints
            self.changes = {name: sorted(at) for name, at in calculator.database_bucket_boundary.items()}
            self.compared[node] = [(one.reference_milestone_node_index, one.database_namespace) for one in constraints]
            calculator.snapshot_constraint_similarity_cache = [
                Alike(self.changes[one.database_namespace]) for one in constraints
            ]
        self.possible = {node: self._possible(calculators[node]) for node in graph.nodes}

    def _possible(self, calculator: Any) -> set[int]:
        """Return message indices with a possible match for a milestone.

        Only constraints without a reference milestone count.
        """
        milestone = copy.copy(calculator.milestone)
        milestone.snapshot_constraints = [
            one for one in milestone.snapshot_constraints if one.reference_milestone_node_index is None
        ]
        if not milestone.snapshot_constraints:
            return set(range(self.last + 1))
        alone = type(calculator)(execution_context=calculator.execution_context, milestone=milestone)
        return {
            at for at in range(calculator.first_user_message_snapshot_index, self.last + 1)
            if alone.calculate_similarity(current_snapshot_index=at, milestone_snapshot_mapping={}) > 0
        }  # fmt: skip

    def _similarity(self, node: int, at: int, met: Met) -> float:
        if at not in self.possible[node]:
            return 0.0
        calculator = self.calculators[node]
        return float(calculator.calculate_similarity(current_snapshot_index=at, milestone_snapshot_mapping=met))

    def best(self, left: frozenset[int], first: int, met: Met) -> tuple[float, tuple[Any, ...]]:
        """Return the maximum total similarity of the remaining milestones, and their matches.

        Args:
            left: the remaining milestones.
            first: index of the first message that may match.
            met: matches so far.
        """
        if not any(self._can_be_met(node, first) for node in left):
            return 0.0, ()
        compared = {one for node in left for one in self.compared[node] if one[0] in met}
        key = left, first, frozenset((*one, bisect(self.changes[one[1]], met[one[0]][0])) for one in compared)
        if key not in self.known:
            self.known[key] = self._searched(left, first, met)
        return self.known[key]

    def _can_be_met(self, node: int, first: int) -> bool:
        return max(self.possible[node], default=-1) >= first

    def _searched(self, left: frozenset[int], first: int, met: Met) -> tuple[float, tuple[Any, ...]]:
        places = sorted(
            (-self._similarity(node, at, met), node, at)
            for node in left if not self.follows[node] & left for at in range(first, self.last + 1)
        )  # fmt: skip
        most, way = -1.0, ()  # type: tuple[float, tuple[Any, ...]]
        for minus, node, at in places:
            others = left - {node}
            if sum(self._can_be_met(other, at) for other in others) - minus <= most:
                continue  # upper bound: this branch cannot add more
            rest, onward = self.best(others, at, {**met, node: (at, -minus)})
            if rest - minus > most:
                most, way = rest - minus, ((node, (at, -minus)), *onward)
        return most, way


def search_once(evaluation: Any) -> None:
    """Install this search in the package's evaluation module."""

    def searched(
        _matcher: Any, *, similarity_calculators: Any, remaining_graph: Any, min_snapshot_index: int,
        max_snapshot_index: int, **_: Any,
    ) -> tuple[Any, float]:  # fmt: skip
        search = Search(similarity_calculators, remaining_graph, max_snapshot_index)
        _most, way = search.best(frozenset(remaining_graph.nodes), min_snapshot_index, {})
        total = 0.0
        # in the package's order, because floating-point addition is not associative
        for _node, (_at, similarity) in way:
            total += similarity
        return OrderedDict(way), total

    evaluation.MilestoneMatcher._dfs = searched
