"""Each site averages with its neighbours in a graph, and with nobody else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, Strict

from marft.config.parts import CombinerPart
from marft.config.settings import did_you_mean

Edge = Annotated[tuple[str, str], Strict(False)]


class Gossip(CombinerPart):
    """Consensus by the Metropolis weights of Xiao et al. 2005: over a connected graph all sites come to the
    average of all, as fast as the graph's spectral gap says, and no site needs to know more than its neighbours.

    Where a site takes no part in a round, the others mix without it, and it goes on from what it has.
    """

    graph: Literal["ring", "line", "star", "complete", "edges"] = "ring"  # by the order of the sites; star: the first
    edges: Annotated[
        tuple[Edge, ...], Strict(False), Field(max_length=10_000)
    ] = ()  # of graph = "edges": pairs of sites

    def mixing(self, sites: Sequence[str], counts: Sequence[float]) -> list[list[float]]:
        """A row of weights for each site: symmetric, and doubly stochastic. It matters who took part, not how much."""
        part = dict(zip(sites, counts, strict=True))
        pairs = {pair for pair in self.pairs(sites) if all(part[site] for site in pair)}
        return metropolis(sites, pairs)

    def pairs(self, sites: Sequence[str]) -> set[tuple[str, str]]:
        """The edges of the graph, each once."""
        if self.graph == "edges":
            return {(min(pair), max(pair)) for pair in self.edges}
        after = list(pairwise(sites))
        found = {
            "line": after,
            "ring": [*after, (sites[-1], sites[0])],
            "star": [(sites[0], site) for site in sites[1:]],
            "complete": [(one, other) for at, one in enumerate(sites) for other in sites[at + 1 :]],
        }[self.graph]
        return {(min(pair), max(pair)) for pair in found}

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield each reason why the graph cannot connect these sites."""
        if self.edges and self.graph != "edges":
            yield f"combine.edges: the graph is a {self.graph}, and has edges of its own; set graph = 'edges'"
            return
        unknown = sorted({site for pair in self.edges for site in pair} - set(roles))
        if unknown:
            yield f"combine.edges: no site is called {unknown[0]!r}{did_you_mean(unknown[0], roles)}"
            return
        if any(one == other for one, other in self.edges):
            yield "combine.edges: a site is its own neighbour; leave that out"
        alone = sorted(set(roles) - reached(roles[0], self.pairs(roles)))
        if alone:
            yield f"combine.edges: nothing of {roles[0]!r} ever reaches {alone[0]!r}; connect them"


def metropolis(sites: Sequence[str], pairs: Iterable[tuple[str, str]]) -> list[list[float]]:
    """1 / (1 + the larger degree of the two) for each edge, and what is left for a site itself."""
    known = set(pairs)
    degree = {site: sum(site in pair for pair in known) for site in sites}
    weights = {pair: 1 / (1 + max(degree[site] for site in pair)) for pair in known}
    rows = [[weights.get((min(one, other), max(one, other)), 0.0) for other in sites] for one in sites]
    for at, row in enumerate(rows):
        row[at] = 1 - sum(row)
    return rows


def reached(start: str, pairs: Iterable[tuple[str, str]]) -> set[str]:
    """The sites that can be reached from one."""
    found, edges = {start}, [set(pair) for pair in pairs]
    while new := {site for edge in edges if edge & found for site in edge - found}:
        found |= new
    return found
