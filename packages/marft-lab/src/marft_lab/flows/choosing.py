"""Edge selection: a softmax over a node's edges, trained with REINFORCE on whole paths' returns.

``π(v | u, c) ∝ exp((log(n_c(u, v) + n(u, v) / n(u)) + θ(u, v) + θ_c(u, v)) / T)`` over the edges (u, v) to unvisited
nodes. n_c counts an edge in successful episodes of the task's context c. n counts the edge in all successful episodes,
with the total weight of one visit. θ is learned from all tasks, and θ_c from tasks of the context. OUR READING: MANGO's
state is the similarity of task and roles. Here the state is the context, and the success counts of an edge by context.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from marft_lab.flows.likeness import nearest, vectors_of
from marft_lab.flows.network import ANY, SINK, SOURCE, FlowNetwork

Edges = Mapping[tuple[str, str, str], float]  # by context, start and end


def context_of(network: FlowNetwork, prompt: str) -> str:
    """Return the context most similar to a prompt; ANY without contexts or without a similar context."""
    if not network.contexts:
        return ANY
    vector = vectors_of([prompt], network.dimensions, network.embed)[0]
    place = nearest(vector, [context.vector for context in network.contexts], network.threshold)
    return ANY if place is None else network.contexts[place].name


def odds(network: FlowNetwork, context: str, at: str, visited: Sequence[str] = ()) -> dict[str, float]:
    """Return the logit per outgoing edge, for a context's tasks; {} at a dead end.

    Args:
        network: flow network.
        context: name of the context.
        at: name of the node.
        visited: nodes to exclude.
    """
    leaving = [edge for edge in network.edges if edge.start == at]
    total = sum(edge.count for edge in leaving)
    shared, own = (network.weights.get(name, {}).get(at, {}) for name in (ANY, context))
    if context == ANY:
        own = {}
    found = {}
    for edge in leaving:
        if edge.end not in visited:
            seen = edge.count if context == ANY else edge.by_context.get(context, 0)
            prior = math.log(seen + edge.count / total)
            found[edge.end] = prior + shared.get(edge.end, 0.0) + own.get(edge.end, 0.0)
    return found


def chances(logits: Mapping[str, float], temperature: float = 1.0) -> dict[str, float]:
    """Return the softmax of logits.

    At temperature 0, the first of the likeliest edges has probability 1.

    >>> chances({"a": 0.0, "b": 0.0})
    {'a': 0.5, 'b': 0.5}
    """
    assert logits, "there is something to choose from"
    top = max(logits.values())
    if temperature == 0:
        best = next(end for end, logit in logits.items() if logit == top)
        return {end: float(end == best) for end in logits}
    parts = {end: math.exp((logit - top) / temperature) for end, logit in logits.items()}
    total = math.fsum(parts.values())
    return {end: part / total for end, part in parts.items()}


def walk(network: FlowNetwork, context: str, most: int, temperature: float, random: Random) -> tuple[str, ...]:
    """Sample a path of nodes from the source to the sink, with skipped nodes.

    No node repeats. The path has at most ``most`` nodes, and ends early at a dead end.
    """
    at, path = SOURCE, list[str]()
    while len(path) < most:
        logits = odds(network, context, at, path)
        if not logits:
            break
        shares = chances(logits, temperature)
        at = random.choices(list(shares), list(shares.values()))[0]
        if at == SINK:
            break
        path.append(at)
    return tuple(path)


def played_of(network: FlowNetwork, context: str, path: Sequence[str]) -> tuple[str, ...]:
    """Return a path's acting nodes; if every node is skipped, the last node acts."""
    passed = network.passed_by(context)
    return tuple(name for name in path if name not in passed) or tuple(path[-1:])


def decisions(network: FlowNetwork, path: Sequence[str], most: int) -> list[tuple[str, str]]:
    """Return the chosen edges of a path, with the edge to the sink if the end was a choice."""
    stops = [SINK] if len(path) < most and _may_end(network, path) else []
    steps = [SOURCE, *path, *stops]
    return list(pairwise(steps))


def _may_end(network: FlowNetwork, path: Sequence[str]) -> bool:
    """Return True for a path with the sink among its next nodes."""
    return SINK in network.after(path[-1] if path else SOURCE)


def log_chance(network: FlowNetwork, context: str, path: Sequence[str], most: int) -> float:
    """Return the log-probability of a path at temperature 1."""
    total = 0.0
    for place, (start, end) in enumerate(decisions(network, path, most)):
        total += math.log(chances(odds(network, context, start, path[:place]))[end])
    return total


def score(network: FlowNetwork, context: str, path: Sequence[str], most: int) -> dict[tuple[str, str, str], float]:
    """Return the gradient of :func:`log_chance` in the shared weights and in the weights of the path's context.

    The gradient is 1 − π for a chosen edge, and −π for each alternative edge. Keys are (context, start, end).
    """
    found: dict[tuple[str, str, str], float] = {}
    for place, (start, end) in enumerate(decisions(network, path, most)):
        for other, share in chances(odds(network, context, start, path[:place])).items():
            for row in dict.fromkeys((ANY, context)):
                found[row, start, other] = float(other == end) - share  # a path leaves no node twice
    return found


@dataclass(frozen=True, slots=True)
class Walked:
    """Path with its return.

    Args:
        context: context of the task.
        path: names of the nodes.
        earned: return of the episode.
        episode: number of the episode; paths of one episode share their return.
    """

    context: str
    path: tuple[str, ...]
    earned: float
    episode: int


def advantages(walks: Sequence[Walked]) -> list[float]:
    """Return leave-one-out advantages, shape [paths]: return minus the mean over the context's paths in other episodes.

    The advantage is 0 without other episodes.
    """
    sums: dict[tuple[str, int | None], tuple[float, int]] = {}
    for one in walks:
        for key in ((one.context, None), (one.context, one.episode)):
            total, count = sums.get(key, (0.0, 0))
            sums[key] = total + one.earned, count + 1
    found = []
    for one in walks:
        (total, count), (own, walked) = sums[one.context, None], sums[one.context, one.episode]
        found.append(one.earned - (total - own) / (count - walked) if count > walked else 0.0)
    return found


def learned(network: FlowNetwork, walks: Sequence[Walked], rate: float, most: int) -> FlowNetwork:
    """Return the network after one REINFORCE step: the mean over paths of ``A ∇ log π(path)`` (Williams 1992).

    Weights of a context average over the context's own paths.

    Args:
        network: flow network.
        walks: paths with returns.
        rate: learning rate.
        most: maximum nodes per path.
    """
    counts: dict[str, int] = {}
    for one in walks:
        for row in dict.fromkeys((ANY, one.context)):
            counts[row] = counts.get(row, 0) + 1
    steps: dict[tuple[str, str, str], float] = {}
    for one, advantage in zip(walks, advantages(walks), strict=True):
        if advantage:
            for key, slope in score(network, one.context, one.path, most).items():
                steps[key] = steps.get(key, 0.0) + advantage * slope / counts[key[0]]
    return replace(network, weights=_moved(network, {key: rate * step for key, step in steps.items()}))


def _moved(network: FlowNetwork, steps: Edges) -> dict[str, dict[str, dict[str, float]]]:
    found = {row: {start: dict(ends) for start, ends in starts.items()} for row, starts in network.weights.items()}
    for (row, start, end), step in steps.items():
        ends = found.setdefault(row, {}).setdefault(start, {})
        ends[end] = ends.get(end, 0.0) + step
    return found
