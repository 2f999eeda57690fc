"""Environments: a factory for sessions with a Gymnasium-like interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Literal, Protocol, TypeVar

from marft.common.types import JointAction, Observation, Step, Task
from marft.config.plugin_kinds import sync_or_async
from marft.config.plugins import Plugin

Split = Literal["train", "validation", "test"]
Method = TypeVar("Method", bound=Callable[..., object])
TOOL_ATTRIBUTE = "__marft_tool__"


def tool(method: Method) -> Method:
    """Mark a session method as a tool for agents whose ``tools`` name ``"environment"``.

    The environment names the session class: ``session: ClassVar[type] = MySession``. Tools and steps of a session
    share one state and one thread.
    """
    setattr(method, TOOL_ATTRIBUTE, True)
    return method


class Session(Protocol):
    """One attempt at one task.

    Each session runs on a thread of its own. A session that blocks, hangs or raises loses only its own episode.
    """

    async def reset(self) -> Observation:
        """Begin the episode and return the first observation."""
        ...

    async def step(self, actions: JointAction) -> Step:
        """Apply the team's actions and return the next observation, the rewards and the end flags."""
        ...

    async def close(self) -> None:
        """Release the session's resources, however the episode ended."""
        ...


class Environment(Plugin, ABC, kind="environments", label="an environment"):
    """Base class for environments, which create sessions.

    Episodes share no state, and a session is deterministic under its seed. ``session`` is the class of its sessions, if
    agents may call session methods that are marked with ``@tool``.
    """

    one_step: ClassVar[bool] = False  # every episode ends after one step
    session: ClassVar[type | None] = None
    reward_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)  # range of an episode's reward, for the team or one agent
    # the environment selects the acting agents (Observation.turn) instead of all in every step
    controls_turns: ClassVar[bool] = False
    # agents choose from options of the environment (Observation.options) instead of writing text
    offers_options: ClassVar[bool] = False
    # the environment relays messages between agents, and may shorten, price or block them
    relays_messages: ClassVar[bool] = False

    @abstractmethod
    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks in a split. Splits share no task.

        Raises:
            ValueError: the tasks cannot be read. The message names the cause and the remedy.
        """

    @abstractmethod
    @sync_or_async
    def start(self, task: Task, seed: int) -> Session | Awaitable[Session]:
        """Return a new session; its randomness follows from ``seed``. May be a coroutine."""

    @property
    def grades_answers(self) -> bool:
        """True if the environment itself rewards an answer."""
        return True

    @property
    def opposing_sides(self) -> Sequence[Sequence[str]]:
        """Learning sides that play against each other, each a list of roles; () for a cooperative team."""
        return ()

    @property
    def opponent_roles(self) -> Sequence[str]:
        """Roles of opponents that do not learn themselves."""
        return ()

    @property
    def tool_class(self) -> type | None:
        """Class with ``@tool`` methods for agents: the session class, or the class of the session's ``toolbox``."""
        return self.session

    def script(self, skill: float = 1.0) -> Callable[..., object] | None:  # noqa: ARG002
        """Return a scripted policy, which needs no model (:class:`marft.envs.scripted_policy.ScriptedPolicy`); None by
        default.

        Args:
            skill: share of turns that are played well; the others imitate the habits of a weak model.
        """
        return None

    @property
    def max_episode_steps(self) -> int:
        """Maximum steps in an episode; 0: the run's limit applies."""
        return int(self.one_step)

    def sampling_weight(self, task: Task) -> float:  # noqa: ARG002
        """Return a training task's relative sampling weight: twice as often with 2 as with 1, never with 0."""
        return 1.0
