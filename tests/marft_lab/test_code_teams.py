"""The recipes of programs and of instructions, played by their scripts: in the real game, with the prompts that agents get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from marft.agents.sandbox.runner import isolation_problem
from marft.common.types import Episode
from marft.config import load_recipe
from marft.config.models import ModelSettings
from marft.models.tokenizer_format import load_format
from marft_lab.scripted_team import ScriptedTeam
from tests.nights import BY_NIGHT, some

ROOM = 4096  # tokens: scripts are measured in another vocabulary than that of the recipe's own model


def played(recipe: str, skill: float, count: int) -> Sequence[Episode]:
    """Episodes of demonstration tasks."""
    run = load_recipe(recipe)
    environment: Any = run.environment
    form = replace(load_format(ModelSettings(path="tiny-tools")), context=ROOM)
    with ScriptedTeam(run, environment.script(skill), dict.fromkeys(run.models, form)) as team:
        return list(team.play(islice(environment.demonstrations(), count)))


@pytest.mark.parametrize("recipe", ["instructions", "instructions_single"])
def test_teams_of_writers_follow_everything_with_skill_and_not_without(recipe: str) -> None:
    well, badly = played(recipe, 1.0, 12), played(recipe, 0.0, 12)
    assert all(episode.success for episode in well)
    assert all(episode.total_reward == 1.0 for episode in well)
    assert all(episode.is_scored for episode in badly)
    assert sum(bool(episode.success) for episode in badly) < 6
    assert max(len(action.prompt) for episode in well for action in episode.actions) < 400
    assert max(len(action.tokens) for episode in well for action in episode.actions) <= 60


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.skipif(bool(isolation_problem()), reason=f"no isolation here: {isolation_problem()}")
@pytest.mark.parametrize("recipe", some(["code", "code_single"]))
def test_teams_of_programmers_solve_what_is_drawn_with_skill_and_not_without(recipe: str) -> None:
    well, badly = played(recipe, 1.0, 4), played(recipe, 0.0, 4)
    assert all(episode.success for episode in well)
    assert all(len(episode.transitions) == 1 for episode in well)
    assert all(episode.is_scored for episode in badly)
    assert not all(episode.success for episode in badly)
    if recipe == "code":
        assert {action.agent for episode in badly for action in episode.actions} == {"coder", "tester", "reflector"}
        assert all(0 < episode.transitions[-1].agent_rewards["tester"] <= 0.5 for episode in well)
        advice = [
            action for episode in badly for action in episode.actions if action.step == 2 and action.agent == "coder"
        ]
        assert advice
        assert all(action.sees for action in advice)  # the reflector's words
