"""FedAvg: a shared team for the sites, from averaged adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from marft_lab.federated.combiner import Combiner


class Average(Combiner):
    """FedAvg (McMahan et al. 2017) over adapters.

    Sites that skipped the round continue from the average, too.
    """

    weight: Literal["episodes", "tokens", "equal"] = Field(
        default="equal", description="weight of a site's update: episodes or sampled tokens in the round, or 1"
    )

    @property
    def contribution_unit(self) -> Literal["", "episodes", "tokens"]:
        """Return the count that sites report for their weight; "" for equal weights."""
        return "" if self.weight == "equal" else self.weight

    def mixing_weights(self, sites: Sequence[str], counts: Sequence[float]) -> list[list[float]]:
        """Return mixing weights, shape [sites, sites]: identical rows, proportional to the counts."""
        row = [count / sum(counts) for count in counts]
        return [row for _ in sites]
