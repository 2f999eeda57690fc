"""What an organization may do in its turn, and what becomes of it otherwise."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from marft.agents import episode_runner
from marft.agents.game import Attempt
from marft.agents.play import play
from marft.common.errors import EpisodeFailedError
from marft.common.types import (
    Action,
    ActionKey,
    Completion,
    Episode,
    JointAction,
    Observation,
    Prompt,
    SamplingParams,
)
from marft.config.interfaces.organization import Agents, MessageOverride
from tests.fakes import FakeEngine, Script, ends
from tests.marft.agents.test_turns import TASK, doing, failed, run


class Broken(FakeEngine):
    async def sample(self, *_: Any) -> Any:
        await asyncio.sleep(0)
        raise RuntimeError("out of memory")


class TestOrganizations:
    @pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(3), KeyboardInterrupt()])
    def test_one_that_raises_loses_its_episode_and_is_named(self, error: BaseException) -> None:
        async def act(observation: Observation, agents: Agents) -> JointAction:
            raise error

        failed(doing(act), "failed", "the organization Doing raised", type(error).__name__)

    @pytest.mark.parametrize("wraps", [True, False])
    def test_what_an_engine_raised_comes_out_whatever_is_made_of_it(self, wraps: bool) -> None:
        async def act(observation: Observation, agents: Agents) -> JointAction:
            try:
                await agents.a(observation)
            except RuntimeError as error:
                caught.append(str(error))
                if wraps:
                    raise ValueError("something went wrong") from error
            return JointAction()

        caught: list[str] = []
        with pytest.raises(RuntimeError, match="out of memory"):
            run(doing(act, engine=Broken()))
        assert caught == ["out of memory"]

    def test_one_that_returns_something_else_is_told_what_it_should(self) -> None:
        async def act(observation: Observation, agents: Agents) -> Any:
            return await agents.a(observation)

        failed(doing(act), "failed", "the organization returned Action, not marft.common.types.JointAction")

    def test_one_that_waits_for_nobody_is_ended_and_given_time_to_come_to_its_end(self) -> None:
        ended: list[str] = []

        async def act(observation: Observation, agents: Agents) -> JointAction:
            await agents.a(observation)
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.01)
                ended.append("whole")
            return JointAction()

        async def played() -> Episode:
            episode = await play(doing(act, timeout=0.05), Attempt(TASK, "train/0"))
            assert ended == ["whole"]
            return episode

        episode = asyncio.run(played())
        assert episode.status == "timed_out"
        assert episode.error == "the organization Doing waited over 0.05 s for no agent"

    def test_an_episode_that_is_cancelled_is_no_failure_of_its_organization(self) -> None:
        async def act(observation: Observation, agents: Agents) -> JointAction:
            await asyncio.sleep(60)
            return JointAction()

        async def called_off() -> None:
            playing = asyncio.ensure_future(play(doing(act), Attempt(TASK, "train/0")))
            await asyncio.sleep(0.05)
            playing.cancel()
            await playing

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(called_off())

    def test_one_that_will_not_end_is_left_behind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(episode_runner, "GRACE_SECONDS", 0.02)

        async def act(observation: Observation, agents: Agents) -> JointAction:
            for _ in range(2):
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    continue
            return JointAction()

        async def within() -> Episode:
            return await asyncio.wait_for(play(doing(act, timeout=0.02), Attempt(TASK, "train/0")), 2.0)

        assert asyncio.run(within()).status == "timed_out"

    @pytest.mark.parametrize("asks", [1, 4])
    def test_one_that_waits_for_agents_may_take_longer_than_that(self, asks: int) -> None:
        class Slow(FakeEngine):
            async def sample(self, *arguments: Any) -> Any:
                await asyncio.sleep(0.15 / asks)
                return await super().sample(*arguments)

        async def act(observation: Observation, agents: Agents) -> JointAction:
            for _ in range(asks):
                await agents.a(observation)
                await asyncio.sleep(0.02)
            return JointAction()

        assert run(doing(act, timeout=0.05, engine=Slow())).status == "terminated"

    def test_nobody_acts_once_it_has_ended(self) -> None:
        """Neither is what comes of an action recorded that nobody waited for, nor may one begin in the next step."""
        left: list[asyncio.Task[Any]] = []
        said: list[str] = []

        class Slow(FakeEngine):
            async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: Any) -> Any:
                await asyncio.sleep(0.05 if key.agent == "a" else 0)
                return await super().sample(policy, prompt, sampling, key)

        async def act(observation: Observation, agents: Agents) -> JointAction:
            if not left:
                left.append(asyncio.ensure_future(agents.a(observation)))
                kept.append(agents)
            else:
                await asyncio.sleep(0.1)
                try:
                    await kept[0].b(observation)
                except EpisodeFailedError as error:
                    said.append(str(error))
            return JointAction(await agents.b(observation))

        kept: list[Agents] = []
        episode = run(doing(act, steps=2, engine=Slow()))
        assert [action.id for action in episode.actions] == ["0/b/0", "1/b/0"]
        assert episode.status == "terminated"
        assert "a acts after act() has ended; await all that it starts" in str(left[0].exception())
        assert said == ["b acts after act() has ended; await all that it starts"]

    def test_what_is_said_while_the_environment_steps_is_not_recorded(self) -> None:
        class Slow(FakeEngine):
            async def sample(self, *arguments: Any) -> Any:
                await asyncio.sleep(0.02)
                return await super().sample(*arguments)

        left: list[asyncio.Task[Any]] = []

        async def act(observation: Observation, agents: Agents) -> JointAction:
            left.append(asyncio.ensure_future(agents.a(observation)))
            await asyncio.sleep(0)
            return JointAction()

        script = Script([lambda joint: (time.sleep(0.06), ends()(joint))[1]])
        episode = run(replace(doing(act, engine=Slow()), environment=script))
        assert (episode.status, episode.actions) == ("terminated", ())
        assert "acts after act() has ended" in str(left[0].exception())

    def test_nobody_hears_of_late_words_that_nobody_waits_for(self) -> None:
        """asyncio would complain to the terminal of an error that is never looked at."""

        class Slow(FakeEngine):
            async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
                await asyncio.sleep(0.05)
                return await super().sample(policy, prompt, sampling, key)

        async def act(observation: Observation, agents: Agents) -> JointAction:
            asyncio.ensure_future(agents.a(observation))  # noqa: RUF006
            await asyncio.sleep(0.01)
            return JointAction()

        async def played() -> list[dict[str, Any]]:
            complaints: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
            await play(replace(doing(act), engine=Slow()), Attempt(TASK, "train/0"))
            await asyncio.sleep(0.2)
            gc.collect()
            return complaints

        assert asyncio.run(played()) == []

    def test_what_an_agent_is_shown_has_to_be_whole(self) -> None:
        async def act(observation: Observation, agents: Agents) -> JointAction:
            return JointAction(await agents.a(replace(observation, text="half \ud83d")))

        failed(doing(act), "failed", "the organization, asking a, ", "no whole text")

    @pytest.mark.parametrize("does", ["sees", "begins with", "answers with"])
    @pytest.mark.parametrize("kind", ["copy", "stranger", "text"])
    def test_only_actions_of_this_episode_as_they_were_returned_are_passed_on(self, does: str, kind: str) -> None:
        """And an organization that goes on as if nothing was wrong loses its episode even so."""
        others = {"stranger": "0/a/0 of the episode eval/3 t0 #5", "copy": "a changed copy of 0/a/0", "text": "a str"}
        remedies = {"stranger": "keeps no actions", "copy": "pass on an Excerpt", "text": "seats have returned"}
        (stranger,) = run(doing(_asks_a), stream="eval/3", sample=5).actions

        async def act(observation: Observation, agents: Agents) -> JointAction:
            mine = await agents.a(observation)
            await agents.b(observation, sees=[mine, MessageOverride(mine, "some of it")])
            given: Any = {"stranger": replace(stranger), "copy": replace(mine, text="other"), "text": "a text"}[kind]
            if does == "answers with":
                return JointAction(given)
            with suppress(EpisodeFailedError):
                await (agents.b(observation, [given]) if does == "sees" else agents.b(observation, begins=given))
            return JointAction(mine)

        who, engine = "the team" if does == "answers with" else "b", FakeEngine()
        failed(
            doing(act, engine=engine),
            "failed",
            f"{who} {does} {others[kind]}",
            "no action of this episode",
            remedies[kind],
        )
        assert len(engine.asked) == 2  # nobody acts on it

    def test_what_was_said_in_an_earlier_step_may_be_passed_on(self) -> None:
        said: list[Action] = []

        async def act(observation: Observation, agents: Agents) -> JointAction:
            said.append(await agents.a(observation, sees=said))
            return JointAction(said[0])

        assert [a.sees for a in run(doing(act, steps=3)).actions] == [(), ("0/a/0",), ("0/a/0", "1/a/0")]


async def _asks_a(observation: Observation, agents: Agents) -> JointAction:
    return JointAction(await agents.a(observation))
