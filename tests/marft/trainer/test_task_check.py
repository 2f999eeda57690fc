"""Training warns about agents that read the task in their first prompt only."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from marft.common.types import Observation, Transition
from marft.trainer.task_check import TaskCheck
from tests.helpers import settings

TASK = "Guess my number, from 1 to 10."


def played(*observations: str) -> Any:
    """An episode in which the reasoner and the actor act at every step."""
    actions = [
        SimpleNamespace(agent=agent, step=step) for step in range(len(observations)) for agent in ("reasoner", "actor")
    ]
    transitions = [Transition(Observation(text), 0.0) for text in observations]
    return SimpleNamespace(task=SimpleNamespace(prompt=TASK), actions=actions, transitions=transitions)


def warnings_of(
    caplog: pytest.LogCaptureFixture, *rollouts: Any, memory: str = "none", completed: int = 0
) -> list[str]:
    caplog.clear()
    run = settings()
    run = run.model_copy(update={"agents": tuple(agent.model_copy(update={"memory": memory}) for agent in run.agents)})
    check = TaskCheck(run)
    check.on_train_start(completed, 9)
    with caplog.at_level(logging.WARNING, logger="marft"):
        for step, episode in enumerate(rollouts, start=1):
            check.on_rollout(step, [episode])
    return [record.getMessage() for record in caplog.records]


def test_agents_without_memory_that_lose_the_task_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    lost = played(TASK, "Wrong. Guess again.")
    (warning,) = warnings_of(caplog, lost, lost)
    assert warning.startswith("reasoner, actor: later prompts of an episode do not contain the task")
    assert 'memory = "own"' in warning


def test_nothing_is_said_where_the_task_is_repeated_or_remembered(caplog: pytest.LogCaptureFixture) -> None:
    assert not warnings_of(caplog, played(TASK, f"Wrong. {TASK}"))
    assert not warnings_of(caplog, played(TASK))
    assert not warnings_of(caplog, played(TASK, "Wrong. Guess again."), memory="own")
    assert not warnings_of(caplog, played(TASK, "Wrong. Guess again."), completed=3)
