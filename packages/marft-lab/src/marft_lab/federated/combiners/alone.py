"""Local-only training without exchange, as a baseline."""

from __future__ import annotations

from collections.abc import Sequence

from marft_lab.federated.combiner import Combiner


class Alone(Combiner):
    """Aggregator without exchange: each site keeps its adapters."""

    def mixing_weights(self, sites: Sequence[str], counts: Sequence[float]) -> list[list[float]]:  # noqa: ARG002
        """Return the identity matrix for mixing weights, shape [sites, sites]."""
        return [[float(row_site == column_site) for column_site in sites] for row_site in sites]
