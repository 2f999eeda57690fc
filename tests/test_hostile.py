"""Hostile environments, tools, reward terms and organizations: each loses its own episode, and harms no other."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marft.evaluation.metrics import episode_metrics
from marft.game.agents import Agents, Excerpt
from marft.game.game import Attempt, Game
from marft.game.play import play
from marft.game.rollout import play_all
from marft.game.team import Team
from marft.game.tool_sources import ToolUse
from marft.rewards.composer import RewardComposer
from marft.rewards.terms import Term, TermReward
from marft.runs.episodes import read_episodes, write_episodes
from marft.runs.folder import RunFolder
from marft.texts import LONGEST
from marft.tools.functions import SessionSource
from marft.training import train
from marft.types import Action, Episode, JointAction, Observation, Task
from tests.fakes import FakeEngine, Script, ends, game, goes_on
from tests.helpers import settings
from tests.hostile import (
    ANYTHING,
    EARNED,
    ERRORS,
    FINE_STEPS,
    HANGS,
    LOOPS,
    STEPS,
    Misdeed,
    World,
    WorldSession,
    raising,
)

PLACE = re.compile(r"\(\w+\.py:\d+\)")
GOOD = ["good 0", "good 1", "good 2"]
METHODS = ("start", "reset", "step", "close")


def play_beside(
    g: Game, tasks: Sequence[str], folder: Path, terms: Sequence[Term] = (), live: int = 2
) -> dict[str, Episode]:
    """Play the tasks among good ones, compose, count and record them → all episodes, by task."""
    roles = [agent.role for agent in g.team.agents]
    names = [GOOD[0], *tasks, *GOOD[1:]]
    attempts = [Attempt(Task(name, "?"), "s", critic_states=True) for name in names]

    async def played() -> list[Episode]:
        return await play_all(g, attempts, live, compose=RewardComposer(terms, roles, g.threads, g.timeout))

    episodes = asyncio.run(played())
    episode_metrics(episodes, roles, lambda _: 0)
    write_episodes(folder / "step_000001.parquet", episodes)
    read_episodes(folder / "step_000001.parquet")
    return {episode.task.id: episode for episode in episodes}


def as_they_were(episodes: Mapping[str, Episode]) -> list[Any]:
    """All of the good ones that must not depend on anybody else."""
    return [
        (
            name, episode.status, episode.success, [(t.reward, t.observation.text, dict(t.terms)) for t in episode.transitions],
            [action_bytes(action) for action in episode.actions],
        )
        for name, episode in episodes.items() if name in GOOD
    ]  # fmt: skip


def action_bytes(action: Action) -> Any:
    arrays = (action.prompt, action.tokens, action.log_probs)
    return action.id, action.sees, action.text, *(array.tobytes() for array in arrays)


def world(misdeeds: Mapping[str, tuple[str, Misdeed]], **changes: Any) -> Game:
    return game(World(misdeeds), "a", "b", **changes)  # type: ignore[arg-type]


def lost(episode: Episode, *words: str, place: bool = True) -> None:
    """It says what was lost, in which part, and where."""
    assert episode.status in ("failed", "timed_out")
    assert episode.transitions == () or episode.error.startswith("reward term")
    for word in words:
        assert word in episode.error
    assert len(episode.error) < LONGEST + 200
    assert PLACE.search(episode.error) or not place, episode.error


def unharmed(episodes: Mapping[str, Episode], terms: Sequence[Term], folder: Path) -> None:
    """The good episodes are, bit for bit, what they are where nobody does anything wrong."""
    calm = play_beside(world({}), [], folder, [Given() for _ in terms])
    assert as_they_were(episodes) == as_they_were(calm)
    assert [episode.status for name, episode in episodes.items() if name in GOOD] == ["terminated"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("error", ERRORS)
def test_whatever_an_environment_raises_loses_its_own_episode_alone(method: str, error: str, tmp_path: Path) -> None:
    g = world({"bad": (method, raising(error))})
    episodes = play_beside(g, ["bad"], tmp_path)
    if method == "close":
        assert episodes["bad"].status == "terminated"
        assert g.threads.not_closed == 1
    else:
        lost(episodes["bad"], f"environment World: {method}() raised")
    unharmed(episodes, (), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("misdeed", LOOPS)
def test_whatever_it_does_to_its_event_loop_loses_its_own_episode_alone(
    method: str, misdeed: str, tmp_path: Path
) -> None:
    episodes = play_beside(world({"bad": (method, LOOPS[misdeed])}, timeout=1.0), ["bad"], tmp_path)
    assert method == "close" or not episodes["bad"].scored
    unharmed(episodes, (), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS[:3])
@pytest.mark.parametrize("value", ANYTHING)
def test_whatever_it_returns_loses_its_own_episode_alone(method: str, value: str, tmp_path: Path) -> None:
    episodes = play_beside(world({"bad": (method, lambda: ANYTHING[value])}), ["bad"], tmp_path)
    lost(episodes["bad"], f"environment World: {method}()")
    unharmed(episodes, (), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_cannot_be_read_loses_its_own_episode_alone(step: str, tmp_path: Path) -> None:
    episodes = play_beside(world({"bad": ("step", lambda: STEPS[step])}), ["bad"], tmp_path)
    lost(episodes["bad"], "environment World: step()")
    unharmed(episodes, (), tmp_path)


@pytest.mark.parametrize("step", FINE_STEPS)
def test_odd_types_that_are_plain_are_read(step: str, tmp_path: Path) -> None:
    given, reward, success = FINE_STEPS[step]
    episode = play_beside(world({"odd": ("step", lambda: given)}), ["odd"], tmp_path)["odd"]
    assert (episode.status, episode.total_reward, episode.success) == ("terminated", reward, success)
    assert type(episode.total_reward) is float
    assert type(episode.success) in (bool, type(None))


@pytest.mark.parametrize("data", [{1: object()}, {"task": WorldSession}, None, "x", {"a": b"\xff"}])
def test_what_is_in_the_data_of_a_task_is_the_environments_own(data: Any, tmp_path: Path) -> None:
    g = world({})
    attempts = [Attempt(Task("odd", "?", data), "s"), Attempt(Task("good 0", "?"), "s")]
    episodes = asyncio.run(play_all(g, attempts, 2))
    write_episodes(tmp_path / "e.parquet", episodes)
    assert [episode.status for episode in read_episodes(tmp_path / "e.parquet")] == ["terminated"] * 2


@pytest.mark.slow
def test_whatever_hangs_loses_its_own_episode_alone_and_the_next_ones_get_other_threads(tmp_path: Path) -> None:
    misdeeds = {f"{how} in {method}": (method, HANGS[how]) for method in METHODS for how in HANGS}
    g = world(misdeeds, timeout=1.0)
    began = time.monotonic()
    episodes = play_beside(g, list(misdeeds), tmp_path, live=len(misdeeds))  # the good ones come after them
    assert time.monotonic() - began < 5.0  # before what blocks has come to an end
    for name, (method, _) in misdeeds.items():
        if method == "close":
            assert episodes[name].scored
        else:
            lost(episodes[name], f"environment World: {method}() took over 1 s", place=False)
    assert g.threads.not_closed == len(HANGS)
    unharmed(episodes, (), tmp_path)


@pytest.mark.slow
def test_a_run_goes_on_beside_all_that_and_its_good_episodes_are_the_same_to_the_bit(tmp_path: Path) -> None:
    """With the real engine, whose batches hold good and bad episodes side by side."""
    recorded = []
    for calm in (True, False):
        run = settings(
            "tiny", tmp_path, "--rollout.tasks_per_step", "20", "--rollout.samples_per_task", "1", "--training.steps", "1",
            name=f"calm {calm}".replace(" ", "-"), environment={"name": "tests.hostile:Bad", "calm": calm},
        )  # fmt: skip
        folder = RunFolder.create(run)
        train(run, folder)
        recorded.append(read_episodes(folder.episodes / "step_000001.parquet"))
    good = [[episode for episode in episodes if episode.task.id.startswith("good")] for episodes in recorded]
    assert len(good[0]) == len(good[1]) == 10
    for before, after in zip(*good, strict=True):
        assert after.status == "terminated"
        assert [action_bytes(a) for a in before.actions] == [action_bytes(a) for a in after.actions]
    lost_ones = [episode for episode in recorded[1] if not episode.scored]
    assert [episode.task.id.startswith("bad") for episode in lost_ones] == [True] * 10


@pytest.mark.slow
def test_a_close_that_blocks_costs_no_later_episode(tmp_path: Path) -> None:
    """One thread after the other: the next episode must not be given the one that still hangs."""
    g = world({f"bad {n}": ("close", HANGS["block"]) for n in range(2)}, timeout=0.7)
    episodes = play_beside(g, ["bad 0", "bad 1"], tmp_path, live=1)
    assert [episode.status for episode in episodes.values()] == ["terminated"] * 5
    assert (g.threads.given_up, g.threads.not_closed) == (2, 2)


@pytest.mark.slow
def test_a_session_whose_thread_still_hangs_is_closed_once_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its episode does not wait for that; what the session holds is let go of all the same."""
    free, closed = threading.Event(), threading.Event()

    async def close(session: WorldSession) -> None:
        if session.task.id == "bad":
            assert free.is_set()
            closed.set()

    monkeypatch.setattr(WorldSession, "close", close)
    g = world({"bad": ("step", lambda: free.wait(60))}, timeout=0.3)
    assert play_beside(g, ["bad"], tmp_path)["bad"].status == "timed_out"
    assert g.threads.given_up == 1
    assert not closed.is_set()
    free.set()
    assert closed.wait(30)


def test_what_a_session_leaves_running_ends_with_it(tmp_path: Path) -> None:
    left: list[asyncio.Task[None]] = []

    def leave() -> Any:
        async def spin() -> None:
            while True:
                await asyncio.sleep(0.001)

        left.append(asyncio.create_task(spin()))

    play_beside(world({"bad": ("close", leave)}), ["bad"], tmp_path)
    assert left[0].cancelled()


class Given(Term):
    """Gives each episode 1, but to the task ``bad`` whatever it is told to."""

    async def score(self, episode: Episode) -> Any:
        result = MISDEED[0]() if episode.task.id == "bad" else [TermReward(1.0) for _ in episode.transitions]
        return await result if asyncio.iscoroutine(result) else result


class Here(Given):
    own_timeout = True  # type: ignore[misc]  # so that it runs on the event loop that all episodes share


MISDEED: list[Misdeed] = [lambda: None]


@pytest.mark.slow
@pytest.mark.parametrize("term", [Given, Here])
@pytest.mark.parametrize("error", ERRORS)
def test_whatever_a_reward_term_raises_loses_its_own_episode_alone(
    error: str, term: type[Term], tmp_path: Path
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


@pytest.mark.slow
@pytest.mark.parametrize("how", HANGS)
def test_a_reward_term_that_hangs_loses_its_own_episode_alone(how: str, tmp_path: Path) -> None:
    MISDEED[0] = HANGS[how]
    episodes = play_beside(world({}, timeout=1.0), ["bad"], tmp_path, [Given()])
    assert (episodes["bad"].status, episodes["bad"].error) == ("timed_out", "reward term 'Given' took over 1 s")
    unharmed(episodes, [Given()], tmp_path)


class Unruly:
    """A chain, that does something else where the observation says ``bad``."""

    def __init__(self, misdeed: Misdeed) -> None:
        self.misdeed = misdeed

    async def act(self, observation: Observation, agents: Agents) -> Any:
        if "bad" in observation.text:
            result = self.misdeed()
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
    assert all(episode.scored for episode in episodes.values())


class Keeping:
    """Passes on what it kept from an earlier episode, or step."""

    def __init__(self, how: str) -> None:
        self.how, self.kept = how, list[Action]()

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        mine = await agents.a(observation)
        if "good 0" in observation.text:
            self.kept.append(mine)
            return JointAction(answer=await agents.b(observation, sees=[mine]))
        if "bad" not in observation.text:
            return JointAction(answer=await agents.b(observation, sees=[mine]))
        kept = self.kept[0]
        given: dict[str, Any] = {
            "sees": {"sees": [kept]},
            "an excerpt": {"sees": [mine, Excerpt(kept, "part")]},
            "begins": {"begins": kept},
            "a copy": {"sees": [replace(mine, text="changed")]},
            "a text": {"sees": ["a plan"]},
        }
        try:
            await agents.b(observation, **given.get(self.how, {"sees": [mine]}))
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
    class Remembers:
        def __init__(self) -> None:
            self.plan: Action | None = None

        async def act(self, observation: Observation, agents: Agents) -> JointAction:
            if self.plan is None:
                self.plan = await agents.a(observation)
                return JointAction()
            return JointAction(answer=await agents.b(observation, sees=[self.plan]))

    g = game(Script([goes_on(), ends()]), "a", "b", organization=Remembers())
    episode = asyncio.run(play(g, Attempt(Task("t", "?"), "s", critic_states=True)))
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
    assert len(call.output) < LONGEST + 100
    calm = play_beside(with_looking(lambda: "a door"), [], tmp_path)
    assert as_they_were(episodes) == as_they_were(calm)


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
