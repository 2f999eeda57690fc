"""Hostile reward terms, organizations and tools: each loses its own episode, and harms no other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marft.agents.agents import ToolUse
from marft.agents.game import Attempt, Game
from marft.agents.play import play
from marft.agents.team import Team
from marft.agents.tools.functions import SessionSource
from marft.common.texts import MAX_ERROR_LENGTH
from marft.common.types import Action, JointAction, Observation, Task
from marft.config.interfaces.organization import Agents, MessageOverride, Organization
from marft.config.interfaces.reward import RewardTerm
from tests.beside import GOOD, MISDEED, Given, as_they_were, lost, play_beside, unharmed, world
from tests.fakes import FakeEngine, Script, ends, game, goes_on
from tests.hostile import (
    ANYTHING,
    EARNED,
    ERRORS,
    HANGS,
    Misdeed,
    World,
    WorldSession,
    raising,
)
from tests.nights import BY_NIGHT


class Here(Given):
    own_timeout = True  # type: ignore[misc]  # so that it runs on the event loop that all episodes share


@pytest.mark.slow
@pytest.mark.parametrize("term", [Given, Here])
@pytest.mark.parametrize("error", ERRORS)
def test_whatever_a_reward_term_raises_loses_its_own_episode_alone(
    error: str, term: type[RewardTerm], tmp_path: Path
) -> None:
    MISDEED[0] = raising(error)
    episodes = play_beside(world({}), ["bad"], tmp_path, [term()])
    if error == "a chosen status":
        assert (episodes["bad"].status, episodes["bad"].error) == ("failed", "all is well")
    else:
        lost(episodes["bad"], f"reward term '{term.__name__}' raised")
    assert [episodes[name].transitions[0].reward for name in GOOD] == [1.0] * 3


@pytest.mark.slow
@pytest.mark.parametrize("value", EARNED)
def test_whatever_a_reward_term_gives_loses_its_own_episode_alone(value: str, tmp_path: Path) -> None:
    MISDEED[0] = lambda: EARNED[value]
    episodes = play_beside(world({}), ["bad"], tmp_path, [Given()])
    lost(episodes["bad"], "reward term 'Given'")
    unharmed(episodes, [Given()], tmp_path)


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.parametrize("how", HANGS)
def test_a_reward_term_that_hangs_loses_its_own_episode_alone(how: str, tmp_path: Path) -> None:
    MISDEED[0] = HANGS[how]
    episodes = play_beside(world({}, timeout=1.0), ["bad"], tmp_path, [Given()])
    assert (episodes["bad"].status, episodes["bad"].error) == ("timed_out", "reward term 'Given' took over 1 s")
    unharmed(episodes, [Given()], tmp_path)


class Unruly(Organization):
    """A chain, that does something else where the observation says ``bad``."""

    _misdeed: Misdeed

    def __init__(self, misdeed: Misdeed) -> None:
        super().__init__()
        self._misdeed = misdeed

    async def act(self, observation: Observation, agents: Agents) -> Any:
        if "bad" in observation.text:
            result = self._misdeed()
            return await result if asyncio.iscoroutine(result) else result
        plan = await agents.a(observation)
        return JointAction(answer=await agents.b(observation, sees=[plan]))


@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS)
def test_whatever_an_organization_raises_loses_its_own_episode_alone(error: str, tmp_path: Path) -> None:
    episodes = play_beside(world({}, organization=Unruly(raising(error))), ["bad"], tmp_path)
    lost(episodes["bad"], place=error != "a chosen status")
    unharmed(episodes, (), tmp_path)


@pytest.mark.parametrize("value", ANYTHING)
def test_whatever_an_organization_returns_loses_its_own_episode_alone(value: str, tmp_path: Path) -> None:
    episodes = play_beside(world({}, organization=Unruly(lambda: ANYTHING[value])), ["bad"], tmp_path)
    lost(episodes["bad"], "the organization", place=False)
    unharmed(episodes, (), tmp_path)


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.parametrize("how", ["wait", "refuse to end"])
def test_an_organization_that_waits_for_nobody_is_cancelled(how: str, tmp_path: Path) -> None:
    episodes = play_beside(world({}, organization=Unruly(HANGS[how]), timeout=0.5), ["bad"], tmp_path)
    assert episodes["bad"].status == "timed_out"
    assert "the organization Unruly waited over 0.5 s for no agent" in episodes["bad"].error
    unharmed(episodes, (), tmp_path)


def test_an_organization_may_wait_for_its_agents_as_long_as_they_take(tmp_path: Path) -> None:
    class Slow(FakeEngine):
        async def sample(self, *arguments: Any) -> Any:
            await asyncio.sleep(0.3)
            return await super().sample(*arguments)

    episodes = play_beside(world({}, engine=Slow(), timeout=0.2), [], tmp_path, live=3)
    assert all(episode.is_scored for episode in episodes.values())


class Keeping(Organization):
    """Passes on what it kept from an earlier episode, or step."""

    _how: str
    _kept: list[Action]

    def __init__(self, how: str) -> None:
        super().__init__()
        self._how, self._kept = how, list[Action]()

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        mine = await agents.a(observation)
        if "good 0" in observation.text:
            self._kept.append(mine)
            return JointAction(answer=await agents.b(observation, sees=[mine]))
        if "bad" not in observation.text:
            return JointAction(answer=await agents.b(observation, sees=[mine]))
        kept = self._kept[0]
        given: dict[str, Any] = {
            "sees": {"sees": [kept]},
            "an excerpt": {"sees": [mine, MessageOverride(kept, "part")]},
            "begins": {"begins": kept},
            "a copy": {"sees": [replace(mine, text="changed")]},
            "a text": {"sees": ["a plan"]},
        }
        try:
            await agents.b(observation, **given.get(self._how, {"sees": [mine]}))
        except Exception:  # noqa: BLE001  to carry on as if nothing had happened does not help
            return JointAction()
        return JointAction(answer=kept)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("sees", "b sees 0/a/0 of the episode s good 0 #0, which is no action of this episode"),
        ("an excerpt", "b sees 0/a/0 of the episode s good 0 #0"),
        ("begins", "b begins with 0/a/0 of the episode s good 0 #0"),
        ("answers", "the team answers with 0/a/0 of the episode s good 0 #0"),
        ("a copy", "b sees a changed copy of 0/a/0, which is no action of this episode; pass on an Excerpt"),
        ("a text", "b sees a str, which is no action of this episode"),
    ],
)
def test_an_action_of_another_episode_is_never_passed_on(how: str, reason: str, tmp_path: Path) -> None:
    episodes = play_beside(world({}, organization=Keeping(how)), ["bad"], tmp_path, live=1)
    assert episodes["bad"].status == "failed"
    assert reason in episodes["bad"].error
    unharmed(episodes, (), tmp_path)


def test_an_action_of_an_earlier_step_of_the_same_episode_may_be_seen_and_is_recorded() -> None:
    class Remembers(Organization):
        _plan: Action | None = None

        async def act(self, observation: Observation, agents: Agents) -> JointAction:
            if self._plan is None:
                self._plan = await agents.a(observation)
                return JointAction()
            return JointAction(answer=await agents.b(observation, sees=[self._plan]))

    g = game(Script([goes_on(), ends()]), "a", "b", organization=Remembers())
    episode = asyncio.run(play(g, Attempt(Task("t", "?"), "s", record_critic_states=True)))
    assert (episode.status, episode.actions[1].id, episode.actions[1].sees) == ("terminated", "1/b/0", ("0/a/0",))


def with_looking(misdeed: Misdeed, **changes: Any) -> Game:
    """Agent a looks around with the environment's own tool before it speaks."""

    def say(key: Any, prompt: str) -> str:
        looks = key.agent == "a" and "+" not in key.stream
        return 'CALL{"name": "look", "arguments": {}}' if looks else f"{key.agent} says {key.step}"

    g = world({"bad": ("look", misdeed)}, engine=FakeEngine(say), **changes)
    source = SessionSource(WorldSession)
    first, second = g.team.agents
    profile = replace(first.profile, tools=tuple(source.tools))
    looking = replace(first, profile=profile, tool_use=ToolUse({"look": "environment"}, seconds=0.5))
    return replace(g, team=Team((looking, second), g.team.organization), tools={"environment": source})


@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS)
def test_whatever_a_tool_raises_is_told_to_its_agent_alone(error: str, tmp_path: Path) -> None:
    episodes = play_beside(with_looking(raising(error)), ["bad"], tmp_path)
    assert [episode.status for episode in episodes.values()] == ["terminated"] * 4
    (call,) = episodes["bad"].actions[0].calls
    assert call.error
    assert len(call.output) < MAX_ERROR_LENGTH + 100
    calm = play_beside(with_looking(lambda: "a door"), [], tmp_path)
    assert as_they_were(episodes) == as_they_were(calm)


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.parametrize("how", HANGS)
def test_a_tool_that_hangs_harms_no_other_episode(how: str, tmp_path: Path) -> None:
    episodes = play_beside(with_looking(HANGS[how], timeout=1.0), ["bad"], tmp_path)
    assert episodes["bad"].actions[0].calls[0].output == "look took over 0.5 s"
    assert [episodes[name].status for name in GOOD] == ["terminated"] * 3


def test_a_session_without_the_tools_that_its_class_promises_loses_its_own_episode(tmp_path: Path) -> None:
    class Bare:
        async def reset(self) -> Observation:
            return Observation("bad")

        async def step(self, actions: JointAction) -> Any: ...

        async def close(self) -> None: ...

    g = with_looking(lambda: "x")
    g = replace(g, environment=World({"bad": ("start", Bare)}))  # type: ignore[arg-type]
    episodes = play_beside(g, ["bad"], tmp_path)
    assert "environment World: tools() raised AttributeError" in episodes["bad"].error
    assert [episodes[name].status for name in GOOD] == ["terminated"] * 3
