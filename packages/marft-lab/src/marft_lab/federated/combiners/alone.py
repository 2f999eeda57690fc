"""Nothing is exchanged: what sites learn without each other, to compare with."""

from __future__ import annotations

from collections.abc import Sequence

from marft.config.parts import CombinerPart


class Alone(CombinerPart):
    """Every site goes on from its own."""

    def mixing(self, sites: Sequence[str], counts: Sequence[float]) -> list[list[float]]:  # noqa: ARG002
        """A row of weights for each site: 1 for its own."""
        return [[float(mine == other) for other in sites] for mine in sites]
