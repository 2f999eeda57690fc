"""Where ToolSandbox's milestones are met best: as trying everything finds it, in no time."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft_envs.env_process.worker.milestone_search import install_search


class Calculator:
    """Similarities of a milestone by message, each worth half where the milestone before is met at an odd one."""

    def __init__(self, execution_context: Any, milestone: Any) -> None:
        self.execution_context, self.milestone = execution_context, milestone
        self.first_user_message_snapshot_index = self.asked = 0
        self.database_bucket_boundary = {"phone": list(range(len(milestone.worth)))}
        self.snapshot_constraint_similarity_cache: list[Any] = []

    def calculate_similarity(self, current_snapshot_index: int, milestone_snapshot_mapping: dict[int, Any]) -> float:
        self.asked += 1
        (constraint,) = self.milestone.snapshot_constraints
        before = constraint.reference_milestone_node_index
        half = before is not None and milestone_snapshot_mapping[before][0] % 2
        return float(self.milestone.worth[current_snapshot_index] * (0.5 if half else 1.0))


def searched(rows: list[list[float]], follows: dict[int, list[int]]) -> tuple[float, int]:
    """The most that milestones are worth, and how often a similarity was asked for."""
    context = SimpleNamespace(get_database=len, first_user_sandbox_message_index=0)
    constraints = [
        SimpleNamespace(reference_milestone_node_index=before[0] if before else None, database_namespace="phone")
        for before in follows.values()
    ]
    calculators = [
        Calculator(context, SimpleNamespace(worth=row, snapshot_constraints=[constraint]))
        for row, constraint in zip(rows, constraints, strict=True)
    ]
    graph: Any = SimpleNamespace(nodes=list(follows), predecessors=follows.get)
    evaluation: Any = SimpleNamespace(MilestoneMatcher=type("Matcher", (), {}))
    install_search(evaluation)
    mapping, most = evaluation.MilestoneMatcher()._dfs(
        similarity_calculators=calculators, remaining_graph=graph, min_snapshot_index=0,
        max_snapshot_index=len(rows[0]) - 1, assigned_mapping={},
    )  # fmt: skip
    assert sum(similarity for _, similarity in mapping.values()) == pytest.approx(most)
    return most, sum(calculator.asked for calculator in calculators)


def tried(rows: list[list[float]], follows: dict[int, list[int]]) -> float:
    """As ``searched``, by trying everything."""
    best = 0.0
    for places in itertools.product(range(len(rows[0])), repeat=len(rows)):
        if all(places[one] <= places[node] for node, before in follows.items() for one in before):
            halves = [0.5 if before and places[before[0]] % 2 else 1.0 for before in follows.values()]
            best = max(best, sum(rows[node][at] * halves[node] for node, at in enumerate(places)))
    return best


@given(st.data())
def test_the_best_places_of_milestones_are_those_that_trying_everything_finds(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 4))
    rows = data.draw(st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=4, max_size=4),
                              min_size=size, max_size=size))  # fmt: skip
    follows = {node: data.draw(st.lists(st.integers(0, node - 1), unique=True)) if node else [] for node in range(size)}
    assert searched(rows, follows)[0] == pytest.approx(tried(rows, follows))


def test_a_long_conversation_that_met_nothing_is_searched_in_no_time() -> None:
    follows = {node: [node - 1] if node else [] for node in range(7)}
    most, asked = searched([[0.1] * 34] * 6 + [[0.0] * 33 + [0.2]], follows)
    assert most == pytest.approx(0.8)
    assert asked < 30_000
