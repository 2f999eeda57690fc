"""Ratio products for the policies updated earlier in a training step, per environment step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from marft.common.types import Action, ActionKey, Sample
from marft.trainer.interfaces import Floats

StepKey = tuple[str, str, int, int]


class TeamRatios:
    """``M``: product over earlier-updated policies' new/old ratios, per (episode, step).

    The ratio of an action is length-normalized, and the product is clipped to ``[1/limit, limit]``. Products of
    thousands of token ratios would be 0 or infinite. No gradient flows through M.

    Args:
        limit: maximum of the product, at least 1.
    """

    def __init__(self, limit: float) -> None:
        assert limit >= 1.0
        self.bound = math.log(limit)
        self._sums: dict[StepKey, float] = {}

    def add(self, actions: Sequence[Action], old: Mapping[ActionKey, Floats], new: Mapping[ActionKey, Floats]) -> None:
        """Add the actions of newly updated policies.

        Args:
            actions: actions of the policies.
            old: log-probabilities before the update, by the action's key.
            new: log-probabilities after the update, by the action's key.
        """
        for action in actions:
            log_ratio = float(np.mean(new[action.key] - old[action.key]))
            key = step_key(action)
            self._sums[key] = self._sums.get(key, 0.0) + log_ratio

    def log_ratio(self, action: Action) -> float:
        """Return log M at the action's step; 0 before the first update."""
        return max(-self.bound, min(self.bound, self._sums.get(step_key(action), 0.0)))

    def scale_advantages(self, samples: Sequence[Sample]) -> list[Sample]:
        """Multiply advantages by M (HAPPO); equal to M · min(r A, clip(r) A) for M > 0."""
        return [
            replace(sample, advantages=sample.advantages * math.exp(self.log_ratio(sample.action)))
            for sample in samples
        ]

    def scale_ratios(self, samples: Sequence[Sample], clip: float) -> list[Sample]:
        """Multiply the ratio of each action by ``clip(M, 1 ± clip)`` (A2PO)."""
        low, high = math.log(1.0 - clip), math.log(1.0 + clip)
        return [replace(sample, log_factor=max(low, min(high, self.log_ratio(sample.action)))) for sample in samples]

    def traces(self, actions: Sequence[Action]) -> Floats:
        """Return M at the step of every action, shape [actions]."""
        return np.exp([self.log_ratio(action) for action in actions])


def step_key(action: Action) -> StepKey:
    """Return the key for an action's environment step and episode."""
    key = action.key
    return key.stream, key.task, key.sample, key.step
