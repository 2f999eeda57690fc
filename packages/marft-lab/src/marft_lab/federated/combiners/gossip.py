"""Gossip averaging: each site averages only with its neighbors in a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, Strict

from marft.config.settings import did_you_mean
from marft_lab.federated.combiner import Combiner

Edge = Annotated[tuple[str, str], Strict(False)]


class Gossip(Combiner):
    """Gossip averaging with the Metropolis weights of Xiao et al. 2005.

    Over a connected graph all sites converge to the average of all sites, at a rate given by the graph's spectral gap.
    Each site only needs data from its neighbors. If a site skips a round, the other sites mix without the site, and the
    site keeps its own adapters.
    """

    graph: Literal["ring", "line", "star", "complete", "edges"] = Field(
        default="ring", description="topology, in the order of the sites; in a star the first site is the center"
    )
    edges: Annotated[tuple[Edge, ...], Strict(False), Field(max_length=10_000)] = Field(
        default=(), description='pairs of sites for graph = "edges"'
    )

    def mixing_weights(self, sites: Sequence[str], counts: Sequence[float]) -> list[list[float]]:
        """Return mixing weights, shape [sites, sites]; the matrix is symmetric and doubly stochastic.

        Only participation matters: a count of 0 means that the site skipped the round. The size of the count is
        ignored.
        """
        participating = dict(zip(sites, counts, strict=True))
        pairs = {pair for pair in self.pairs(sites) if all(participating[site] for site in pair)}
        return metropolis_weights(sites, pairs)

    def pairs(self, sites: Sequence[str]) -> set[tuple[str, str]]:
        """Return the graph's edges as sorted pairs, without duplicates."""
        if self.graph == "edges":
            return {(min(pair), max(pair)) for pair in self.edges}
        chain = list(pairwise(sites))
        pairs = {
            "line": chain,
            "ring": [*chain, (sites[-1], sites[0])],
            "star": [(sites[0], site) for site in sites[1:]],
            "complete": [(first, second) for at, first in enumerate(sites) for second in sites[at + 1 :]],
        }[self.graph]
        return {(min(pair), max(pair)) for pair in pairs}

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield each reason why the graph cannot connect these sites."""
        if self.edges and self.graph != "edges":
            yield f"combine.edges: the graph is a {self.graph}, and has edges of its own; set graph = 'edges'"
            return
        unknown = sorted({site for pair in self.edges for site in pair} - set(roles))
        if unknown:
            yield f"combine.edges: no site is called {unknown[0]!r}{did_you_mean(unknown[0], roles)}"
            return
        if any(first == second for first, second in self.edges):
            yield "combine.edges: a site is its own neighbour; leave that out"
        unreachable = sorted(set(roles) - find_reachable(roles[0], self.pairs(roles)))
        if unreachable:
            yield f"combine.edges: nothing of {roles[0]!r} ever reaches {unreachable[0]!r}; connect them"


def metropolis_weights(sites: Sequence[str], pairs: Iterable[tuple[str, str]]) -> list[list[float]]:
    """Return the Metropolis weights, shape [sites, sites].

    An edge has weight 1 / (1 + the larger degree of its two sites). The diagonal completes each row to 1.
    """
    edges = set(pairs)
    degree = {site: sum(site in pair for pair in edges) for site in sites}
    weights = {pair: 1 / (1 + max(degree[site] for site in pair)) for pair in edges}
    rows = [
        [weights.get((min(row_site, column_site), max(row_site, column_site)), 0.0) for column_site in sites]
        for row_site in sites
    ]
    for index, row in enumerate(rows):
        row[index] = 1 - sum(row)
    return rows


def find_reachable(start: str, pairs: Iterable[tuple[str, str]]) -> set[str]:
    """Return the sites reachable from a start site."""
    reachable, edges = {start}, [set(pair) for pair in pairs]
    while new := {site for edge in edges if edge & reachable for site in edge - reachable}:
        reachable |= new
    return reachable
