"""The environment side of the game: a factory of sessions, and sessions with Gymnasium's habits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeVar

from marft.common.types import JointAction, Observation, Step, Task

Split = Literal["train", "validation", "test"]


Method = TypeVar("Method", bound=Callable[..., object])
OFFERED = "__marft_tool__"


def tool(method: Method) -> Method:
    """Marks a method of a session as a tool for the agents whose ``tools`` name ``"environment"``.

    The environment names the class: ``session: ClassVar[type] = MySession``. What the tools do and what the session's
    steps see is one state, and one thread.
    """
    setattr(method, OFFERED, True)
    return method


class Session(Protocol):
    """One attempt at one task. Each session runs on a thread of its own: a session that blocks, hangs or raises
    loses only its own episode."""

    async def reset(self) -> Observation:
        """Begin → what the environment shows first."""
        ...

    async def step(self, actions: JointAction) -> Step:
        """Take what the team did → what is shown next, what it earns, whether this was the end."""
        ...

    async def close(self) -> None:
        """Let go of what the session holds, however the episode ended."""
        ...


class Environment(Protocol):
    """A factory of sessions: nothing is shared between episodes, and a session is deterministic under its seed."""

    def tasks(self, split: Split) -> Sequence[Task]:
        """The tasks of a split. Splits share no task."""
        ...

    def start(self, task: Task, seed: int) -> Session:
        """A new session; what is random in it follows from ``seed``."""
        ...
