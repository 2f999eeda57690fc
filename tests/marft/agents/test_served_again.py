"""Episodes that are played again: recorded actions are served, and what is not the same fails the fork alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from marft.agents import episode_runner
from marft.agents.agents import ToolUse
from marft.agents.game import Replay
from marft.agents.organizations import Chain
from marft.common.seeds import derive_seed
from marft.common.types import Action, Episode, JointAction, Observation, ToolCall
from marft.config.interfaces.channel import Message
from marft.config.interfaces.organization import Agents
from tests.fakes import FakeEngine, Script, ends, game, goes_on
from tests.marft.agents.test_turns import TASK, doing, run


class Belt:
    """Stands in for an episode's tools; answers a repeated call with what ``answers`` says."""

    made: list[tuple[Any, ...]]
    answers: list[str]

    def __init__(self, *arguments: Any) -> None:
        Belt.made.append(arguments)

    async def replay(self, limits: Any, calls: Sequence[ToolCall]) -> list[ToolCall]:
        return [replace(call, output=answer) for call, answer in zip(calls, Belt.answers, strict=True)]

    async def close(self) -> None: ...


class TestServedAgain:
    @staticmethod
    def recorded(**changes: Any) -> Episode:
        return run(game(Script([goes_on(), ends()]), "a", "b"), **changes)

    @staticmethod
    def again(replay: Replay, script: Script | None = None, **changes: Any) -> Episode:
        engine = FakeEngine(lambda key, _: f"{key.agent} anew")
        g = game(script or Script([goes_on(), ends()]), "a", "b", engine=engine, **changes)
        return run(g, stream="train/0/fork", replay=replay)

    @staticmethod
    def replay(first: Episode, count: int, **changes: Any) -> Replay:
        shown = [transition.observation.text for transition in first.transitions]
        made = Replay(first.name, "train/0", 0, {a.id: a for a in first.actions[:count]}, observations=shown)
        return replace(made, **changes)

    def test_recorded_actions_are_served_and_the_first_that_is_not_names_the_fork(self) -> None:
        first = self.recorded()
        fork = self.again(self.replay(first, 2))
        assert [a.text for a in fork.actions] == ["a says 0", "b says 0", "a anew", "b anew"]
        assert fork.fork is not None
        assert (fork.fork.origin, fork.fork.at) == (first.name, "1/a/0")
        named = self.again(self.replay(first, 2, fork_id="0/b/0"))
        assert named.fork is not None
        assert named.fork.at == "0/b/0"
        assert first.fork is None

    def test_they_stand_where_they_are_asked_for_now(self) -> None:
        (b, a) = self.recorded().actions[1::-1]
        served = replace(b, prompt=a.prompt, index=7), replace(a, index=9)

        async def act(observation: Observation, agents: Agents) -> JointAction:
            return JointAction((await asyncio.gather(agents.a(observation), agents.a(observation)))[0])

        replay = Replay("origin", "train/0", 0, {"0/a/0": served[1]})
        fork = run(doing(act), stream="x", replay=replay)
        assert [(x.index, x.text) for x in fork.actions] == [(0, "a says 0"), (1, "a says 0")]

    @pytest.mark.parametrize(("step", "text"), [(0, "other"), (1, "other")])
    def test_an_environment_that_shows_something_else_fails_the_fork(self, step: int, text: str) -> None:
        first = self.recorded()
        script = Script(
            [goes_on(text=text if step else "next"), ends()], lambda: Observation("begin" if step else text)
        )
        episode = self.again(self.replay(first, 4), script)
        assert episode.error.startswith(f"replaying step {step}: the environment shows something else than recorded")
        beyond = self.again(self.replay(first, 2, observations=["begin"]), Script([goes_on(text="new"), ends()]))
        assert beyond.status == "terminated"

    def test_an_agent_that_sees_something_else_fails_the_fork_before_it_and_goes_on_after_it(self) -> None:
        first = self.recorded()
        wrong = self.replay(first, 1, actions={"0/a/0": replace(first.actions[0], prompt=np.zeros(3, np.int32))})
        assert self.again(wrong).error.startswith("replaying 0/a/0: the agent sees something else than recorded")
        at = self.replay(first, 1, fork_id="0/b/0", replaced_action=first.actions[1])
        assert self.again(at).status == "terminated"
        other = self.again(replace(at, replaced_action=replace(first.actions[1], prompt=np.zeros(3, np.int32))))
        assert other.error.startswith("replaying 0/b/0: the agent sees something else than recorded")
        later = self.replay(first, 4, actions={a.id: a for a in first.actions if a.id != "0/a/0"})
        assert [a.text for a in self.again(later).actions] == ["a anew", "b anew", "a says 1", "b says 1"]

    def test_tools_begin_under_the_seed_of_the_episode_that_is_played_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(episode_runner, "ToolExecutor", Belt)
        Belt.made, Belt.answers = [], []
        g = game(Script([goes_on(), ends()]), "a", "b", seed=3)
        first = run(g, sample=2)
        run(g, stream="fork", sample=7, replay=self.replay(first, 2, stream="train/0", sample=2))
        seed = derive_seed(3, "tools", "train/0", "t0", 2)
        assert Belt.made == [(g.tools, g.threads, g.engine, TASK, seed, ())] * 2

    @pytest.mark.parametrize("answer", ["as before", "as before, and more than is read", "otherwise"])
    def test_recorded_calls_are_made_again_and_have_to_answer_the_same(
        self, answer: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(episode_runner, "ToolExecutor", Belt)
        Belt.made, Belt.answers = [], [answer, "second"]
        first = self.recorded()
        calls = (ToolCall("look", output="as before"), ToolCall("go", output="second"))
        used = replace(first.actions[0], calls=calls)
        g = game(Script([goes_on(), ends()]), "a", "b")
        agents = tuple(replace(agent, tool_use=ToolUse(output_tokens=len("as before"))) for agent in g.team.agents)
        replay = self.replay(first, 1, actions={"0/a/0": used})
        episode = run(replace(g, team=replace(g.team, agents=agents)), stream="train/0/fork", replay=replay)
        if answer.startswith("as before"):
            assert episode.status == "terminated"
        else:
            assert episode.error.startswith("replaying 0/a/0: look answers something else than recorded")


def test_a_chain_goes_on_after_what_it_was_served() -> None:
    """Who looks on is not told of what was served: nobody was asked."""
    first = run(game(Script([ends()]), "a", "b", organization=Chain()))
    told: list[str] = []

    class Watcher:
        def on_observation(self, observation: Observation) -> None: ...
        def on_request(self, role: str, messages: Sequence[Message]) -> None:
            told.append(role)

        def on_action(self, action: Action) -> None: ...

    replay = Replay(first.name, "train/0", 0, {"0/a/0": first.actions[0]})
    run(replace(game(Script([ends()]), "a", "b"), callback=Watcher()), replay=replay, stream="fork")
    assert told == ["b"]
