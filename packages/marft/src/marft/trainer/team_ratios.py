"""How far the policies updated earlier in a training step have moved, at each environment step of each episode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from marft.common.types import Action, ActionKey, Sample
from marft.trainer.interfaces import Floats

StepKey = tuple[str, str, int, int]


class TeamRatios:
    """``M``: for each (episode, step), the product of new/old ratios of all earlier-updated policies' actions there.

    A ratio is that of the whole action over its length, and their product is cut to ``[1/limit, limit]``: products of
    thousands of token ratios would be 0 or infinite. Nothing here has a gradient.
    """

    def __init__(self, limit: float) -> None:
        assert limit >= 1.0
        self.bound = math.log(limit)
        self._sums: dict[StepKey, float] = {}

    def add(self, actions: Sequence[Action], old: Mapping[ActionKey, Floats], new: Mapping[ActionKey, Floats]) -> None:
        """Take in policies that have just been updated, by their actions' log-probs before and after (by key)."""
        for action in actions:
            moved = float(np.mean(new[action.key] - old[action.key]))
            key = step_of(action)
            self._sums[key] = self._sums.get(key, 0.0) + moved

    def log_ratio(self, action: Action) -> float:
        """log M at the action's step, 0 where nobody has moved yet."""
        return max(-self.bound, min(self.bound, self._sums.get(step_of(action), 0.0)))

    def weigh(self, samples: Sequence[Sample]) -> list[Sample]:
        """HAPPO: advantages times M, which is the same as M · min(r A, clip(r) A) for M > 0."""
        return [
            replace(sample, advantages=sample.advantages * math.exp(self.log_ratio(sample.action)))
            for sample in samples
        ]

    def join(self, samples: Sequence[Sample], clip: float) -> list[Sample]:
        """A2PO: the ratio of an action is taken times ``clip(M, 1 ± clip)``."""
        low, high = math.log(1.0 - clip), math.log(1.0 + clip)
        return [replace(sample, log_factor=max(low, min(high, self.log_ratio(sample.action)))) for sample in samples]

    def traces(self, actions: Sequence[Action]) -> Floats:
        """M at the step of every action, [actions]."""
        return np.exp([self.log_ratio(action) for action in actions])


def step_of(action: Action) -> StepKey:
    """The environment step, of which episode, that an action was taken in."""
    key = action.key
    return key.stream, key.task, key.sample, key.step
