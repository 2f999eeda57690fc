"""Objectives: losses of decisions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

from marft.config.plugins import Plugin

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO_LIMIT = 20.0  # nats; log-ratios are clamped before exponentiation


@dataclass(frozen=True, slots=True, eq=False)
class LossInputs:
    """Objective inputs: a row per unit, an action at action level or a sampled token at token level.

    ``log_probs`` are divided by Z (eq. 6), under the current policy. ``old_log_probs`` are under the policy at the
    start of the step, ``sampler_log_probs`` under the policy that sampled, by the engine. ``advantages`` are already
    normalized over the batch.
    """

    log_probs: Tensor  # [U], with gradient
    old_log_probs: Tensor  # [U]
    advantages: Tensor  # [U]
    sampler_log_probs: Tensor  # [U]


@dataclass(frozen=True, slots=True, eq=False)
class LossOutput:
    """Loss of each unit, to be minimized, and metrics for each unit.

    Terms are not summed. The learner weights them with denominators of the global minibatch, so no split into
    micro-batches changes the gradient. Metrics are counted by agent.
    """

    terms: Tensor  # [U]
    metrics: Mapping[str, Tensor] = field(default_factory=dict)  # each [U]


@dataclass(frozen=True, slots=True, eq=False)
class PairInputs:
    """Pair loss inputs: one row per pair.

    The log-ratio of a side is Σ (log π − log π_ref) / Z over its actions, with gradient.
    """

    better: Tensor  # [P] log-ratio of the better side
    worse: Tensor  # [P]
    better_log_prob: Tensor  # [P] mean log π of the better side's decisions, with a gradient
    better_length: Tensor  # [P] decisions of the better side
    worse_length: Tensor  # [P]


class Objective(Plugin, ABC, kind="objectives", label="an objective"):
    """Base class for objectives: a pure function from log-probabilities and advantages to losses."""

    reads_pairs: ClassVar[bool] = False  # pairwise loss (:mod:`marft.trainer.objectives.pairs`)
    anchors_on_sampler: ClassVar[bool] = False  # ratios to the policy that sampled, for single tokens

    @abstractmethod
    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Return the loss of each unit."""

    @property
    def clip_width(self) -> float:
        """Clip distance below ratio 1; 0: no clip."""
        return 0.0

    def with_clip_scale(self, scale: float) -> Self:  # noqa: ARG002
        """Return the objective with its clip width multiplied by ``scale``."""
        return self
