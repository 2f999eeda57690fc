"""Environment protocol: a factory for sessions with a Gymnasium-like interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeVar

from marft.common.types import JointAction, Observation, Step, Task

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


class Environment(Protocol):
    """Factory for sessions.

    Episodes share no state, and a session is deterministic under its seed.
    """

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks in a split. Splits share no task."""
        ...

    def start(self, task: Task, seed: int) -> Session:
        """Return a new session; its randomness follows from ``seed``."""
        ...
