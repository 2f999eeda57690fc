"""Aggregation rules of a federation: the mixing weights of the sites' adapters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from marft.config.plugins import Plugin


class Combiner(Plugin, ABC, kind="combiners", label="a combiner"):
    """Base class for federated aggregators, which compute each site's next adapters."""

    quantity: Literal["products", "factors"] = Field(
        default="products",
        description=(
            "quantity to average; products: adapter updates B·A, cut to the best approximation of their rank; factors: "
            "A and B separately"
        ),
    )

    @abstractmethod
    def mixing_weights(self, sites: Sequence[str], counts: Sequence[float]) -> list[list[float]]:
        """Return mixing weights, shape [sites, sites]: a row per site over the sites' adapters. A pure function.

        Args:
            sites: names of the sites.
            counts: reported count of each site, shape [sites]; 1 if counts are not requested. A count of 0 means that
                the site skipped the round; its last given adapters stand for the site.
        """

    @property
    def contribution_unit(self) -> Literal["", "episodes", "tokens"]:
        """Unit of a site's contribution in a round; "": participation only."""
        return ""
