"""Which edge is taken: a softmax over the edges of a node, learned by REINFORCE from what whole paths earned.

``π(v | u, c) ∝ exp((log(n_c(u, v) + n(u, v) / n(u)) + θ(u, v) + θ_c(u, v)) / T)`` over the edges (u, v) whose end has
not been visited. n_c counts an edge in successful episodes of the task's context c, n in all of them, which weigh as
much as one visit; θ is learned from all tasks and θ_c from those of the context. That is our reading: MANGO's state,
how similar task and roles are, is here the context, and how often and for which tasks an edge was worth taking.
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
    """Return the context most similar to a prompt; ANY if the network has none or none is similar."""
    if not network.contexts:
        return ANY
    vector = vectors_of([prompt], network.dimensions, network.embed)[0]
    place = nearest(vector, [context.vector for context in network.contexts], network.threshold)
    return ANY if place is None else network.contexts[place].name


def odds(network: FlowNetwork, context: str, at: str, visited: Sequence[str] = ()) -> dict[str, float]:
    """The logit of each edge that leaves a node, for tasks of a context; {}: it is a dead end."""
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
    """Softmax; at temperature 0 all of it is the first of the likeliest.

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
    """Nodes from the source to the sink, skipped ones included: none twice, at most ``most``, fewer at a dead end."""
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
    """Return the nodes of a path that act; if all are skipped, the last one acts."""
    passed = network.passed_by(context)
    return tuple(name for name in path if name not in passed) or tuple(path[-1:])


def decisions(network: FlowNetwork, path: Sequence[str], most: int) -> list[tuple[str, str]]:
    """The edges that a walk chose: the one to the sink too, where it had not to end."""
    stops = [SINK] if len(path) < most and _may_end(network, path) else []
    steps = [SOURCE, *path, *stops]
    return list(pairwise(steps))


def _may_end(network: FlowNetwork, path: Sequence[str]) -> bool:
    """Whether the sink comes right after the end of a path."""
    return SINK in network.after(path[-1] if path else SOURCE)


def log_chance(network: FlowNetwork, context: str, path: Sequence[str], most: int) -> float:
    """The logarithm of the probability of a walk at temperature 1."""
    total = 0.0
    for place, (start, end) in enumerate(decisions(network, path, most)):
        total += math.log(chances(odds(network, context, start, path[:place]))[end])
    return total


def score(network: FlowNetwork, context: str, path: Sequence[str], most: int) -> dict[tuple[str, str, str], float]:
    """The gradient of :func:`log_chance` in the weights of its own context and of all: 1 − π of each edge taken, −π of
    each other one."""
    found: dict[tuple[str, str, str], float] = {}
    for place, (start, end) in enumerate(decisions(network, path, most)):
        for other, share in chances(odds(network, context, start, path[:place])).items():
            for row in dict.fromkeys((ANY, context)):
                found[row, start, other] = float(other == end) - share  # a walk leaves no node twice
    return found


@dataclass(frozen=True, slots=True)
class Walked:
    """A walk, and what its episode earned.

    Args:
        episode: its number: walks of one episode earned together.
    """

    context: str
    path: tuple[str, ...]
    earned: float
    episode: int


def advantages(walks: Sequence[Walked]) -> list[float]:
    """What each earned beyond the mean of its context's walks in other episodes (leave one out); 0 where there are
    none."""
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
    """A step of REINFORCE up the mean over walks of ``A ∇ log π(path)``, in the weights of each context the mean over
    its own walks (Williams 1992)."""
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
