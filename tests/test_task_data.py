"""Data of tasks that sessions, tools, organizations and reward terms write into."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np

from marft.game.game import Attempt
from marft.game.loop_threads import LoopThreadPool
from marft.game.play import play
from marft.game.tasks import own_copy
from marft.rewards.composer import RewardComposer
from marft.rewards.terms import Function
from marft.types import Episode, JointAction, Observation, Step, Task
from tests.tool_games import says, with_tools

TASK = Task("t", "Say hi.", {"answers": [["hi"]], "seen": 0})


def spoiled(task: Task) -> bool:
    """Write into a task wherever that is possible → whether somebody had before."""
    data: Any = task.data
    before = data != {"answers": [["hi"]], "seen": 0}
    data["answers"][0].append("anything")
    data["seen"] += 1
    return before


def writes(episode: Episode) -> float:
    return float(spoiled(episode.task))


class Spoils:
    """An environment whose sessions write into their tasks: all at once, and with every step."""

    def tasks(self, split: str) -> Sequence[Task]:
        return [TASK]

    def start(self, task: Task, seed: int) -> Spoils:
        self.found = spoiled(task)
        return self

    async def reset(self) -> Observation:
        return Observation("Say hi.")

    async def step(self, actions: JointAction) -> Step:
        return Step(Observation(""), float(self.found), terminated=True)

    async def close(self) -> None: ...


class Notebook:
    """A tool that writes into its task when it is opened."""

    def __init__(self, task: Task, seed: int) -> None:
        self.found = spoiled(task)

    def look(self) -> bool:
        return self.found


def test_no_session_finds_what_an_earlier_one_has_written() -> None:
    game = with_tools(says("call look {}", "hi"), Notebook)
    game = replace(game, environment=Spoils())
    for _ in range(2):
        episode = asyncio.run(play(game, Attempt(TASK, "s")))
        assert not episode.error
        assert episode.transitions[0].reward == 0.0
        assert episode.task == TASK
        spoiled(episode.task)  # as whoever is shown an episode may
    assert TASK.data == {"answers": [["hi"]], "seen": 0}


def test_no_reward_term_finds_what_another_has_written() -> None:
    game = with_tools(says("hi"))
    episode = asyncio.run(play(game, Attempt(TASK, "s")))
    terms = [Function(call="tests.test_task_data:writes"), Function(call="tests.test_task_data:writes", weight=2.0)]
    compose = RewardComposer(terms, ("a",), LoopThreadPool(), 5.0)
    for _ in range(2):
        made = asyncio.run(compose(episode))
        assert not made.error
        assert [transition.reward for transition in made.transitions] == [0.0]
        assert made.task == TASK


def test_a_copy_of_a_task_shares_what_cannot_be_changed_and_nothing_else() -> None:
    lock, text = Lock(), "x" * 10_000
    data: dict[str, Any] = {
        "text": text, "rows": [{"a": (1, [2])}], "array": np.zeros(2), "set": {1}, "lock": lock, "key": {(1, 2): None},
    }  # fmt: skip
    copy = own_copy(Task("t", "p", data)).data
    assert copy["text"] is text
    assert copy["lock"] is lock
    copy["rows"][0]["a"][1].append(3)
    copy["array"][0] = 1
    copy["set"].add(2)
    copy["key"][3] = 4
    assert (data["rows"], data["set"], data["key"]) == ([{"a": (1, [2])}], {1}, {(1, 2): None})
    assert data["array"].tolist() == [0.0, 0.0]
    circle: dict[str, Any] = {}
    circle["self"] = circle
    assert own_copy(Task("t", "p", circle)).data["self"] is not circle
