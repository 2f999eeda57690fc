"""One metric that a run writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["team", "agent", "policy"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    >>> from marft.common.metrics import known
    >>> known("agents/actor/kl").label, known("agents/actor/kl").shown(0.01234)
    ('KL', '0.0123')

    Args:
        name: in ``metrics.jsonl``, without ``agents/<role>/`` or ``policies/<name>/``; ``*`` stands for any name.
        label: in a step's line, in tables and above curves.
        meaning: what is counted, over what.
        unit: "" where it is a share, a count of what the label names, or a reward.
        format: of a number, as Python has it.
        scopes: for whom it is written: the team, each agent, each policy.
        better: which way is good, where there is one.
        advice: what to do where it looks wrong.
        unless_zero: not shown in a step's line while it is 0.
    """

    name: str
    label: str
    meaning: str
    format: str = ".2f"
    unit: str = ""
    scopes: tuple[Scope, ...] = ("team",)
    better: Literal["higher", "lower", ""] = ""
    advice: str = ""
    unless_zero: bool = False

    def shown(self, value: float) -> str:
        """A value in the metric's format."""
        return format(value, self.format)
