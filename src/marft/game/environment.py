"""The environment side of the game: a factory of sessions, and sessions with Gymnasium's habits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from marft.types import JointAction, Observation, Step, Task

Split = Literal["train", "validation", "test"]


class Session(Protocol):
    """One attempt at one task. Each session runs on a thread of its own: a session that blocks, hangs or raises
    loses only its own episode."""

    async def reset(self) -> Observation: ...

    async def step(self, actions: JointAction) -> Step: ...

    async def close(self) -> None: ...


class Environment(Protocol):
    """A factory of sessions: nothing is shared between episodes, and a session is deterministic under its seed."""

    def tasks(self, split: Split) -> Sequence[Task]:
        """The tasks of a split. Splits share no task."""
        ...

    def start(self, task: Task, seed: int) -> Session: ...
