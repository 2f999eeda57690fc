"""What can be said of ToolSandbox without its process: who plays the user, and what is refused at once."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from marft_envs.toolsandbox.environment import ToolSandbox


@pytest.mark.parametrize(
    ("table", "roles", "words"),
    [
        ({}, ["agent", "user"], "it leaves, and an agent's role is 'user'"),
        ({"user": "agent"}, ["agent"], "it needs an agent whose role is 'user'"),
        ({"user": "agent", "serves": ["agnt"]}, ["agent", "user"], "'agnt' is nobody who could; did you mean 'agent'?"),
        ({"user": "agent", "serves": ["user"]}, ["agent", "user"], "'user' is nobody who could"),
        ({"user": "agent", "serves": []}, ["agent", "user"], "name who serves the user"),
        ({"user": "agent"}, ["agent", "user"], ""),
        ({}, ["planner", "agent"], ""),
    ],
)
def test_who_plays_the_user_fits_the_team(table: dict[str, Any], roles: list[str], words: str) -> None:
    problems = list(ToolSandbox(python=sys.executable, **table).problems(roles))
    assert bool(problems) == bool(words)
    assert words in "".join(problems)


def test_it_says_whose_turn_it_is_where_an_agent_plays_the_user() -> None:
    assert ToolSandbox(python=sys.executable, user="agent").controls_turns
    assert not ToolSandbox(python=sys.executable).controls_turns


@pytest.mark.parametrize("rows", [{}, [], None, "lamp_on"])
def test_what_are_no_scenarios_is_refused(rows: object) -> None:
    environment = ToolSandbox(python=sys.executable)
    running = SimpleNamespace(request=lambda *_: {"rows": rows})
    vars(environment)["_process"] = SimpleNamespace(get_running=lambda: running)
    with pytest.raises(ValueError, match="which are no scenarios"):
        environment.tasks("train")


def test_a_python_that_is_not_there_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValidationError, match=r"git clone https://github\.com/apple/ToolSandbox"):
        ToolSandbox(python="/no/such/python")
