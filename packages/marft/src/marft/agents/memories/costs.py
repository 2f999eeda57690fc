"""Memory costs by path: writing (including forgetting) and reading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from marft.agents.memories.interface import Work

Path = Literal["write", "read"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs in integers, so that sums are exact in any order."""

    calls: int = 0
    tokens: int = 0
    bytes: int = 0
    nanoseconds: int = 0

    @classmethod
    def from_work(cls, work: Work, nanoseconds: int) -> Cost:
        """Return one call's cost."""
        return cls(1, work.tokens, work.bytes, nanoseconds)

    @property
    def ms(self) -> float:
        """Time in milliseconds."""
        return self.nanoseconds / 1e6

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.calls + other.calls,
            self.tokens + other.tokens,
            self.bytes + other.bytes,
            self.nanoseconds + other.nanoseconds,
        )


class CostTracker:
    """Costs by path.

    A cost belongs to the call that waits for the work: entries built in by a read count as a cost of reading.
    """

    def __init__(self) -> None:
        self.write = self.read = self.total = Cost()

    def add(self, path: Path, cost: Cost) -> None:
        """Add the cost of a call."""
        self.total += cost
        if path == "write":
            self.write += cost
        else:
            self.read += cost
