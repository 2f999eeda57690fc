"""Traces played again: a recipe's own game, in which what its agents sample is what the trace's agents said.

So prompts, channels, tools, sessions and rewards are made by the code that plays, and what comes of it is an episode
like any other, but for one thing: nobody sampled its tokens, so nothing is known of how likely they were.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from marft.agents.agents import Agent, Agents
from marft.agents.chat import Chat, ChatRefusedError
from marft.agents.rendering import arguments_of
from marft.agents.tool_sources import StatelessSource
from marft.common.errors import EpisodeFailedError
from marft.common.types import (
    ActionKey,
    Choice,
    Completion,
    JointAction,
    Observation,
    Option,
    Prompt,
    Sampling,
    Step,
    Task,
    Tool,
    ToolCall,
    Versions,
)
from marft.inference.renderer import ChatRenderer
from marft_serve.traces.record import Tally, TracedTurn, UnreadableError
from marft_serve.traces.turns import Thinking, refuse_unknown_calls, turn_ids


class Retelling(NamedTuple):
    """A turn that was said again: of which action it is, how many tokens it came to, and what it was said to."""

    key: ActionKey
    turn: TracedTurn
    tokens: int
    prompt: Prompt


@dataclass(slots=True, eq=False)
class Retold:
    """What of a trace has been said again so far: the sampler of one episode.

    Args:
        turns: each with the role whose it is, in their order.
        problem: why the episode cannot be had, once that is known.
    """

    turns: Sequence[tuple[str, TracedTurn]]
    renderer: ChatRenderer
    thinking: Thinking
    said: list[Retelling] = field(default_factory=list)
    problem: str = ""
    _waiting: dict[str, deque[TracedTurn]] = field(default_factory=lambda: defaultdict(deque))

    def __post_init__(self) -> None:
        for role, turn in self.turns:
            self._waiting[role].append(turn)

    async def sample(self, policy: str, prompt: Prompt, sampling: Sampling, key: ActionKey) -> Completion:
        """The next turn that the trace has of the agent.

        Raises:
            EpisodeFailedError: it has none, or the model cannot say it.
        """
        del sampling
        turn = self._next(key)
        try:
            ids = turn_ids(self.renderer, policy, prompt.chat, prompt.tools, turn, self.thinking)
        except UnreadableError as error:
            raise EpisodeFailedError("failed", f"{turn.place}: {error}") from error
        self.said.append(Retelling(key, turn, len(ids), prompt))
        return Completion(
            tokens=ids,
            log_probs=np.zeros(len(ids), np.float32),
            text=self.renderer.spelled(policy, ids),
            finish="stop" if turn.whole else "length",
            calls=turn.calls if self.renderer.formats[policy].remote else None,
            usage=turn.usage,
        )

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: Sampling, key: ActionKey
    ) -> tuple[Choice, Versions]:
        """The option that the trace's next turn names.

        Raises:
            EpisodeFailedError: it names none.
        """
        del sampling
        turn = self._next(key)
        wanted = self.renderer.option(policy, turn.text.strip())
        chosen = next((n for n, option in enumerate(options) if np.array_equal(option.tokens, wanted)), None)
        if chosen is None:
            raise EpisodeFailedError(
                "failed", f"{turn.place}: {key.agent} has to choose from a list, and said none of it"
            )
        self.said.append(Retelling(key, turn, 1, prompt))
        return Choice(tuple(options), chosen, np.zeros(len(options), np.float32), turn.usage), Versions()

    def external_wait(self) -> AbstractContextManager[None]:
        """Nobody waits for anybody: what is said is there."""
        return nullcontext()

    def drop(self, role: str) -> None:
        """Pass over an agent's next turn."""
        self._waiting[role].popleft()

    def unsaid(self) -> Iterator[tuple[str, TracedTurn]]:
        """Turns that nobody asked for, with whose they are."""
        for role, turns in self._waiting.items():
            yield from ((role, turn) for turn in turns)

    def _next(self, key: ActionKey) -> TracedTurn:
        if not self._waiting[key.agent]:
            count = sum(role == key.agent for role, _ in self.turns)
            raise EpisodeFailedError(
                "failed", f"the team asks {key.agent} more often than the trace has turns of it ({count})"
            )
        return self._waiting[key.agent].popleft()


@dataclass(frozen=True, slots=True, eq=False)
class Narrator:
    """The organization of an episode that goes by a trace's own messages: each turn is asked for as a program would."""

    retold: Retold
    tally: Tally
    equipped: bool = False  # agents have the recipe's tools, not those that their requests bring

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """All turns, in their order, in one step of the environment."""
        ids: dict[str, str] = {}
        for role, turn in self.retold.turns:
            sees = tuple(ids[name] for name in turn.parents if name in ids) or None
            chat = Chat(turn.messages, turn.tools, calls=bool(turn.calls), sees=sees)
            try:
                self._check(agents[role].agent, turn)
                reply = await agents[role].reply(observation, chat)
            except (ChatRefusedError, UnreadableError) as error:
                self.retold.drop(role)
                self.tally.skip("turn", str(error), turn.place)
                continue
            ids[turn.id] = reply.action.id
        return JointAction()

    def _check(self, agent: Agent, turn: TracedTurn) -> None:
        """
        Raises:
            UnreadableError: the model cannot say the turn, or the agent has not the tools that it calls.
        """
        if self.equipped:
            refuse_unknown_calls(turn, agent.profile.tools)
        turn_ids(self.retold.renderer, agent.policy, turn.messages, turn.tools, turn, self.retold.thinking)


class RecordedTools(StatelessSource):
    """Tools that answer what they answered when the trace was recorded."""

    def __init__(self, offered: Sequence[Tool], retold: Retold) -> None:
        self.offered, self.retold = offered, retold
        self._answers: dict[str, deque[ToolCall]] = defaultdict(deque)
        for _, turn in retold.turns:
            for call in (one for place, one in enumerate(turn.calls) if place not in turn.unanswered):
                self._answers[_call_key(call.name, arguments_of(call.arguments))].append(call)

    @property
    def tools(self) -> Sequence[Tool]:
        """What agents are told of them: what the recipe's own say."""
        return self.offered

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """What the trace has as the answer. Where it has none the episode is lost."""
        answers = self._answers[_call_key(tool, arguments)]
        if not answers:
            self.retold.problem = f"the trace does not say what {tool!r} answered"
            return ""
        return answers.popleft().output


def _call_key(tool: str, arguments: Mapping[str, object]) -> str:
    return f"{tool} {json.dumps(arguments, sort_keys=True, default=str)}"


@dataclass(frozen=True, slots=True)
class Untold:
    """The environment of a task that the recipe's does not know: it shows the question, and grades nothing."""

    def tasks(self, split: str) -> Sequence[Task]:  # noqa: ARG002
        """None of its own."""
        return []

    def start(self, task: Task, seed: int) -> _Question:  # noqa: ARG002
        """A session of one step."""
        return _Question(task)


@dataclass(frozen=True, slots=True)
class _Question:
    task: Task

    async def reset(self) -> Observation:
        return Observation(self.task.prompt)

    async def step(self, actions: JointAction) -> Step:  # noqa: ARG002
        return Step(Observation(""), 0.0, terminated=True)

    async def close(self) -> None:
        return
