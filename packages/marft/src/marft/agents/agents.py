"""Agents, and the callable seats through which an organization lets them act."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

from marft.agents.chat import Chat, Reply
from marft.agents.loop_threads import LoopThreadPool
from marft.agents.rendering import Cut, Renderer
from marft.agents.tool_sources import ToolUse
from marft.common.types import Action, Normalisation, Observation, Profile, Sampling
from marft.config.settings import did_you_mean


@dataclass(frozen=True, slots=True)
class Agent:
    """One seat of a team: a profile, the policy that plays it, and how it samples."""

    profile: Profile
    policy: str
    sampling: Sampling = Sampling()
    cut: Cut = Cut()
    tool_use: ToolUse = ToolUse()
    memory: Literal["none", "own"] = "none"
    thinking: Literal["keep", "drop"] = "keep"

    @property
    def role(self) -> str:
        return self.profile.role


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What of an action is passed on, where that is not its whole text."""

    action: Action
    text: str


Seen = Action | Excerpt


@dataclass(frozen=True, slots=True)
class Request:
    """What an agent is asked for: what it is shown, and how its action comes about."""

    observation: Observation
    sees: tuple[Seen, ...] = ()
    begins: Action | None = None  # its turn goes on from this one's text
    options: tuple[str, ...] = ()  # it chooses one of these instead of writing
    normalisation: Normalisation = "tokens"  # Z of an option
    chat: Chat | None = None  # it is asked in messages of a program of its own, and not with the observation


Ask = Callable[[Agent, Request], Awaitable[Action]]
Answer = Callable[[Agent, Request], Awaitable[Reply]]


async def _no_chats(agent: Agent, _: Request) -> Reply:
    raise ValueError(f"{agent.role} takes no chats here")


@dataclass(frozen=True, slots=True)
class Outside:
    """What an organization needs that runs somebody else's program.

    Args:
        external_wait: held while the program may ask for more, so that a sampler that admits in order waits for it.
        threads: for code that may block or hang.
        renderer: of the team's policies.
    """

    external_wait: Callable[[], AbstractContextManager[None]] = nullcontext
    threads: LoopThreadPool = field(default_factory=LoopThreadPool)
    renderer: Renderer | None = None


@dataclass(frozen=True, slots=True)
class Seat:
    """An agent in one step of one episode: ``await agents.coder(observation, sees=[plan])`` is one decision."""

    agent: Agent
    _ask: Ask
    _answer: Answer = _no_chats

    @property
    def role(self) -> str:
        return self.agent.role

    async def reply(self, observation: Observation, chat: Chat) -> Reply:
        """Act once, asked in the messages of somebody else's program: one decision like any other.

        Raises:
            ChatRefusedError: the chat cannot be answered. That is the program's to hear: no action was asked for.
        """
        return await self._answer(self.agent, Request(observation, chat=chat))

    async def __call__(
        self, observation: Observation, sees: Sequence[Seen] = (), begins: Action | None = None
    ) -> Action:
        """Act once.

        Args:
            sees: the actions, or excerpts of them, that this one depends on; what is given is what it sees, and is
                recorded.
            begins: an action whose text the agent's own turn begins with: it writes on from there. Both policies
                must have the same tokenizer.
        """
        return await self._ask(self.agent, Request(observation, tuple(sees), begins))

    async def choose(
        self, observation: Observation, options: Sequence[str], sees: Sequence[Seen] = (),
        normalisation: Normalisation = "tokens",
    ) -> Action:  # fmt: skip
        """Choose one of ``options`` by the probability of its text, over Z (TWOSOME); one decision, trained like any.

        Raises:
            ValueError: there is nothing to choose from, or an option comes twice.
        """
        if not options or len(set(options)) < len(options):
            raise ValueError(
                f"{self.role} is to choose from {list(options)!r}: options must differ, and be at least one"
            )
        return await self._ask(
            self.agent, Request(observation, tuple(sees), options=tuple(options), normalisation=normalisation)
        )


class Agents:
    """The seats of a team: ``agents.planner``, ``agents["planner"]``, or iterate in the recipe's order."""

    def __init__(
        self, agents: Sequence[Agent], ask: Ask, answer: Answer = _no_chats, outside: Outside | None = None
    ) -> None:
        self._seats = {agent.role: Seat(agent, ask, answer) for agent in agents}
        self._outside = outside

    def outside(self) -> Outside:
        """What an organization needs that runs somebody else's program."""
        return self._outside or Outside()

    def __getitem__(self, role: str) -> Seat:
        if role not in self._seats:
            raise ValueError(f"the team has no agent {role!r}{did_you_mean(role, self._seats)}")
        return self._seats[role]

    def __getattr__(self, role: str) -> Seat:
        if role.startswith("_"):
            raise AttributeError(role)
        return self[role]

    def __iter__(self) -> Iterator[Seat]:
        return iter(self._seats.values())

    def __len__(self) -> int:
        return len(self._seats)
