"""One team for all sites: the average of what those that took part have learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from marft.config.parts import CombinerPart


class Average(CombinerPart):
    """FedAvg (McMahan et al. 2017), of adapters. A site that took no part goes on from the average, too."""

    # what a site's update weighs: the episodes that it has played in the round, the tokens sampled in them, or 1
    weight: Literal["episodes", "tokens", "equally"] = "equally"

    @property
    def counted(self) -> Literal["", "episodes", "tokens"]:
        return "" if self.weight == "equally" else self.weight

    def mixing(self, sites: Sequence[str], counts: Sequence[float]) -> list[list[float]]:
        """A row of weights for each site: all of them the same, in proportion to the counts."""
        row = [count / sum(counts) for count in counts]
        return [row for _ in sites]
