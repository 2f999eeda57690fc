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

from marft_lab.flows.network import ANY, SINK, SOURCE, FlowNetwork, embed_texts, find_nearest

Edges = Mapping[tuple[str, str, str], float]  # by context, start and end


def match_context(network: FlowNetwork, prompt: str) -> str:
    """Return the context most similar to a prompt; ANY without contexts or without a similar context."""
    if not network.contexts:
        return ANY
    vector = embed_texts([prompt], network.dimensions, network.embed)[0]
    index = find_nearest(vector, [context.vector for context in network.contexts], network.threshold)
    return ANY if index is None else network.contexts[index].name


def edge_logits(network: FlowNetwork, context: str, node: str, visited: Sequence[str] = ()) -> dict[str, float]:
    """Return the logit per outgoing edge, for a context's tasks; {} at a dead end.

    Args:
        network: flow network.
        context: name of the context.
        node: name of the node.
        visited: nodes to exclude.
    """
    outgoing = [edge for edge in network.edges if edge.start == node]
    total = sum(edge.count for edge in outgoing)
    shared, context_weights = (network.weights.get(name, {}).get(node, {}) for name in (ANY, context))
    if context == ANY:
        context_weights = {}
    logits = {}
    for edge in outgoing:
        if edge.end not in visited:
            seen = edge.count if context == ANY else edge.by_context.get(context, 0)
            prior = math.log(seen + edge.count / total)
            logits[edge.end] = prior + shared.get(edge.end, 0.0) + context_weights.get(edge.end, 0.0)
    return logits


def edge_probabilities(logits: Mapping[str, float], temperature: float = 1.0) -> dict[str, float]:
    """Return the softmax of logits.

    At temperature 0, the first of the likeliest edges has probability 1.

    >>> edge_probabilities({"a": 0.0, "b": 0.0})
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


def sample_path(
    network: FlowNetwork, context: str, max_nodes: int, temperature: float, random: Random
) -> tuple[str, ...]:
    """Sample a path of nodes from the source to the sink, with skipped nodes.

    No node repeats. The path has at most ``max_nodes`` nodes, and ends early at a dead end.
    """
    node, path = SOURCE, list[str]()
    while len(path) < max_nodes:
        logits = edge_logits(network, context, node, path)
        if not logits:
            break
        probabilities = edge_probabilities(logits, temperature)
        node = random.choices(list(probabilities), list(probabilities.values()))[0]
        if node == SINK:
            break
        path.append(node)
    return tuple(path)


def active_nodes(network: FlowNetwork, context: str, path: Sequence[str]) -> tuple[str, ...]:
    """Return a path's acting nodes; if every node is skipped, the last node acts."""
    passed = network.skipped_nodes(context)
    return tuple(name for name in path if name not in passed) or tuple(path[-1:])


def path_edges(network: FlowNetwork, path: Sequence[str], max_nodes: int) -> list[tuple[str, str]]:
    """Return the chosen edges of a path, with the edge to the sink if the end was a choice."""
    stops = [SINK] if len(path) < max_nodes and _can_end(network, path) else []
    steps = [SOURCE, *path, *stops]
    return list(pairwise(steps))


def _can_end(network: FlowNetwork, path: Sequence[str]) -> bool:
    """Return True for a path with the sink among its next nodes."""
    return SINK in network.successors(path[-1] if path else SOURCE)


def log_prob_gradient(
    network: FlowNetwork, context: str, path: Sequence[str], max_nodes: int
) -> dict[tuple[str, str, str], float]:
    """Return the gradient of a path's log-probability in the shared weights and in the weights of the path's context.

    The gradient is 1 − π for a chosen edge, and −π for each alternative edge. Keys are (context, start, end).
    """
    gradient: dict[tuple[str, str, str], float] = {}
    for index, (start, end) in enumerate(path_edges(network, path, max_nodes)):
        for option, probability in edge_probabilities(edge_logits(network, context, start, path[:index])).items():
            for row in dict.fromkeys((ANY, context)):
                gradient[row, start, option] = float(option == end) - probability  # a path leaves no node twice
    return gradient


@dataclass(frozen=True, slots=True)
class PathReturn:
    """Path with its return.

    Args:
        context: context of the task.
        path: names of the nodes.
        episode_return: return of the episode.
        episode: number of the episode; paths of one episode share their return.
    """

    context: str
    path: tuple[str, ...]
    episode_return: float
    episode: int


def compute_advantages(path_returns: Sequence[PathReturn]) -> list[float]:
    """Return leave-one-out advantages, shape [paths]: return minus the mean over the context's paths in other episodes.

    The advantage is 0 without other episodes.
    """
    sums: dict[tuple[str, int | None], tuple[float, int]] = {}
    for path_return in path_returns:
        for key in ((path_return.context, None), (path_return.context, path_return.episode)):
            total, count = sums.get(key, (0.0, 0))
            sums[key] = total + path_return.episode_return, count + 1
    results = []
    for path_return in path_returns:
        total, count = sums[path_return.context, None]
        own_total, own_count = sums[path_return.context, path_return.episode]
        mean = (total - own_total) / (count - own_count) if count > own_count else path_return.episode_return
        results.append(path_return.episode_return - mean)
    return results


def reinforce_step(
    network: FlowNetwork, path_returns: Sequence[PathReturn], rate: float, max_nodes: int
) -> FlowNetwork:
    """Return the network after one REINFORCE step: the mean over paths of ``A ∇ log π(path)`` (Williams 1992).

    Weights of a context average over the context's own paths.

    Args:
        network: flow network.
        path_returns: paths with returns.
        rate: learning rate.
        max_nodes: maximum nodes per path.
    """
    counts: dict[str, int] = {}
    for path_return in path_returns:
        for row in dict.fromkeys((ANY, path_return.context)):
            counts[row] = counts.get(row, 0) + 1
    steps: dict[tuple[str, str, str], float] = {}
    for path_return, advantage in zip(path_returns, compute_advantages(path_returns), strict=True):
        if advantage:
            for key, gradient in log_prob_gradient(network, path_return.context, path_return.path, max_nodes).items():
                steps[key] = steps.get(key, 0.0) + advantage * gradient / counts[key[0]]
    return replace(network, weights=_add_steps(network, {key: rate * step for key, step in steps.items()}))


def _add_steps(network: FlowNetwork, steps: Edges) -> dict[str, dict[str, dict[str, float]]]:
    weights = {row: {start: dict(ends) for start, ends in starts.items()} for row, starts in network.weights.items()}
    for (row, start, end), step in steps.items():
        ends = weights.setdefault(row, {}).setdefault(start, {})
        ends[end] = ends.get(end, 0.0) + step
    return weights
