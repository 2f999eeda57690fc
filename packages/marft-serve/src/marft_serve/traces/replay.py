"""Replay traces in a recipe's environment and team, with recorded instead of sampled answers.

The usual code creates prompts, channels, tools, sessions and rewards. So a replayed trace is an ordinary episode,
with one exception: its tokens were not sampled, so their log-probabilities are unknown.
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
from marft.agents.prompt_messages import parse_arguments
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
    SamplingParams,
    Step,
    Task,
    Tool,
    ToolCall,
    VersionRange,
)
from marft.inference.renderer import ChatRenderer
from marft_serve.traces.turn_tokens import Thinking, check_known_tools, encode_turn
from marft_serve.traces.types import SkipCounter, TracedTurn, UnreadableError


class ReplayedTurn(NamedTuple):
    """Replayed turn.

    Args:
        key: key of its action.
        turn: the turn.
        tokens: number of tokens.
        prompt: prompt of the turn.
    """

    key: ActionKey
    turn: TracedTurn
    tokens: int
    prompt: Prompt


@dataclass(slots=True, eq=False)
class ReplayEngine:
    """Sampler for one episode, with a trace's turns instead of generation.

    Args:
        turns: turns in order, each with its role.
        renderer: renderer of the chat templates.
        thinking: ``keep`` or ``skip_turn`` recorded reasoning.
        replayed: turns replayed so far.
        problem: reason why the episode cannot be replayed; "" without one.
    """

    turns: Sequence[tuple[str, TracedTurn]]
    renderer: ChatRenderer
    thinking: Thinking
    replayed: list[ReplayedTurn] = field(default_factory=list)
    problem: str = ""
    _pending: dict[str, deque[TracedTurn]] = field(default_factory=lambda: defaultdict(deque))

    def __post_init__(self) -> None:
        for role, turn in self.turns:
            self._pending[role].append(turn)

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        """Return the agent's next turn in the trace.

        Raises:
            EpisodeFailedError: the trace has no further turn of the agent, or the model's chat template cannot
                represent it.
        """
        del sampling
        turn = self._take_next_turn(key)
        try:
            ids = encode_turn(self.renderer, policy, prompt.chat, prompt.tools, turn, self.thinking)
        except UnreadableError as error:
            raise EpisodeFailedError("failed", f"{turn.location}: {error}") from error
        self.replayed.append(ReplayedTurn(key, turn, len(ids), prompt))
        return Completion(
            tokens=ids,
            log_probs=np.zeros(len(ids), np.float32),
            text=self.renderer.decode_tokens(policy, ids),
            finish="stop" if turn.complete else "length",
            calls=turn.calls if self.renderer.formats[policy].remote else None,
            usage=turn.usage,
        )

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: SamplingParams, key: ActionKey
    ) -> tuple[Choice, VersionRange]:
        """Return the option named by the agent's next turn in the trace.

        Raises:
            EpisodeFailedError: the trace has no further turn of the agent, or the turn names no option.
        """
        del sampling
        turn = self._take_next_turn(key)
        answer_ids = self.renderer.option(policy, turn.text.strip())
        chosen = next((n for n, option in enumerate(options) if np.array_equal(option.tokens, answer_ids)), None)
        if chosen is None:
            raise EpisodeFailedError(
                "failed", f"{turn.location}: {key.agent} has to choose from a list, and said none of it"
            )
        self.replayed.append(ReplayedTurn(key, turn, 1, prompt))
        return Choice(tuple(options), chosen, np.zeros(len(options), np.float32), turn.usage), VersionRange()

    def external_wait(self) -> AbstractContextManager[None]:
        """No-op: replies are immediate."""
        return nullcontext()

    def skip_turn(self, role: str) -> None:
        """Skip an agent's next turn."""
        self._pending[role].popleft()

    def unused_turns(self) -> Iterator[tuple[str, TracedTurn]]:
        """Yield the unused turns, each with its role."""
        for role, turns in self._pending.items():
            yield from ((role, turn) for turn in turns)

    def _take_next_turn(self, key: ActionKey) -> TracedTurn:
        if not self._pending[key.agent]:
            count = sum(role == key.agent for role, _ in self.turns)
            raise EpisodeFailedError(
                "failed", f"the team asks {key.agent} more often than the trace has turns of it ({count})"
            )
        return self._pending[key.agent].popleft()


@dataclass(frozen=True, slots=True, eq=False)
class ReplayOrganization:
    """Organization for trace replay, with recorded messages in place of an external program's requests."""

    engine: ReplayEngine
    skip_counter: SkipCounter
    uses_recipe_tools: bool = False  # True for the recipe's tools, False for the tools of the recorded requests

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Replay every turn in order, within a single environment step."""
        ids: dict[str, str] = {}
        for role, turn in self.engine.turns:
            sees = tuple(ids[name] for name in turn.parents if name in ids) or None
            chat = Chat(turn.messages, turn.tools, calls=bool(turn.calls), sees=sees)
            try:
                self._check_turn(agents[role].agent, turn)
                reply = await agents[role].reply(observation, chat)
            except (ChatRefusedError, UnreadableError) as error:
                self.engine.skip_turn(role)
                self.skip_counter.skip("turn", str(error), turn.location)
                continue
            ids[turn.id] = reply.action.id
        return JointAction()

    def _check_turn(self, agent: Agent, turn: TracedTurn) -> None:
        """Check a turn against the agent's template and tools.

        Raises:
            UnreadableError: the model's chat template cannot represent the turn, or the agent lacks a called tool.
        """
        if self.uses_recipe_tools:
            check_known_tools(turn, agent.profile.tools)
        encode_turn(self.engine.renderer, agent.policy, turn.messages, turn.tools, turn, self.engine.thinking)


class RecordedTools(StatelessSource):
    """Tool source with recorded results."""

    def __init__(self, definitions: Sequence[Tool], engine: ReplayEngine) -> None:
        self.definitions, self.engine = definitions, engine
        self._results: dict[str, deque[ToolCall]] = defaultdict(deque)
        for _, turn in engine.turns:
            for call in (candidate for index, candidate in enumerate(turn.calls) if index not in turn.missing_results):
                self._results[_call_key(call.name, parse_arguments(call.arguments))].append(call)

    @property
    def tools(self) -> Sequence[Tool]:
        """Tool definitions from the recipe."""
        return self.definitions

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """Return a call's recorded result; without a record, mark the episode failed."""
        results = self._results[_call_key(tool, arguments)]
        if not results:
            self.engine.problem = f"the trace does not say what {tool!r} answered"
            return ""
        return results.popleft().output


def _call_key(tool: str, arguments: Mapping[str, object]) -> str:
    return f"{tool} {json.dumps(arguments, sort_keys=True, default=str)}"


@dataclass(frozen=True, slots=True)
class UngradedEnvironment:
    """Environment for a task unknown to the recipe's environment; shows the question and grades nothing."""

    def tasks(self, split: str) -> Sequence[Task]:  # noqa: ARG002
        """Return an empty list."""
        return []

    def start(self, task: Task, seed: int) -> _QuestionSession:  # noqa: ARG002
        """Create a single-step session."""
        return _QuestionSession(task)


@dataclass(frozen=True, slots=True)
class _QuestionSession:
    task: Task

    async def reset(self) -> Observation:
        """Return the question."""
        return Observation(self.task.prompt)

    async def step(self, actions: JointAction) -> Step:  # noqa: ARG002
        """End the episode with reward 0."""
        return Step(Observation(""), 0.0, terminated=True)

    async def close(self) -> None:
        """Do nothing."""
        return
