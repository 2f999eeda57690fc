"""Definition of a metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["team", "agent", "policy"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric in the catalog.

    >>> from marft.common.metrics import require_metric
    >>> require_metric("agents/actor/kl").label, require_metric("agents/actor/kl").format_value(0.01234)
    ('KL', '0.0123')

    Args:
        name: name in ``metrics.jsonl``, without ``agents/<role>/`` or ``policies/<name>/``; ``*`` matches any name.
        label: label in step lines, in tables and above curves.
        description: measured quantity, and the population it covers.
        unit: unit; "" for a share, a reward, or a count of the label's noun.
        format: Python format specification.
        scopes: scopes that the metric is written for: the team, each agent, each policy.
        better: direction of improvement; "" if neutral.
        hint: remedy for a suspicious value.
        hide_zero: hide the metric in step lines while it is 0.
    """

    name: str
    label: str
    description: str
    format: str = ".2f"
    unit: str = ""
    scopes: tuple[Scope, ...] = ("team",)
    better: Literal["higher", "lower", ""] = ""
    hint: str = ""
    hide_zero: bool = False

    def format_value(self, value: float) -> str:
        """Return a value in the metric's format."""
        return format(value, self.format)
