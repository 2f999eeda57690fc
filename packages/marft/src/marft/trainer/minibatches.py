"""Global minibatches for an update phase: single actions, or uncut preference pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marft.common.types import Sample
from marft.config.algorithm import AlgorithmSettings
from marft.trainer.batching import minibatches
from marft.trainer.interfaces import UpdatePhase
from marft.trainer.preference_batch import PreferenceBatch


@dataclass(frozen=True, slots=True, eq=False)
class Minibatch:
    """Samples for an update, and their preference pairs if the objective uses pairs."""

    samples: Sequence[Sample]
    preferences: PreferenceBatch | None = None

    @property
    def scored(self) -> Sequence[Sample]:
        """Samples to score, including both sides in pairs from policies without an update."""
        return self.samples if self.preferences is None else self.preferences.flatten()

    @property
    def policies(self) -> set[str]:
        """Policies to update."""
        return {sample.action.policy for sample in self.samples}


def split_minibatches(
    phase_samples: Sequence[Sample],
    preferences: PreferenceBatch | None,
    phase: UpdatePhase,
    settings: AlgorithmSettings,
    seed: int,
    step: int,
    epoch: int,
) -> list[Minibatch]:
    """Return a phase's minibatches for an epoch.

    Args:
        phase_samples: samples of the phase's policies.
        preferences: pairs of the training step; None for objectives on single actions.
        phase: update phase.
        settings: settings of the algorithm.
        seed: seed of the run.
        step: index of the training step.
        epoch: index of the epoch.

    Raises:
        ValueError: the phase has a KL limit, which needs a surrogate; pairs have none.
    """
    if preferences is None:
        return [Minibatch(part) for part in minibatches(phase_samples, settings.minibatches, seed, step, epoch)]
    if phase.kl_limit:
        raise ValueError(
            "a schedule's kl_limit accepts updates by what a surrogate gains, and comparisons have none: set it to 0, "
            "or use algorithm.team_kl"
        )
    parts = preferences.select_policies(phase.policies).split(settings.minibatches, seed, step, epoch)
    return [Minibatch(part.flatten(phase.policies), part) for part in parts]
