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

Matches = dict[int, "tuple[int, float]"]  # by milestone: index of the matched message, and similarity


class SimilarityCache(dict):  # type: ignore[type-arg]
    """Cache of similarities by message indices; indices with no database change in between share an entry.

    Args:
        changes: indices of the messages that changed the database, in order.
    """

    def __init__(self, changes: list[int]) -> None:
        super().__init__()
        self.changes = changes

    def _cache_key(self, places: Any) -> tuple[int, ...]:
        return tuple(-1 if place is None else bisect(self.changes, place) for place in places)

    def __contains__(self, places: object) -> bool:
        return super().__contains__(self._cache_key(places))

    def __getitem__(self, places: Any) -> Any:
        return super().__getitem__(self._cache_key(places))

    def __setitem__(self, places: Any, similarity: Any) -> None:
        super().__setitem__(self._cache_key(places), similarity)


class MilestoneSearch:
    """Search for the best message for each milestone, after the messages of its predecessors.

    Args:
        calculators: similarity calculators of the package, by milestone.
        graph: the package's milestone graph.
        last: index of the last message.
    """

    def __init__(self, calculators: Any, graph: Any, last: int) -> None:
        self.calculators, self.last = calculators, last
        self.predecessors = {node: frozenset(graph.predecessors(node)) for node in graph.nodes}
        self.best_by_key: dict[Any, tuple[float, tuple[Any, ...]]] = {}
        # by milestone: pairs of the reference milestone and the database compared at its match
        self.references: dict[int, list[tuple[Any, Any]]] = {}
        self.changes: dict[Any, list[int]] = {}  # by database: indices of the messages that changed it
        context = calculators[0].execution_context
        cached_context = SimpleNamespace(  # each state is looked up once
            get_database=lru_cache(maxsize=None)(context.get_database),
            first_user_sandbox_message_index=context.first_user_sandbox_message_index,
        )
        for node in graph.nodes:
            calculator = calculators[node]
            calculator.execution_context = cached_context
            constraints = calculator.milestone.snapshot_constraints
            self.changes = {name: sorted(at) for name, at in calculator.database_bucket_boundary.items()}
            self.references[node] = [
                (constraint.reference_milestone_node_index, constraint.database_namespace) for constraint in constraints
            ]
            calculator.snapshot_constraint_similarity_cache = [
                SimilarityCache(self.changes[constraint.database_namespace]) for constraint in constraints
            ]
        self.candidates = {node: self._find_candidates(calculators[node]) for node in graph.nodes}

    def _find_candidates(self, calculator: Any) -> set[int]:
        """Return message indices with a possible match for a milestone.

        Only constraints without a reference milestone count.
        """
        milestone = copy.copy(calculator.milestone)
        milestone.snapshot_constraints = [
            constraint
            for constraint in milestone.snapshot_constraints
            if constraint.reference_milestone_node_index is None
        ]
        if not milestone.snapshot_constraints:
            return set(range(self.last + 1))
        calculator_alone = type(calculator)(execution_context=calculator.execution_context, milestone=milestone)
        return {
            at
            for at in range(calculator.first_user_message_snapshot_index, self.last + 1)
            if calculator_alone.calculate_similarity(current_snapshot_index=at, milestone_snapshot_mapping={}) > 0
        }

    def _similarity(self, node: int, at: int, matches: Matches) -> float:
        if at not in self.candidates[node]:
            return 0.0
        calculator = self.calculators[node]
        return float(calculator.calculate_similarity(current_snapshot_index=at, milestone_snapshot_mapping=matches))

    def find_best(self, remaining: frozenset[int], first: int, matches: Matches) -> tuple[float, tuple[Any, ...]]:
        """Return the maximum total similarity of the remaining milestones, and their matches.

        Args:
            remaining: the remaining milestones.
            first: index of the first message that may match.
            matches: matches so far.
        """
        if not any(self._has_candidate(node, first) for node in remaining):
            return 0.0, ()
        references = {reference for node in remaining for reference in self.references[node] if reference[0] in matches}
        key = (
            remaining,
            first,
            frozenset(
                (*reference, bisect(self.changes[reference[1]], matches[reference[0]][0])) for reference in references
            ),
        )
        if key not in self.best_by_key:
            self.best_by_key[key] = self._search(remaining, first, matches)
        return self.best_by_key[key]

    def _has_candidate(self, node: int, first: int) -> bool:
        return max(self.candidates[node], default=-1) >= first

    def _search(self, remaining: frozenset[int], first: int, matches: Matches) -> tuple[float, tuple[Any, ...]]:
        candidates = sorted(
            (-self._similarity(node, at, matches), node, at)
            for node in remaining
            if not self.predecessors[node] & remaining
            for at in range(first, self.last + 1)
        )
        best, path = -1.0, ()  # type: tuple[float, tuple[Any, ...]]
        for minus, node, at in candidates:
            other_nodes = remaining - {node}
            if sum(self._has_candidate(other, at) for other in other_nodes) - minus <= best:
                continue  # upper bound: this branch cannot add more
            rest_score, rest_path = self.find_best(other_nodes, at, {**matches, node: (at, -minus)})
            if rest_score - minus > best:
                best, path = rest_score - minus, ((node, (at, -minus)), *rest_path)
        return best, path


def install_search(evaluation: Any) -> None:
    """Install this search in the package's evaluation module."""

    def search_matches(
        _matcher: Any,
        *,
        similarity_calculators: Any,
        remaining_graph: Any,
        min_snapshot_index: int,
        max_snapshot_index: int,
        **_: Any,
    ) -> tuple[Any, float]:
        search = MilestoneSearch(similarity_calculators, remaining_graph, max_snapshot_index)
        _best, path = search.find_best(frozenset(remaining_graph.nodes), min_snapshot_index, {})
        total = 0.0
        # in the package's order, because floating-point addition is not associative
        for _node, (_at, similarity) in path:
            total += similarity
        return OrderedDict(path), total

    evaluation.MilestoneMatcher._dfs = search_matches
