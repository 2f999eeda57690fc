"""Local-only training without exchange, as a baseline."""

from __future__ import annotations

from collections.abc import Sequence

from marft.config.parts import CombinerPart


class Alone(CombinerPart):
    """Aggregator without exchange: each site keeps its adapters."""

    def mixing(self, sites: Sequence[str], counts: Sequence[float]) -> list[list[float]]:  # noqa: ARG002
        """Return the identity matrix for mixing weights, shape [sites, sites]."""
        return [[float(mine == other) for other in sites] for mine in sites]
