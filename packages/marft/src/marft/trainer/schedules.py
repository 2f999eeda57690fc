"""Update schedules: which policies step, in which order (formulas §7). The unit is the policy: agents that share
weights are one unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PrivateAttr

from marft.common import seeds
from marft.config.parts import SchedulePart
from marft.config.settings import Count, Felt, NotNegative
from marft.trainer.interfaces import Progress, UpdatePhase

Correction = Literal["", "product", "preceding"]
RatioLimit = Annotated[float, Field(ge=1, le=1e9)]


class Simultaneous(SchedulePart):
    """Every policy steps on every minibatch."""

    correction: ClassVar[Correction] = ""
    ratio_limit: ClassVar[float] = 1.0

    def plan(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:  # noqa: ARG002
        return [UpdatePhase(tuple(policies))]


class AgentByAgent(SchedulePart):
    """One policy at a time; the turn goes to the next one when ``interval`` environment steps have passed since it last
    changed (the paper's cycling scheme). Counting from the last change, no interval can pass a policy over."""

    correction: ClassVar[Correction] = ""
    ratio_limit: ClassVar[float] = 1.0

    interval: Count = 256  # environment steps of a turn

    _turn: int = PrivateAttr(default=0)
    _since: int = PrivateAttr(default=0)  # environment steps when the turn last changed

    def plan(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:  # noqa: ARG002
        if progress.environment_steps - self._since >= self.interval:
            self._turn, self._since = self._turn + 1, progress.environment_steps
        return [UpdatePhase((policies[self._turn % len(policies)],))]

    def state_dict(self) -> dict[str, float]:
        """Whose turn it is; see :class:`marft.trainer.interfaces.Stateful`."""
        return {"turn": self._turn, "since": self._since}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Take up the turn again."""
        self._turn, self._since = int(state["turn"]), int(state["since"])


class Sequential(SchedulePart):
    """HAPPO (Kuba et al. 2022): one policy after another in an order drawn anew each update. Each weighs its actions
    with the new/old ratios of the policies updated before it, in the same episode and step.

    With ``kl_limit`` a policy's update is accepted as HATRPO would: scaled back until its KL is within the limit, else
    undone.
    """

    correction: ClassVar[Correction] = "product"

    ratio_limit: RatioLimit = 2.0  # the product of the ratios of those before is cut to [1/limit, limit]
    kl_limit: Annotated[NotNegative, Felt] = 0.0  # nats a token that an update may go; 0 accepts everything

    def plan(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:
        return [UpdatePhase((name,), kl_limit=self.kl_limit) for name in drawn_order(policies, progress, seed)]


class A2PO(SchedulePart):
    """A2PO (Wang et al. 2023): as sequential, but each ratio is taken together with the clipped product of those of
    the policies updated before, the advantages are traced through them again before each policy's turn, and the clip
    widens from ``first_clip`` of its width for the first policy towards all of it.

    The order is semi-greedy: by turns the policy whose advantages are largest, and one that is drawn, so that nobody
    is always last.
    """

    correction: ClassVar[Correction] = "preceding"

    ratio_limit: RatioLimit = 2.0  # the product of the ratios of those before is cut to [1/limit, limit]
    first_clip: Annotated[float, Field(gt=0, le=1)] = 0.5  # share of the clip that the first policy has

    def plan(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:
        count = len(policies)
        return [
            UpdatePhase((name,), clip_scale=self.first_clip + (1.0 - self.first_clip) * turn / count)
            for turn, name in enumerate(semi_greedy_order(policies, progress, seed), 1)
        ]


def drawn_order(policies: Sequence[str], progress: Progress, seed: int) -> list[str]:
    """The order in which policies take their turns at one training step."""
    order = seeds.generator(seed, "update order", progress.step).permutation(len(policies))
    return [policies[index] for index in order]


def semi_greedy_order(policies: Sequence[str], progress: Progress, seed: int) -> list[str]:
    """A2PO's order: of those left, the policy with the largest mean |advantage|, then a drawn one, and so on. The draw
    decides between equals.

    >>> semi_greedy_order(["a", "b", "c"], Progress(0, 0, {"a": 0.1, "b": 0.9, "c": 0.5}), seed=0)[0]
    'b'
    """
    left = drawn_order(policies, progress, seed)
    order: list[str] = []
    while left:
        greedy = len(order) % 2 == 0
        order.append(max(left, key=lambda name: progress.advantages.get(name, 0.0)) if greedy else left[0])
        left.remove(order[-1])
    return order
