"""Update schedules: order of policy updates within a training step (formulas §7).

The unit is the policy: agents with shared weights are one unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PrivateAttr

from marft.common import seeds
from marft.config.plugin_types import SchedulePart
from marft.config.settings import Count, NonNegative, NotTiny
from marft.trainer.interfaces import Progress, UpdatePhase

Correction = Literal["", "product", "preceding"]
RatioLimit = Annotated[float, Field(ge=1, le=1e9)]


class Simultaneous(SchedulePart):
    """Joint update: every policy, on every minibatch."""

    correction: ClassVar[Correction] = ""
    ratio_limit: ClassVar[float] = 1.0

    def plan(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:  # noqa: ARG002
        """Return a single phase with all policies."""
        return [UpdatePhase(tuple(policies))]


class AgentByAgent(SchedulePart):
    """Update by turns, a single policy per turn (the paper's cycling scheme).

    The next policy's turn starts after ``interval`` environment steps since the last change. Intervals count from the
    last change, so no policy is skipped.
    """

    correction: ClassVar[Correction] = ""
    ratio_limit: ClassVar[float] = 1.0

    interval: Count = 256  # environment steps per turn

    _turn: int = PrivateAttr(default=0)
    _since: int = PrivateAttr(default=0)  # environment steps at the last change of turn

    def plan(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:  # noqa: ARG002
        """Return a single phase with the policy in turn."""
        if progress.environment_steps - self._since >= self.interval:
            self._turn, self._since = self._turn + 1, progress.environment_steps
        return [UpdatePhase((policies[self._turn % len(policies)],))]

    def state_dict(self) -> dict[str, float]:
        """Return the current turn; see :class:`marft.trainer.interfaces.Stateful`."""
        return {"turn": self._turn, "since": self._since}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore the turn from :meth:`state_dict`."""
        self._turn, self._since = int(state["turn"]), int(state["since"])


class Sequential(SchedulePart):
    """Sequential updates in a new random order each step (HAPPO: Kuba et al. 2022).

    Each policy weights its actions with the new/old ratios of the policies updated before, in the same episode and
    environment step. With ``kl_limit`` each policy's update is accepted as in HATRPO: it is scaled back until its KL is
    within the limit, or undone.
    """

    correction: ClassVar[Correction] = "product"

    ratio_limit: RatioLimit = 2.0  # the product of earlier policies' ratios is clipped to [1/limit, limit]
    # maximum KL of an update, in nats per token; 0 accepts every update
    kl_limit: Annotated[NonNegative, NotTiny] = 0.0

    def plan(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:
        """Return a phase per policy, in random order."""
        return [UpdatePhase((name,), kl_limit=self.kl_limit) for name in random_order(policies, progress, seed)]


class A2PO(SchedulePart):
    """Sequential updates with preceding-policy correction (A2PO: Wang et al. 2023).

    The differences to :class:`Sequential` are:

    - Each ratio is multiplied by the clipped product of the ratios of the policies updated before.
    - Advantages are traced again through these ratios before each policy's turn.
    - The clip of policy k of n is scaled by ``first_clip + (1 − first_clip) · k / n``.

    The order is semi-greedy. It alternates between the policy with the largest advantages and a random policy, so no
    policy is always last.
    """

    correction: ClassVar[Correction] = "preceding"

    ratio_limit: RatioLimit = 2.0  # the product of earlier policies' ratios is clipped to [1/limit, limit]
    first_clip: Annotated[float, Field(gt=0, le=1)] = 0.5  # minimum fraction of the clip width; see the class

    def plan(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:
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
