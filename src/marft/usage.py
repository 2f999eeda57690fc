"""What remote models take."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from operator import add


@dataclass(frozen=True, slots=True)
class Usage:
    """What a remote model's answer took. ``cost`` is in the currency of the recipe's prices.

    >>> Usage(prompt_tokens=120, completion_tokens=30, cost=0.001) + Usage(prompt_tokens=80, retries=1)
    Usage(prompt_tokens=200, completion_tokens=30, cost=0.001, retries=1)
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    retries: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(add, astuple(self), astuple(other)))
