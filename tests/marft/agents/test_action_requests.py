"""What a request for an action passes on to observers and to the sampler, and what the action says of reasoning."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from marft.agents.game import Game
from marft.agents.streaming import ActionStart, TokenStream
from marft.common.types import Action, JointAction, Observation
from marft.config.interfaces.channel import Message
from marft.config.interfaces.organization import Agents
from tests.fakes import FakeEngine, FakeRenderer, Script, ends, game
from tests.marft.agents.test_turns import doing, run


@dataclass
class Watcher:
    """Callback with a token stream for one role."""

    role: str
    stream: TokenStream = field(default_factory=TokenStream)
    requests: list[tuple[str, list[str]]] = field(default_factory=list)

    def on_observation(self, observation: Observation) -> None:
        """Ignore an observation."""

    def on_request(self, role: str, messages: Sequence[Message]) -> TokenStream | None:
        self.requests.append((role, [message.text for message in messages]))
        return self.stream if role == self.role else None

    def on_action(self, action: Action) -> None:
        """Ignore an action."""


def test_a_stream_from_a_callback_learns_which_action_it_carries() -> None:
    watcher = Watcher("b")
    episode = run(game(Script([ends()]), "a", "b", callback=watcher))
    second = episode.actions[1]
    assert watcher.requests == [("a", []), ("b", ["a says 0"])]
    assert watcher.stream.start == ActionStart("0/b/0", "b", len(second.prompt), ("0/a/0",), "")
    assert watcher.stream.make_text_stream is not None  # the sampler took it


@dataclass
class Reasoning(FakeRenderer):
    """Renderer that finds ``length`` characters of reasoning in every text, and keeps what it was asked."""

    length: int = 3
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    def reasoning_length(self, policy: str, text: str, prefix: str = "") -> int:
        self.asked.append((policy, text, prefix))
        return self.length


def thinking(g: Game, how: str) -> Game:
    agents = tuple(replace(agent, thinking=how) for agent in g.team.agents)
    return replace(g, team=replace(g.team, agents=agents))


@pytest.mark.parametrize(("how", "thought"), [("drop", 3), ("keep", 0)])
def test_dropped_reasoning_is_measured_in_the_text(how: str, thought: int) -> None:
    renderer = Reasoning()
    (action,) = run(thinking(replace(game(Script([ends()]), "a"), renderer=renderer), how)).actions
    assert renderer.asked == [("a", "a says 0", "")]
    assert (action.thought, action.only_thought) == (thought, False)


@pytest.mark.parametrize(("text", "is_reasoning"), [("a thought", True), ("x", True), ("", False)])
def test_a_text_may_be_reasoning_alone(text: str, is_reasoning: bool) -> None:
    g = game(Script([ends()]), "a", engine=FakeEngine(lambda *_: text))
    (action,) = run(thinking(replace(g, renderer=Reasoning(length=len(text))), "drop")).actions
    assert (action.text, action.thought, action.only_thought) == (text, len(text), is_reasoning)


def test_a_choice_has_no_reasoning() -> None:
    async def act(observation: Observation, agents: Agents) -> JointAction:
        await agents.a.choose(observation, ["y", "n"])
        return JointAction()

    renderer = Reasoning(length=1)
    g = thinking(replace(doing(act, "a", engine=FakeEngine(lambda *_: "y")), renderer=renderer), "drop")
    (action,) = run(g).actions
    assert (action.text, action.thought, action.only_thought) == ("y", 0, False)
    assert not renderer.asked


def test_an_engine_error_of_an_abandoned_request_does_not_end_a_later_step() -> None:
    class Failing(FakeEngine):
        async def sample(self, *arguments: Any) -> Any:
            if arguments[-1].agent == "b":
                await asyncio.sleep(0.01)
                raise RuntimeError("out of memory")
            return await super().sample(*arguments)

    abandoned = set()

    async def act(observation: Observation, agents: Agents) -> JointAction:
        if not abandoned:
            abandoned.add(asyncio.ensure_future(agents.b(observation)))
            await asyncio.sleep(0)
        else:
            await asyncio.wait(abandoned)
        return JointAction(answer=await agents.a(observation))

    episode = run(doing(act, steps=2, engine=Failing()))
    assert (episode.status, [action.id for action in episode.actions]) == ("terminated", ["0/a/0", "1/a/0"])
    assert isinstance(abandoned.pop().exception(), RuntimeError)
