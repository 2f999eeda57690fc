"""Organizations with a state: every episode has its own, forks rebuild it, and it is closed however the episode ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from marft.agents.game import Attempt, Replay
from marft.agents.play import play, play_all
from marft.common.seeds import derive_seed
from marft.common.types import Episode, JointAction, Observation, Step, Task
from marft.config.interfaces.organization import Agents, Organization
from tests.fakes import Script, ends, game

CLOSED: list[str] = []
SEEDS: list[int] = []


class Notes(Organization):
    """Lets the agents take turns from step to step, and shows them what was said so far."""

    _task: str
    _seed: int
    _said: list[str]

    def __init__(self, task: str = "", seed: int = 0) -> None:
        super().__init__()
        self._task, self._seed, self._said = task, seed, []

    def open(self, task: Task, seed: int) -> Notes:
        SEEDS.append(seed)
        return Notes(task.id, seed)

    def close(self) -> None:
        CLOSED.append(self._task)

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        role = "ab"[len(self._said) % 2]
        await asyncio.sleep(0)
        action = await next(agent for agent in agents if agent.role == role)(
            Observation(f"{observation.text} {self._task} {self._seed % 1000} after {self._said}")
        )
        self._said.append(action.text)
        return JointAction(action)


def steps(count: int) -> list[Any]:
    return [lambda _: Step(Observation("on"), 0.0) for _ in range(count - 1)] + [ends()]


def played(organization: Any, *attempts: Attempt, script: Script | None = None) -> list[Episode]:
    CLOSED.clear()
    g = game(script or Script(steps(3)), "a", "b", organization=organization)
    return asyncio.run(play_all(g, attempts, max_live=8))


def test_every_episode_has_a_state_of_its_own() -> None:
    many = [Attempt(Task(f"t{n}", "go"), "s") for n in range(6)]
    team = Notes()
    for episode in played(team, *many):
        assert episode.status == "terminated", episode.error
        assert [action.agent for action in episode.actions] == ["a", "b", "a"]
    assert team._said == []  # the team's own has acted in none
    assert sorted(CLOSED) == [f"t{n}" for n in range(6)]


def test_the_seed_is_the_episodes_and_a_forks_is_that_of_its_origin() -> None:
    one, two = played(Notes(), Attempt(Task("t", "go"), "s", 0), Attempt(Task("t", "go"), "s", 1))
    again = played(Notes(), Attempt(Task("t", "go"), "s", 0))[0]
    first = [bytes(e.actions[0].prompt.astype("uint8")).decode() for e in (one, two, again)]
    assert first[0] == first[2] != first[1]


def test_no_two_episodes_share_a_seed_nor_does_anything_else_have_it() -> None:
    attempts = [Attempt(Task(task, "go"), stream, n) for task in "tu" for stream in "rs" for n in (0, 1)]
    SEEDS.clear()
    played(Notes(), *attempts)
    assert sorted(SEEDS) == sorted(derive_seed(0, "organization", a.stream, a.task.id, a.sample) for a in attempts)


def test_a_fork_goes_on_with_the_state_that_its_origin_had() -> None:
    attempt = Attempt(Task("t", "go"), "s")
    whole = played(Notes(), attempt)[0]
    kept = {action.id: action for action in whole.actions[:2]}
    replay = Replay(whole.name, "s", 0, kept, fork_id=whole.actions[2].id, replaced_action=whole.actions[2])
    fork = played(Notes(), replace(attempt, stream="s/fork", replay=replay))[0]
    assert fork.status == "terminated", fork.error
    assert fork.fork is not None
    assert fork.fork.at == whole.actions[2].id
    assert (fork.actions[2].prompt == whole.actions[2].prompt).all()  # it has seen what was said before


class Broken(Notes):
    _where: str

    def __init__(self, where: str, task: str = "") -> None:
        super().__init__(task)
        self._where = where

    def open(self, task: Task, seed: int) -> Any:
        if self._where == "opened":
            raise RuntimeError("no state today")
        if self._where == "nothing":
            return None
        return Broken(self._where, task.id)

    def close(self) -> None:
        super().close()
        if self._where == "close":
            raise RuntimeError("not closed")

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        if self._where == "act":
            raise RuntimeError("no act today")
        return await super().act(observation, agents)


@pytest.mark.parametrize(
    ("where", "told", "closed"),
    [
        ("opened", "open() raised RuntimeError: no state today", []),
        ("nothing", "open() gave a NoneType, which lacks act() or close()", []),
        ("act", "raised RuntimeError: no act today", ["t"]),
    ],
)
def test_what_goes_wrong_loses_the_episode_and_what_was_opened_is_closed(
    where: str, told: str, closed: list[str]
) -> None:
    episode = played(Broken(where), Attempt(Task("t", "go"), "s"))[0]
    assert episode.status == "failed"
    assert "organization" in episode.error
    assert told in episode.error
    assert closed == CLOSED


def test_one_that_cannot_be_closed_is_counted_and_its_episode_stands() -> None:
    CLOSED.clear()
    g = game(Script(steps(3)), "a", "b", organization=Broken("close"))
    episode = asyncio.run(play(g, Attempt(Task("t", "go"), "s")))
    assert episode.status == "terminated", episode.error
    assert CLOSED == ["t"]
    assert g.threads.failed_closes == 1
