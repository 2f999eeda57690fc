"""Whole learner steps against the dense twin: every gradient, weight and number of every preset and every option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from marft.algorithms import PRESETS
from marft.config.algorithm import merge
from marft.types import Episode
from tests.dense.twins import Twins, assert_same, recipe, snapshot

MOVES = {"optimizer": {"learning_rate": 0.01, "warmup_steps": 0}}
CRITIC_MOVES = {"critic": {"learning_rate": 0.01, "warmup_steps": 0}}




def algorithm(name: str, **changes: Any) -> dict[str, Any]:
    table = merge({"name": name, **MOVES}, changes)
    if PRESETS[name].get("critic", {}).get("kind") != "none":
        table = merge(CRITIC_MOVES, table)
    return table


def episodes_for(twins: Twins, drift: float = 0.15) -> Sequence[Episode]:
    writer = twins.writer(drift=drift)
    kind = getattr(twins.run.algorithm.credit, "forks", "")
    draw = {"tree": writer.tree, "counterfactual": writer.counterfactual, "cross": writer.crossed}.get(kind, writer.batch)
    return draw()


@pytest.mark.parametrize("name", PRESETS)
def test_a_step_of_every_preset(name: str, random_model: Path) -> None:
    twins = Twins(recipe(random_model, algorithm(name)))
    start = snapshot(twins)
    mine, right = twins.learn(episodes_for(twins))
    assert_same(twins, start, mine, right)
