"""Update schedules: order of policy updates in a training step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from marft.config.plugins import Plugin


class Progress(NamedTuple):
    """Training progress, the input to a schedule.

    Args:
        step: index of the training step.
        environment_steps: environment steps of all earlier episodes.
        advantages: mean absolute advantage of each policy's decisions, before normalization.
    """

    step: int
    environment_steps: int
    advantages: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class UpdatePhase:
    """Policies for a joint update; other policies get no rows and no optimizer step.

    ``clip_scale`` multiplies the objective's clip width in this phase. With ``kl_limit``, the change of the whole phase
    is accepted only up to this KL. A larger change is scaled back, and finally undone. With ``new_episodes``, the team
    plays the step's tasks again before this phase, with the policies as updated so far. This phase and later ones learn
    from these episodes alone.
    """

    policies: tuple[str, ...]
    clip_scale: float = 1.0
    kl_limit: float = 0.0  # nats per token; 0 accepts every change
    new_episodes: bool = False


class UpdateSchedule(Plugin, ABC, kind="schedules", label="a schedule", together=("state_dict", "load_state_dict")):
    """Base class for update schedules: order of policy updates in a step, and corrections for earlier updates.

    ``correction`` defines the effect of earlier phases on later phases of the same step. ``"product"`` weights an
    action with the new/old ratios of the policies updated before. ``"preceding"`` multiplies its ratio by them (A2PO).
    The product of ratios is clipped to ``[1/ratio_limit, ratio_limit]``.
    """

    correction: ClassVar[Literal["", "product", "preceding"]] = ""
    # a single phase updates all policies; a plan then expects models on different ranks to train at the same time
    updates_together: ClassVar[bool] = False

    if TYPE_CHECKING:

        @property
        def ratio_limit(self) -> float:
            """Maximum product of ratios: a class attribute or a field of the subclass."""
    else:
        ratio_limit: ClassVar[float]  # required

    @abstractmethod
    def plan_phases(self, progress: Progress, policies: Sequence[str], seed: int) -> Iterable[UpdatePhase]:
        """Yield the phases of a training step.

        Args:
            progress: progress of training.
            policies: policies in training.
            seed: seed of the run.
        """

    def state_dict(self) -> dict[str, float]:
        """Return the numbers that persist between steps, to save in checkpoints; none by default."""
        return {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:  # noqa: ARG002
        """Restore the numbers from :meth:`state_dict`."""
        return
