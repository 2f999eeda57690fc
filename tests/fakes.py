"""An engine and a renderer without models, and environments that do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from marft.agents.agents import Agent
from marft.agents.chat import Chat
from marft.agents.game import Game
from marft.agents.loop_threads import LoopThreadPool
from marft.agents.organizations import Chain
from marft.agents.prompt_messages import (
    NO_TOKENS,
    ChatMessage,
    InexactContinuation,
    TruncationPolicy,
    build_messages,
    tool_call_messages,
)
from marft.agents.streaming import Detokenizer, TextStream
from marft.agents.team import Team
from marft.common.reasoning import StopString, measure_reasoning
from marft.common.token_data import Grammar
from marft.common.types import (
    Action,
    ActionKey,
    AgentProfile,
    Choice,
    Completion,
    JointAction,
    Observation,
    Option,
    Prompt,
    SamplingParams,
    Step,
    Task,
    TokenIds,
    Tool,
    ToolCall,
    VersionRange,
)
from marft.config.interfaces.channel import Message
from marft.config.interfaces.engine import Weights
from marft.config.interfaces.organization import Organization
from marft.inference.call_syntax import JsonSyntax
from marft.inference.tool_format import ToolFormat

CALL = JsonSyntax("CALL")


class FakeRenderer:
    """Renders to the bytes of the chat."""

    def render(
        self,
        policy: str,
        profile: AgentProfile,
        observation: str,
        seen: Sequence[Message],
        *,
        reserve: int,
        cut: TruncationPolicy,
    ) -> Prompt:
        chat = build_messages(profile, observation, seen)
        return Prompt(self.tokenize_prompt(policy, chat, ()), chat=tuple(chat))

    def tokenize_prompt(self, policy: str, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> TokenIds:
        return np.frombuffer(str(list(messages)).encode(), np.uint8).astype(np.int32)

    def continue_chat(
        self,
        policy: str,
        ids: TokenIds,
        messages: Sequence[ChatMessage],
        new: Sequence[ChatMessage],
        tools: Sequence[Tool],
    ) -> TokenIds | InexactContinuation:
        return self.tokenize_prompt(policy, new, tools)

    def reasoning_length(self, policy: str, text: str, prefix: str = "") -> int:
        return measure_reasoning(text)

    def encode_prefix(self, policy: str, text: str) -> TokenIds:
        return self.encode_text(policy, text)

    def text_stream(
        self, policy: str, stops: Sequence[str | StopString], drops: bool, tools: bool, prefix: str = ""
    ) -> TextStream:
        spelling = Detokenizer(lambda ids: bytes(ids).decode(errors="replace"))
        certain = ToolFormat(None, CALL).final_length  # type: ignore[arg-type]  of which the syntax alone counts
        return TextStream(spelling, stops, False if drops else None, certain if tools else len)

    def call_end(self, policy: str) -> str | StopString:
        return ""

    def turn_messages(self, policy: str, action: Action) -> Sequence[ChatMessage]:
        return [{"role": "assistant", "content": action.text}]

    def count_tokens(self, policy: str, text: str) -> int:
        return len(text)

    def context_length(self, policy: str) -> int:
        return 100_000

    def clip(self, policy: str, text: str, tokens: int) -> str:
        return text[:tokens]

    def calls(
        self, policy: str, tokens: TokenIds, tools: Sequence[Tool], prefix: TokenIds = NO_TOKENS
    ) -> Sequence[ToolCall]:
        return CALL.parse_calls(bytes(tokens.astype(np.uint8)).decode())

    def tool_call_messages(
        self, policy: str, text: str, calls: Sequence[ToolCall], prefix: TokenIds
    ) -> Sequence[ChatMessage]:
        return tool_call_messages(bytes(prefix.astype(np.uint8)).decode() + text, calls)

    def tool_response(
        self,
        policy: str,
        turn: TokenIds,
        messages: Sequence[ChatMessage],
        calls: Sequence[ToolCall],
        tools: Sequence[Tool],
    ) -> TokenIds | InexactContinuation:
        text = "".join(f"[{call.output}]" for call in calls)
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def grammar(self, policy: str, chat: Chat) -> Grammar | None:
        raise ValueError("nothing is held here")

    def token_texts(self, policy: str, tokens: TokenIds, begin: int = 0) -> tuple[str, ...]:
        return tuple(map(chr, tokens))

    def decode_tokens(self, policy: str, tokens: TokenIds, inside: bool = False) -> str:
        return bytes(tokens.astype(np.uint8)).decode(errors="replace")

    def encode_text(self, policy: str, text: str) -> TokenIds:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def shared_tokens(self, policy: str, source_policy: str, tokens: TokenIds, text: str) -> TokenIds | None:
        return tokens if self.decode_tokens(source_policy, tokens) == text else None

    def tokenize_option(self, policy: str, text: str) -> TokenIds:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def response_prefix(self, policy: str, action: Action) -> int:
        return len(action.tokens)


class Unchanging:
    """The part of an engine that has to do with its policies: they never change, and nothing was started."""

    async def publish(self, policies: Mapping[str, Weights], version: int) -> None:
        """Nothing changes."""

    async def wait_idle(self) -> None:
        """Nothing is computed in the background."""

    def version(self, policy: str) -> int:
        return 0

    def usage(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        """Nothing was started."""


class FakeEngine(Unchanging):
    """Says ``<agent><number of calls so far>``; keeps what it was asked."""

    def __init__(
        self, say: Callable[[ActionKey, str], str] = lambda key, prompt: f"{key.agent} says {key.step}"
    ) -> None:
        self.say = say
        self.asked: list[tuple[ActionKey, str]] = []

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        text = bytes(prompt.ids.astype(np.uint8)).decode()
        self.asked.append((key, text))
        await asyncio.sleep(0)
        said = self.say(key, text)
        tokens = np.frombuffer(said.encode(), np.uint8).astype(np.int32)
        return Completion(tokens, np.full(len(tokens), -1.0, np.float32), said, "stop")

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: SamplingParams, key: ActionKey
    ) -> tuple[Choice, VersionRange]:
        """Chooses the option that ``say`` names."""
        text = bytes(prompt.ids.astype(np.uint8)).decode()
        self.asked.append((key, text))
        await asyncio.sleep(0)
        named = np.frombuffer(self.say(key, text).encode(), np.uint8).astype(np.int32)
        place = next(n for n, option in enumerate(options) if np.array_equal(option.tokens, named))
        return Choice(tuple(options), place, np.full(len(options), -1.0, np.float32)), VersionRange()

    @contextmanager
    def external_wait(self) -> Iterator[None]:
        yield


@dataclass
class Script:
    """An environment that runs functions: one for each call of its session."""

    steps: list[Callable[[JointAction], Step]]
    reset: Callable[[], Observation] = lambda: Observation("begin")
    close: Callable[[], None] = lambda: None
    closed: list[str] = field(default_factory=list)

    def tasks(self, split: str) -> list[Task]:
        return [Task("t0", "begin"), Task("t1", "begin")]

    def start(self, task: Task, seed: int) -> ScriptSession:
        return ScriptSession(self, task)


class ScriptSession:
    def __init__(self, script: Script, task: Task) -> None:
        self.script, self.task, self.at = script, task, 0

    async def reset(self) -> Observation:
        return self.script.reset()

    async def step(self, actions: JointAction) -> Step:
        self.at += 1
        return self.script.steps[self.at - 1](actions)

    async def close(self) -> None:
        self.script.closed.append(self.task.id)
        self.script.close()


def ends(reward: float = 1.0, **changes: object) -> Callable[[JointAction], Step]:
    return lambda _: Step(Observation("end"), reward, **{"terminated": True, **changes})  # type: ignore[arg-type]


def goes_on(reward: float = 0.0, text: str = "next", **changes: object) -> Callable[[JointAction], Step]:
    return lambda _: Step(Observation(text), reward, **changes)  # type: ignore[arg-type]


def game(
    script: Script,
    *roles: str,
    organization: Organization | None = None,
    engine: FakeEngine | None = None,
    **changes: object,
) -> Game:
    agents = tuple(
        Agent(AgentProfile(role, f"You are {role}.", answers=role == (roles or ("a",))[-1]), policy=role)
        for role in roles or ("a",)
    )
    settings = {"timeout": 5.0, **changes}
    return Game(
        script,
        Team(agents, organization or Chain()),
        engine or FakeEngine(),
        FakeRenderer(),
        LoopThreadPool(),
        **settings,
    )  # type: ignore[arg-type]
