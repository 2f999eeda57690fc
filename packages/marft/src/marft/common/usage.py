"""Usage counts: tokens and cost of remote models, and counters by metric name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from operator import add

ENGINE_RESTARTS = "engine_restarts"  # number of restarts of an engine in its own process


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, cost and retries for a remote model's reply. ``cost`` is in the currency of the recipe's prices.

    >>> Usage(prompt_tokens=120, completion_tokens=30, cost=0.001) + Usage(prompt_tokens=80, retries=1)
    Usage(prompt_tokens=200, completion_tokens=30, cost=0.001, retries=1)
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    retries: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(add, astuple(self), astuple(other)))


def sum_counts(*counts: Mapping[str, float]) -> dict[str, float]:
    """Return the sums of several counters, by name.

    >>> sum_counts({"a": 1.0}, {"a": 2.0, "b": 0.0})
    {'a': 3.0, 'b': 0.0}
    """
    total: dict[str, float] = {}
    for mapping in counts:
        for name, count in mapping.items():
            total[name] = total.get(name, 0.0) + count
    return total
