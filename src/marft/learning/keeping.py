"""What is kept of whoever learns: all that a checkpoint holds, and a step that went wrong puts back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from marft.learning.critic import Critic
from marft.learning.optimizers import PolicyOptimizer


class Kept(Protocol):
    """A learner by rewards, or one by imitation."""

    @property
    def optimizers(self) -> Mapping[str, PolicyOptimizer]:
        """Of the trained policies, by name."""

    @property
    def critic(self) -> Critic | None:
        """What judges, where anything does."""

    def state_dict(self) -> dict[str, float]:
        """What is carried from step to step beside weights and moments."""

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Undo :meth:`state_dict`."""

    def optimizer_state(self) -> dict[str, Tensor]:
        """What the optimizers remember."""

    def load_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        """Undo :meth:`optimizer_state`."""
