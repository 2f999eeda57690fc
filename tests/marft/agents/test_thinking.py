"""Thoughts: who reads them later, as the recipe says."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Literal

import pytest

from marft.agents.game import Attempt, Game
from marft.agents.play import play
from marft.common.types import Episode, JointAction, MemoryMode, Observation, Task
from marft.config.interfaces.organization import Agents
from marft.evaluation.evaluate import _collect_messages
from tests.fakes import FakeEngine
from tests.marft.agents.test_memory import Plain, acting, text_of

TEXT = "<think>\nHm.\n</think>\n\nIt is 3."


async def plan_and_answer(observation: Observation, agents: Agents) -> JointAction:
    plan = await agents.planner(observation)
    return JointAction(await agents.solver(observation, sees=[plan]))


def team(thinking: Literal["keep", "drop"], text: str = TEXT, memory: MemoryMode = "none") -> Game:
    g = acting(plan_and_answer, "planner", "solver", engine=FakeEngine(lambda key, _: text), steps=3)
    agents = tuple(replace(agent, thinking=thinking, memory=memory) for agent in g.team.agents)
    return replace(g, team=replace(g.team, agents=agents), renderer=Plain())


def played(g: Game) -> Episode:
    episode = asyncio.run(play(g, Attempt(Task("t0", "begin"), "train/0")))
    assert not episode.error
    return episode


def prompts(episode: Episode, role: str) -> list[str]:
    return [text_of(action.prompt) for action in episode.actions if action.agent == role]


def test_what_is_dropped_teammates_do_not_read_and_the_record_keeps() -> None:
    episode = played(team("drop"))
    assert all("It is 3." in prompt and "Hm." not in prompt for prompt in prompts(episode, "solver"))
    assert {action.text for action in episode.actions} == {TEXT}
    assert {action.message for action in episode.actions} == {"It is 3."}
    assert set(_collect_messages(episode).values()) == {"It is 3."}


def test_what_is_kept_they_read() -> None:
    episode = played(team("keep"))
    assert all(TEXT in prompt for prompt in prompts(episode, "solver"))
    assert {action.thought for action in episode.actions} == {0}


def test_a_thought_that_was_cut_short_says_nothing() -> None:
    episode = played(team("drop", "<think>\nHm, 1 + 2"))
    assert {action.message for action in episode.actions} == {""}


def test_an_agent_does_not_remember_what_is_dropped_and_is_told_why_its_prompt_begins_anew() -> None:
    episode = played(team("drop", memory="own"))
    later = [action for action in episode.actions if action.agent == "planner"][1:]
    assert [text_of(action.prompt).count("a:It is 3.") for action in later] == [1, 2]
    assert all("Hm." not in prompt for role in ("planner", "solver") for prompt in prompts(episode, role))
    assert {action.restarted for action in later} == {"its thoughts were dropped"}


@pytest.mark.parametrize(("thinking", "text"), [("keep", TEXT), ("drop", "It is 3.")])
def test_a_memory_from_which_nothing_is_dropped_goes_on_by_the_ids_that_were_sampled(
    thinking: Literal["keep", "drop"], text: str
) -> None:
    episode = played(team(thinking, text, memory="own"))
    assert {action.restarted for action in episode.actions} == {""}
    first, *_, last = [action for action in episode.actions if action.agent == "planner"]
    so_far = [*first.prompt, *first.tokens]
    assert last.prompt[: len(so_far)].tolist() == so_far
