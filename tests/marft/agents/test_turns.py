"""The team's side of an episode: what is recorded of an action, what an organization may do, and what is served again."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from marft.agents.game import Attempt, Game
from marft.agents.play import play
from marft.agents.prompt_messages import PromptTooLongError, TruncationPolicy
from marft.common.texts import MAX_ERROR_LENGTH
from marft.common.types import (
    Action,
    Choice,
    Completion,
    Episode,
    JointAction,
    Observation,
    Prompt,
    SamplingParams,
    Task,
)
from marft.config.interfaces.channel import Message
from marft.config.interfaces.organization import Agents, Organization
from tests.fakes import FakeEngine, FakeRenderer, Script, ends, game, goes_on

TASK = Task("t0", "begin")
Acts = Callable[[Observation, Agents], Awaitable[Any]]


def run(g: Game, **changes: Any) -> Episode:
    return asyncio.run(play(g, Attempt(**{"task": TASK, "stream": "train/0", **changes})))


class Doing(Organization):
    """An organization that is one function."""

    _acts: Acts

    def __init__(self, acts: Acts) -> None:
        super().__init__()
        self._acts = acts

    async def act(self, observation: Observation, agents: Agents) -> Any:
        return await self._acts(observation, agents)


def doing(acts: Acts, *roles: str, steps: int = 1, **changes: Any) -> Game:
    script = Script([goes_on()] * (steps - 1) + [ends()])
    return game(script, *(roles or ("a", "b")), organization=Doing(acts), **changes)


def failed(g: Game, status: str, *words: str, **changes: Any) -> Episode:
    episode = run(g, **changes)
    assert episode.status == status
    assert all(word in episode.error for word in words), episode.error
    return episode


@dataclass
class Seen(FakeRenderer):
    """Keeps for how many tokens each prompt had to leave room, and cuts a token off each."""

    room: list[int] = field(default_factory=list)

    def render(self, *arguments: Any, reserve: int, cut: TruncationPolicy) -> Prompt:
        self.room.append(reserve)
        return replace(super().render(*arguments, reserve=reserve, cut=cut), truncated_tokens=len(self.room))


class TestWhatIsRecorded:
    def test_an_action_has_its_times_and_what_it_read(self) -> None:
        class Slow(FakeEngine):
            async def sample(self, *arguments: Any) -> Any:
                await asyncio.sleep(0.01)
                return await super().sample(*arguments)

        g = game(Script([goes_on(), ends()]), "a", "b", engine=Slow())
        before = time.time()
        episode = run(replace(g, renderer=Seen()))
        assert before <= episode.start_time <= time.time() - episode.seconds + 0.01
        times = [t for action in episode.actions for t in (action.started, action.ended)]
        assert times == sorted(times)
        assert all(action.ended - action.started >= 0.009 for action in episode.actions)
        assert 0 < times[0] < times[-1] <= episode.seconds < 5
        assert [action.index for action in episode.actions] == [0, 1, 2, 3]
        assert [action.truncated_tokens for action in episode.actions] == [1, 2, 3, 4]
        assert episode.actions[1].message_tokens == (len("a says 0"),)

    def test_room_is_left_for_what_an_agent_may_write(self) -> None:
        async def act(observation: Observation, agents: Agents) -> JointAction:
            first = await agents.a(observation)
            await agents.b(observation, begins=first)
            await agents.b.choose(observation, ["yes", "no, never"])
            return JointAction()

        renderer, engine = Seen(), FakeEngine(lambda key, _: "yes" if (key.agent, key.call) == ("b", 1) else "five5")
        g = replace(doing(act, engine=engine), renderer=renderer)
        agents = tuple(replace(agent, sampling=SamplingParams(max_new_tokens=7)) for agent in g.team.agents)
        episode = run(replace(g, team=replace(g.team, agents=agents)))
        assert renderer.room == [7, 5 + 7, len("no, never")]
        assert [action.sees for action in episode.actions] == [(), ("0/a/0",), ()]
        assert episode.actions[1].message_tokens == (0,)  # read as the agent's own turn, not as a message
        assert episode.actions[2].choice is not None

    def test_calls_are_numbered_within_a_step_and_indices_go_on(self) -> None:
        async def act(observation: Observation, agents: Agents) -> JointAction:
            await asyncio.gather(agents.b(observation), agents.a(observation), agents.b(observation))
            return JointAction()

        episode = run(doing(act, steps=2))
        assert [a.id for a in episode.actions] == ["0/b/0", "0/a/0", "0/b/1", "1/b/0", "1/a/0", "1/b/1"]
        assert [a.index for a in episode.actions] == list(range(6))

    def test_actions_are_in_the_order_asked_for_whoever_answers_first(self) -> None:
        class Uneven(FakeEngine):
            async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: Any) -> Any:
                for _ in range(9 if key.agent == "a" else 1):
                    await asyncio.sleep(0)
                return await super().sample(policy, prompt, sampling, key)

        async def act(observation: Observation, agents: Agents) -> JointAction:
            await asyncio.gather(agents.a(observation), agents.b(observation))
            return JointAction()

        answers: list[str] = []
        g = doing(act, engine=Uneven())
        g.environment.steps[0] = lambda joint: (answers.append(joint.answer.id), ends()(joint))[1]  # type: ignore[attr-defined]
        assert [a.id for a in run(g).actions] == ["0/a/0", "0/b/0"]
        assert answers == ["0/b/0"]

    def test_the_last_action_of_those_who_answer_is_the_answer_where_the_team_names_none(self) -> None:
        answers: list[str | None] = []

        async def act(observation: Observation, agents: Agents) -> JointAction:
            named = [await agents[role](observation) for role in ("b", "b", "a")]
            return JointAction(named[0] if len(answers) == 1 else None)

        async def silent(observation: Observation, agents: Agents) -> JointAction:
            await agents.a(observation)
            return JointAction()

        grade = lambda joint: (answers.append(joint.answer and joint.answer.id), goes_on()(joint))[1]  # noqa: E731
        g = doing(act, steps=1)
        run(replace(g, environment=Script([grade, grade]), max_steps=2))
        run(replace(doing(silent), environment=Script([grade]), max_steps=1))
        assert answers == ["0/b/1", "1/b/0", None]

    def test_success_is_what_the_environment_said_last(self) -> None:
        script = Script([goes_on(success=True), goes_on(success=False), ends()])
        assert run(game(script)).success is False
        assert run(game(Script([ends()]))).success is None

    def test_a_last_step_that_says_nothing_of_success_unsays_no_earlier_one(self) -> None:
        script = Script([goes_on(success=False), goes_on(success=True), ends(success=None)])
        assert run(game(script)).success is True

    def test_a_long_error_is_cut_where_it_has_been_said_twice_over(self) -> None:
        async def act(observation: Observation, agents: Agents) -> JointAction:
            await agents.a(observation, sees=[replace(await agents.a(observation), text="x")])
            return JointAction()

        class Wordy(FakeRenderer):
            def render(self, *_: Any, reserve: int, cut: TruncationPolicy) -> Prompt:
                raise PromptTooLongError("e" * 3 * MAX_ERROR_LENGTH)

        episode = failed(replace(doing(act), renderer=Wordy()), "failed")
        assert episode.error.startswith("e" * 2 * MAX_ERROR_LENGTH + " …")

    def test_who_looks_on_is_told_what_is_shown_asked_and_said(self) -> None:
        told: list[Any] = []

        class Watcher:
            def on_observation(self, observation: Observation) -> None:
                told.append(observation.text)

            def on_request(self, role: str, messages: Sequence[Message]) -> None:
                told.append((role, [message.text for message in messages]))

            def on_action(self, action: Action) -> None:
                told.append(action.id)

        run(replace(game(Script([ends()]), "a", "b"), callback=Watcher()))
        assert told == ["begin", ("a", []), "0/a/0", ("b", ["a says 0"]), "0/b/0"]


class TestWhatACriticReads:
    def test_what_was_said_before_and_not_seen_stands_in_the_order_asked_for(self) -> None:
        """c saw b alone: its state has a and b; d was asked for at once with c and stands in nobody's but its own."""

        async def act(observation: Observation, agents: Agents) -> JointAction:
            first, second = await agents.a(observation), await agents.b(observation)
            await asyncio.gather(agents.c(observation, sees=[second]), agents.d(observation, sees=[first, second]))
            return JointAction(second)

        episode = run(doing(act, "a", "b", "c", "d"), record_critic_states=True)
        states = [None if a.state is None else bytes(a.state.astype(np.uint8)).decode() for a in episode.actions]
        assert states[0] is None
        heard = [[who for who in "abcd" if f"Message from {who}" in (state or "")] for state in states]
        assert heard == [[], ["a"], ["a", "b"], ["a", "b", "c"]]
        assert str(states[2]).index("Message from a") < str(states[2]).index("Message from b")
        assert all(action.state is None for action in run(doing(act, "a", "b", "c", "d")).actions)

    def test_it_is_cut_where_it_is_too_long_even_if_the_agents_own_prompt_may_not_be(self) -> None:
        class Narrow(FakeRenderer):
            def render(self, *arguments: Any, reserve: int, cut: TruncationPolicy) -> Prompt:
                prompt = super().render(*arguments, reserve=reserve, cut=cut)
                if cut.target != "none":
                    return replace(prompt, ids=prompt.ids[:5])
                if b"from a" in prompt.ids.astype(np.uint8).tobytes():
                    raise PromptTooLongError("too long")
                return prompt

        async def act(observation: Observation, agents: Agents) -> JointAction:
            await agents.a(observation)
            return JointAction(await agents.b(observation))

        g = replace(doing(act), renderer=Narrow())
        agents = tuple(replace(agent, cut=TruncationPolicy("none")) for agent in g.team.agents)
        episode = run(replace(g, team=replace(g.team, agents=agents)), record_critic_states=True)
        assert episode.status == "terminated"
        assert len(episode.actions[1].prompt) > 5
        assert episode.actions[1].state is not None
        assert len(episode.actions[1].state) == 5

    def test_the_end_is_read_by_those_who_acted_last_first_and_by_nobody_where_nobody_acted(self) -> None:
        async def act(observation: Observation, agents: Agents) -> JointAction:
            for role in {"begin": "abc", "next": "cb"}[observation.text]:
                await agents[role](observation)
            return JointAction()

        async def idle(observation: Observation, agents: Agents) -> JointAction:
            return JointAction()

        g = game(Script([goes_on()] * 3), "a", "b", "c", organization=Doing(act), max_steps=2)
        assert list(run(g, record_critic_states=True).bootstrap) == ["c", "b", "a"]
        idler = game(Script([goes_on()] * 3), "a", organization=Doing(idle), max_steps=2)
        assert run(idler, record_critic_states=True).bootstrap == {}


class TestLogProbs:
    @pytest.mark.parametrize(("numbers", "fine"), [
        ((-1.0, -2.0), True), ((-1.0, -math.inf), False), ((math.nan, -1.0), False), ((math.inf, math.inf), False)
    ])  # fmt: skip
    def test_of_what_is_written_are_finite(self, numbers: tuple[float, ...], fine: bool) -> None:
        class Odd(FakeEngine):
            async def sample(self, *_: Any) -> Completion:
                return Completion(np.array([1, 2], np.int32), np.array(numbers, np.float32), "ab", "stop")

        episode = run(game(Script([ends()]), engine=Odd()))
        assert (episode.status == "terminated") == fine
        assert fine or episode.error == "a sampled a token whose log-prob is not a finite number"

    @pytest.mark.parametrize(("numbers", "fine"), [
        ((-1.0, -math.inf), True), ((-1.0, math.nan), False), ((-math.inf, -1.0), False)
    ])  # fmt: skip
    def test_an_option_that_was_not_chosen_may_be_impossible(self, numbers: tuple[float, ...], fine: bool) -> None:
        class Odd(FakeEngine):
            async def choose(self, policy: Any, prompt: Any, options: Any, sampling: Any, key: Any) -> Any:
                return Choice(tuple(options), 0, np.array(numbers, np.float32)), 0

        async def act(observation: Observation, agents: Agents) -> JointAction:
            return JointAction(await agents.a.choose(observation, ["yes", "no"]))

        assert (run(doing(act, engine=Odd())).status == "terminated") == fine
