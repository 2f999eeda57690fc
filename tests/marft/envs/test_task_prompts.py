"""Agents without memory must read the task in every step."""

from __future__ import annotations

import pytest

from marft.common.types import AgentProfile
from marft.envs.task_prompts import loses_task, roles_that_lose_task

TASK = "Guess my number, from 1 to 10."


@pytest.mark.parametrize(
    ("first", "later", "lost"),
    [
        (TASK, "Wrong. Guess again.", True),
        (TASK, "Wrong: 7. Guess my number, from 1 to 10.", False),
        (TASK, "GUESS MY NUMBER FROM TO", False),
        ("Hello.", "Wrong. Guess again.", False),  # the first prompt does not state the task in these words
    ],
)
def test_a_task_is_lost_if_only_the_first_prompt_states_it(first: str, later: str, lost: bool) -> None:
    assert loses_task(TASK, first, later) == lost


def test_a_task_of_numbers_is_not_checked() -> None:
    assert not loses_task("1 + 2; 3 + 4", "1 + 2; 3 + 4", "3 + 4")


def test_instructions_are_part_of_every_prompt() -> None:
    silent, told = AgentProfile("silent"), AgentProfile("told", instructions=TASK)
    turns = [(profile, text) for text in (TASK, "Wrong.") for profile in (silent, told)]
    assert roles_that_lose_task(TASK, turns) == ["silent"]


def test_each_role_is_judged_from_its_own_first_prompt() -> None:
    early, late = AgentProfile("early"), AgentProfile("late")
    assert roles_that_lose_task(TASK, [(early, TASK), (late, "Wrong.")]) == []
