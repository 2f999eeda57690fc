"""Definition of a metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["team", "agent", "policy"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric in the catalog.

    >>> from marft.common.metrics import known
    >>> known("agents/actor/kl").label, known("agents/actor/kl").shown(0.01234)
    ('KL', '0.0123')

    Args:
        name: name in ``metrics.jsonl``, without ``agents/<role>/`` or ``policies/<name>/``; ``*`` matches any name.
        label: label in step lines, in tables and above curves.
        meaning: measured quantity, and the population it covers.
        unit: unit; "" for a share, a reward, or a count of the label's noun.
        format: Python format specification.
        scopes: scopes that the metric is written for: the team, each agent, each policy.
        better: direction of improvement; "" if neutral.
        advice: remedy for a suspicious value.
        unless_zero: hide the metric in step lines while it is 0.
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
        """Return a value in the metric's format."""
        return format(value, self.format)
