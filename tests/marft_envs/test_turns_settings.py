"""Recipes whose environment says who acts: teams that do not ask it, or go round it, are refused."""

from __future__ import annotations

from typing import ClassVar

import pytest

from marft.common.types import JointAction, Observation, Task
from marft.config.interfaces.environment import Environment
from marft.config.interfaces.organization import Agents, Organization
from marft.config.load import load_recipe

NOT_ASKED = "act although it is not their turn; use organization = 'turns'"
BESIDE = "they would read each other's whole turns beside it"


@pytest.mark.parametrize(
    ("recipe", "changes", "says"),
    [
        ("relay", {"team.organization": "chain"}, NOT_ASKED),
        ("relay", {"team.organization": "debate"}, NOT_ASKED),
        ("relay", {"team.visible": "last"}, BESIDE),
        ("rooms", {"team.organization": "parallel"}, NOT_ASKED),
        ("rooms", {"team.visible": "since_own_action"}, BESIDE),
        ("rooms_single", {"team.organization": "chain", "environment.actions": "choose",
                          "environment.order": "sequential"}, "nobody chooses from what environment 'rooms'"),
        ("memory", {"team.organization": "chain"}, NOT_ASKED),
        ("memory", {"team.visible": "last"}, BESIDE),
        ("code", {"team": {"organization": "chain"}}, NOT_ASKED),
        ("shop", {"environment.actions": "choices", "environment.actor": "buyer"}, "nobody chooses"),
        ("plan_path", {"environment.actions": "choices"}, "nobody chooses"),
    ],
)  # fmt: skip
def test_teams_that_do_not_go_with_their_environment(recipe: str, changes: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        load_recipe(recipe, changes=changes)


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        ("relay_single", {}),  # one agent alone: nobody else's turn
        ("rooms_single", {"team.organization": "chain"}),
        ("code_single", {}),
        ("code", {"team.visible": "since_own_action"}),  # programs are passed on by the team
        ("shop", {"team.organization": "turns", "team.order": "sequential", "environment.actions": "choices",
                  "environment.actor": "buyer"}),
    ],
)  # fmt: skip
def test_teams_that_do(recipe: str, changes: dict[str, object]) -> None:
    assert load_recipe(recipe, changes=changes).agents


def test_hints_are_all_that_the_other_gets() -> None:
    game = {"name": "textarena", "game": "hints"}
    changes = {"environment": game, "team": {"organization": "turns", "visible": "last"}}
    with pytest.raises(ValueError, match=BESIDE):
        load_recipe("textarena", changes=changes)


class Dealt(Environment):
    """Somebody's own, which deals turns."""

    controls_turns: ClassVar[bool] = True

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}/0", "Play.")]

    def start(self, task: Task, seed: int) -> object:
        raise AssertionError("nobody plays here")


def test_an_environment_of_ones_own_says_it_too() -> None:
    with pytest.raises(ValueError, match=NOT_ASKED):
        load_recipe("demo", changes={"environment": {"name": "tests.marft_envs.test_turns_settings:Dealt"}})


class Heedless(Organization):
    """Somebody's own, in which everyone acts whoever's turn it is."""

    ignores_turns: ClassVar[bool] = True

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        raise AssertionError("nobody plays here")


@pytest.mark.parametrize(
    "organization", ["debate", "marft.agents.organizations:Debate", "tests.marft_envs.test_turns_settings:Heedless"]
)
def test_an_organization_given_by_import_path_is_held_to_turns_like_the_built_in_one(organization: str) -> None:
    with pytest.raises(ValueError, match=NOT_ASKED):
        load_recipe("relay", changes={"team": {"organization": organization}})


def test_an_organization_that_declares_nothing_may_heed_turns() -> None:
    assert load_recipe("relay", changes={"team": {"organization": "tests.plugins:Apart"}}).agents
