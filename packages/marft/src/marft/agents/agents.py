"""Agents, and the callable handles through which an organization requests actions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from marft.agents.chat import Chat, Reply
from marft.agents.loop_threads import LoopThreadPool
from marft.agents.prompt_messages import Renderer, TruncationPolicy
from marft.common.errors import UserError
from marft.common.types import (
    Action,
    ActionKey,
    AgentProfile,
    JointAction,
    MemoryMode,
    Normalization,
    Observation,
    SamplingParams,
    Step,
)
from marft.config.interfaces.organization import VisibleAction
from marft.config.settings import did_you_mean


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Limits on an agent's tool use.

    Args:
        sources: source name by tool name.
        rounds: maximum tool rounds in one action.
        calls: maximum calls in one turn.
        seconds: timeout of one call.
        output_tokens: maximum tokens per output; longer outputs are truncated.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    rounds: int = 8
    calls: int = 16
    seconds: float = 30.0
    output_tokens: int = 512


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent in a team: its profile, its policy and its sampling settings."""

    profile: AgentProfile
    policy: str
    sampling: SamplingParams = SamplingParams()
    cut: TruncationPolicy = TruncationPolicy()
    tool_use: ToolUse = ToolUse()
    memory: MemoryMode = "none"
    thinking: Literal["keep", "drop"] = "keep"

    @property
    def role(self) -> str:
        """Name that the team uses for the agent: the role in its profile."""
        return self.profile.role


@dataclass(frozen=True, slots=True)
class Request:
    """Request for one action: the observation, the visible actions and the way to produce the action."""

    observation: Observation
    sees: tuple[VisibleAction, ...] = ()
    begins: Action | None = None  # the agent's turn continues this action's text
    options: tuple[str, ...] = ()  # the agent chooses one of these options instead of writing
    normalisation: Normalization = "tokens"  # how Z normalizes an option's log-probability
    chat: Chat | None = None  # the prompt is this chat from a client's program, not the observation


RequestAction = Callable[[Agent, Request], Awaitable[Action]]
RequestReply = Callable[[Agent, Request], Awaitable[Reply]]


async def _reject_chat(agent: Agent, _: Request) -> Reply:
    raise UserError(f"{agent.role} takes no chats here")


@dataclass(frozen=True, slots=True)
class ExternalContext:
    """Context for an organization that runs an external program.

    Args:
        external_wait: context manager to hold while the program may send more requests. A sampler that admits
            requests in order then waits for them.
        threads: loop threads for code that may block or hang.
        renderer: renderer for the team's policies.
    """

    external_wait: Callable[[], AbstractContextManager[None]] = nullcontext
    threads: LoopThreadPool = field(default_factory=LoopThreadPool)
    renderer: Renderer | None = None


@dataclass(frozen=True, slots=True)
class TeamAgentHandle:
    """:class:`~marft.config.interfaces.organization.AgentHandle` that also takes chats from an external program."""

    agent: Agent
    _ask: RequestAction
    _answer: RequestReply = _reject_chat

    @property
    def role(self) -> str:
        """The agent's role."""
        return self.agent.role

    @property
    def profile(self) -> AgentProfile:
        """The agent's profile."""
        return self.agent.profile

    async def reply(self, observation: Observation, chat: Chat) -> Reply:
        """Act once on a chat from an external program; the decision counts like any other.

        Raises:
            ChatRefusedError: the chat cannot be answered. No action was requested; the program should handle the
                error.
        """
        return await self._answer(self.agent, Request(observation, chat=chat))

    async def __call__(
        self, observation: Observation, sees: Sequence[VisibleAction] = (), begins: Action | None = None
    ) -> Action:
        """Act once."""
        return await self._ask(self.agent, Request(observation, tuple(sees), begins))

    async def choose(
        self,
        observation: Observation,
        options: Sequence[str],
        sees: Sequence[VisibleAction] = (),
        normalisation: Normalization = "tokens",
    ) -> Action:
        """Choose one option by the probability of its text, normalized by Z (TWOSOME).

        Raises:
            UserError: ``options`` is empty or contains duplicates.
        """
        if not options or len(set(options)) < len(options):
            raise UserError(
                f"{self.role} is to choose from {list(options)!r}: options must differ, and be at least one"
            )
        return await self._ask(
            self.agent, Request(observation, tuple(sees), options=tuple(options), normalisation=normalisation)
        )


class TeamAgents:
    """:class:`~marft.config.interfaces.organization.Agents` of a team, with the context for an external program."""

    def __init__(
        self,
        agents: Sequence[Agent],
        ask: RequestAction,
        answer: RequestReply = _reject_chat,
        external_context: ExternalContext | None = None,
    ) -> None:
        self._handles = {agent.role: TeamAgentHandle(agent, ask, answer) for agent in agents}
        self._external_context = external_context

    def external_context(self) -> ExternalContext:
        """Return the context for an organization that runs an external program."""
        return self._external_context or ExternalContext()

    def __getitem__(self, role: str) -> TeamAgentHandle:
        if role not in self._handles:
            raise UserError(f"the team has no agent {role!r}{did_you_mean(role, self._handles)}")
        return self._handles[role]

    def __getattr__(self, role: str) -> TeamAgentHandle:
        if role.startswith("_"):
            raise AttributeError(role)
        return self[role]

    def __iter__(self) -> Iterator[TeamAgentHandle]:
        return iter(self._handles.values())

    def __len__(self) -> int:
        return len(self._handles)


@dataclass(frozen=True, slots=True)
class Grade:
    """Program's grade for its answer; it replaces the environment's reward."""

    reward: float
    success: bool | None = None
    agent_rewards: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Outcome(JointAction):
    """Joint action whose answer may differ from every agent's text.

    Args:
        text: the answer's text; None uses the answering agent's text.
        grade: the program's grade; None keeps the environment's reward.
    """

    text: str | None = None
    grade: Grade | None = None

    def select_answer(self, actions: Sequence[Action], key: ActionKey) -> Action | None:
        """Return the step's last action with exactly this text, else a placeholder action with the text.

        A placeholder belongs to no agent, and only the environment sees it. Return None without a text.

        Args:
            key: key of the episode and the step.
        """
        if self.text is None:
            return None
        for action in reversed(actions):
            if self.text in (action.text, action.message):
                return action
        nothing = np.empty(0, np.int32)
        return Action(
            key=key,
            policy="",
            index=-1,
            sees=(),
            prompt=nothing,
            tokens=nothing,
            marks=np.empty(0, np.uint8),
            log_probs=np.empty(0, np.float32),
            text=self.text,
            finish="stop",
        )

    def apply_grade(self, step: Step) -> Step:
        """Return the environment's step, with the program's grade in place of its reward."""
        if self.grade is None:
            return step
        return replace(
            step, reward=self.grade.reward, agent_rewards=self.grade.agent_rewards or {}, success=self.grade.success
        )
