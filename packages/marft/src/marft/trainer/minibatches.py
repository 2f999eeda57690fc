"""The global minibatches of a phase: of single actions, or of comparisons, none of which is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marft.common.types import Sample
from marft.config.algorithm import AlgorithmSettings
from marft.trainer.batching import minibatches
from marft.trainer.comparing import Compared
from marft.trainer.interfaces import UpdatePhase


@dataclass(frozen=True, slots=True, eq=False)
class Minibatch:
    """What is stepped on together, and what of it is compared, where an objective compares."""

    samples: Sequence[Sample]
    compared: Compared | None = None

    @property
    def scored(self) -> Sequence[Sample]:
        """All that is scored for it: of what it is compared with too, whoever steps."""
        return self.samples if self.compared is None else self.compared.flat()

    @property
    def policies(self) -> set[str]:
        """Those that step on it."""
        return {sample.action.policy for sample in self.samples}


def minibatches_of(
    mine: Sequence[Sample], compared: Compared | None, phase: UpdatePhase, settings: AlgorithmSettings, seed: int,
    step: int, epoch: int,
) -> list[Minibatch]:  # fmt: skip
    """The minibatches of an epoch of a phase.

    Args:
        mine: samples of the phase's policies.
        compared: all that is compared in the training step.

    Raises:
        ValueError: the phase wants to be accepted by what a surrogate gains, and comparisons have none.
    """
    if compared is None:
        return [Minibatch(part) for part in minibatches(mine, settings.minibatches, seed, step, epoch)]
    if phase.kl_limit:
        raise ValueError(
            "a schedule's kl_limit accepts updates by what a surrogate gains, and comparisons have none: set it to 0, "
            "or use algorithm.team_kl"
        )
    parts = compared.among(phase.policies).split(settings.minibatches, seed, step, epoch)
    return [Minibatch(part.flat(phase.policies), part) for part in parts]
