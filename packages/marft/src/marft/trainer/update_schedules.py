"""Update schedules: order of policy updates within a training step, and corrections for earlier updates (formulas §7).

The unit is the policy: agents with shared weights are one unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, PrivateAttr

from marft.common import seeds
from marft.common.types import Action, ActionKey, Sample
from marft.config.interfaces.credit import Floats
from marft.config.interfaces.schedule import Progress, UpdatePhase, UpdateSchedule
from marft.config.settings import Count, NonNegative, NotTiny

Correction = Literal["", "product", "preceding"]
RatioLimit = Annotated[float, Field(ge=1, le=1e9)]
StepKey = tuple[str, str, int, int]


class Simultaneous(UpdateSchedule):
    """Joint update: every policy, on every minibatch."""

    correction: ClassVar[Correction] = ""
    updates_together: ClassVar[bool] = True
    ratio_limit: ClassVar[float] = 1.0

    def plan_phases(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:  # noqa: ARG002
        """Return a single phase with all policies."""
        return [UpdatePhase(tuple(policies))]


class AgentByAgent(UpdateSchedule):
    """Update by turns, a single policy per turn (the paper's cycling scheme).

    The next policy's turn starts after ``interval`` environment steps since the last change. Intervals count from the
    last change, so no policy is skipped.
    """

    correction: ClassVar[Correction] = ""
    ratio_limit: ClassVar[float] = 1.0

    interval: Count = Field(default=256, description="environment steps per turn")

    _turn: int = PrivateAttr(default=0)
    _since: int = PrivateAttr(default=0)  # environment steps at the last change of turn

    def plan_phases(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:  # noqa: ARG002
        """Return a single phase with the policy in turn."""
        if progress.environment_steps - self._since >= self.interval:
            self._turn, self._since = self._turn + 1, progress.environment_steps
        return [UpdatePhase((policies[self._turn % len(policies)],))]

    def state_dict(self) -> dict[str, float]:
        """Return the current turn."""
        return {"turn": self._turn, "since": self._since}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore the turn from :meth:`state_dict`."""
        self._turn, self._since = int(state["turn"]), int(state["since"])


class Sequential(UpdateSchedule):
    """Sequential updates in a new random order each step (HAPPO: Kuba et al. 2022).

    Each policy weights its actions with the new/old ratios of the policies updated before, in the same episode and
    environment step. With ``kl_limit`` each policy's update is accepted as in HATRPO: it is scaled back until its KL is
    within the limit, or undone.
    """

    correction: ClassVar[Correction] = "product"

    ratio_limit: RatioLimit = Field(
        default=2.0, description="clip of the product of earlier policies' ratios, to [1/limit, limit]"
    )
    kl_limit: Annotated[NonNegative, NotTiny] = Field(
        default=0.0, description="maximum KL of an update, in nats per token; 0: no limit"
    )

    def plan_phases(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:
        """Return a phase per policy, in random order."""
        return [UpdatePhase((name,), kl_limit=self.kl_limit) for name in random_order(policies, progress, seed)]


class A2PO(UpdateSchedule):
    """Sequential updates with preceding-policy correction (A2PO: Wang et al. 2023).

    The differences to :class:`Sequential` are:

    - Each ratio is multiplied by the clipped product of the ratios of the policies updated before.
    - Advantages are traced again through these ratios before each policy's turn.
    - The clip of policy k of n is scaled by ``first_clip + (1 − first_clip) · k / n``.

    The order is semi-greedy. It alternates between the policy with the largest advantages and a random policy, so no
    policy is always last.
    """

    correction: ClassVar[Correction] = "preceding"

    ratio_limit: RatioLimit = Field(
        default=2.0, description="clip of the product of earlier policies' ratios, to [1/limit, limit]"
    )
    first_clip: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.5, description="c in the clip scale of policy k of n, c + (1 − c) · k / n"
    )

    def plan_phases(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:
        """Return a phase per policy, in semi-greedy order."""
        count = len(policies)
        return [
            UpdatePhase((name,), clip_scale=self.first_clip + (1.0 - self.first_clip) * turn / count)
            for turn, name in enumerate(semi_greedy_order(policies, progress, seed), 1)
        ]


def random_order(policies: Sequence[str], progress: Progress, seed: int) -> list[str]:
    """Return a random order of policies, fixed by seed and training step."""
    order = seeds.generator(seed, "update order", progress.step).permutation(len(policies))
    return [policies[index] for index in order]


def semi_greedy_order(policies: Sequence[str], progress: Progress, seed: int) -> list[str]:
    """Return A2PO's order: alternate between the largest mean absolute advantage and a random policy.

    Ties are broken at random.

    >>> semi_greedy_order(["a", "b", "c"], Progress(0, 0, {"a": 0.1, "b": 0.9, "c": 0.5}), seed=0)[0]
    'b'
    """
    remaining = random_order(policies, progress, seed)
    order: list[str] = []
    while remaining:
        greedy = len(order) % 2 == 0
        order.append(max(remaining, key=lambda name: progress.advantages.get(name, 0.0)) if greedy else remaining[0])
        remaining.remove(order[-1])
    return order


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
