"""Growth of a network from successful episodes; each action joins the most similar node or creates a new node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from marft.common.errors import UserError
from marft.common.texts import single_line, truncate
from marft.common.types import Action, Episode
from marft_lab.flows.network import (
    ANY,
    MAX_NODES,
    SINK,
    SOURCE,
    STOP,
    Context,
    Edge,
    FlowNetwork,
    Node,
    add_vectors,
    embed_texts,
    find_nearest,
    reachable_nodes,
)

INSTRUCTION_PREFIX = "Do what was done here, for your own task:\n"
NAME_WORDS, MAX_EXAMPLE_CHARS = 3, 400  # words in a name; characters in an example
_TAGS = str.maketrans("<>", "  ")


@dataclass(frozen=True, slots=True)
class GrowthOptions:
    """Options of network growth.

    Args:
        threshold: minimum cosine similarity to join a node of the same role, or a context.
        min_actions: minimum actions per node; nodes with fewer actions are removed with their edges.
        with_instructions: True to use the example as instructions of a new node; False leaves them empty.
        excluded_roles: roles without nodes, such as a router.
        dimensions: length of the vectors.
        embed: import path of the embedding function; "" hashes word pieces.
    """

    threshold: float = 0.5
    min_actions: int = 1
    with_instructions: bool = True
    excluded_roles: frozenset[str] = frozenset()
    dimensions: int = 256
    embed: str = ""


def grow_network(
    episodes: Iterable[Episode], options: GrowthOptions, network: FlowNetwork | None = None
) -> FlowNetwork:
    """Grow a network from successful episodes, or extend an existing network.

    Nodes and contexts of ``network`` stay and grow. Learned weights, instructions and skips stay.

    Args:
        episodes: episodes; failed and unsuccessful episodes are ignored.
        options: options of the growth.
        network: network to extend; None starts empty.

    Raises:
        UserError: no successful episode, no path with at least ``least`` actions per node, too many nodes or contexts,
            or a ``network`` with a different ``embed``.
    """
    if network is not None:  # new vectors are compared with the vectors of the network
        if network.embed != options.embed:
            raise UserError(
                f"the network's vectors were made by {network.embed!r}; grow it on with the same: --embed "
                f"{network.embed!r}, if you trust that code"
            )
        options = replace(options, threshold=network.threshold, dimensions=network.dimensions)
    nodes = list(network.nodes) if network else []
    contexts = list(network.contexts) if network else []
    # counts by context; ANY counts occurrences without a recorded context
    edges: dict[tuple[str, str], Counter[str]] = {}
    for edge in network.edges if network else ():
        counts = Counter(edge.by_context)
        edges[edge.start, edge.end] = counts + Counter({ANY: edge.count - counts.total()})
    success_count = 0
    for episode in episodes:
        if not episode.is_scored or not episode.success:
            continue
        success_count += 1
        context = _join_context(contexts, episode.task.prompt, options)
        for _, actions in groupby(_node_actions(episode, options), key=lambda action: action.step):
            names = [_join_node(nodes, action, options) for action in actions]
            for pair in pairwise((SOURCE, *names, SINK)):
                edges.setdefault(pair, Counter())[context] += 1
    if not success_count:
        raise UserError("no episode succeeded, and a flow network is grown from those that did; train longer first")
    trimmed = _trim_network(nodes, edges, options.min_actions)
    base = network or FlowNetwork((), (), (), threshold=options.threshold, dimensions=options.dimensions)
    removed = {node.name for node in nodes} - {node.name for node in trimmed[0]}
    skips = {context: tuple(n for n in names if n not in removed) for context, names in base.skips.items()}
    result = replace(
        base, nodes=trimmed[0], edges=trimmed[1], contexts=tuple(contexts), embed=options.embed, skips=skips
    )
    if len(result.nodes) > MAX_NODES or len(contexts) > MAX_NODES:
        raise UserError(
            f"{len(result.nodes)} nodes and {len(contexts)} kinds of tasks, where {MAX_NODES} are the most: lower the "
            "threshold, so that more is alike, or raise least"
        )
    if not result.edges:
        raise UserError(
            f"no path is left of {success_count} successful episodes: no {options.min_actions} actions did the same in "
            "any of them; lower the threshold, or least"
        )
    if problems := result.problems():
        raise UserError(f"what is grown is no flow network: {'; '.join(problems)}")
    return result


def _node_actions(episode: Episode, options: GrowthOptions) -> Iterator[Action]:
    """Return the actions that become nodes, in request order."""
    return (
        action for action in episode.actions if action.agent not in options.excluded_roles and action.choice is None
    )


def _join_context(contexts: list[Context], prompt: str, options: GrowthOptions) -> str:
    """Add a prompt to the nearest or a new context, and return the context's name."""
    vector = embed_texts([prompt], options.dimensions, options.embed)[0]
    index = find_nearest(vector, [context.vector for context in contexts], options.threshold)
    if index is None:
        name = _unique_name(_short_name(prompt) or "task", [context.name for context in contexts])
        contexts.append(Context(name, truncate(single_line(prompt), MAX_EXAMPLE_CHARS), 1, add_vectors((), vector)))
        return name
    context = contexts[index]
    contexts[index] = replace(context, count=context.count + 1, vector=add_vectors(context.vector, vector))
    return context.name


def _join_node(nodes: list[Node], action: Action, options: GrowthOptions) -> str:
    """Add an action to its role's nearest node or to a new node, and return the node's name."""
    vector = embed_texts([action.agent_text], options.dimensions, options.embed)[0]
    role_indices = [number for number, node in enumerate(nodes) if node.role == action.agent]
    index = find_nearest(vector, [nodes[number].vector for number in role_indices], options.threshold)
    if index is None:
        words = _short_name(action.agent_text)
        used_names = [*(node.name for node in nodes), SOURCE, SINK, STOP]
        name = _unique_name(f"{action.agent}: {words}" if words else action.agent, used_names)
        example = truncate(action.agent_text.strip(), MAX_EXAMPLE_CHARS)
        instructions = f"{INSTRUCTION_PREFIX}{example}" if options.with_instructions and example else ""
        nodes.append(Node(name, action.agent, instructions, example, 1, add_vectors((), vector)))
        return name
    node = nodes[role_indices[index]]
    nodes[role_indices[index]] = replace(node, count=node.count + 1, vector=add_vectors(node.vector, vector))
    return node.name


def _short_name(text: str) -> str:
    """Return the first words of a text, as a name without tag characters, because names appear in critic prompts."""
    return " ".join(single_line(text.translate(_TAGS)).split()[:NAME_WORDS])[:40].strip(" :,.;")


def _unique_name(name: str, used_names: Sequence[str]) -> str:
    """Return a unique name, with a number if the name is taken.

    >>> _unique_name("plan", ["plan", "plan 2"])
    'plan 3'
    """
    number, candidate = 1, name
    while candidate in used_names:
        number += 1
        candidate = f"{name} {number}"
    return candidate


def _trim_network(
    nodes: Sequence[Node], edges: Mapping[tuple[str, str], Counter[str]], min_actions: int
) -> tuple[tuple[Node, ...], tuple[Edge, ...]]:
    """Return the nodes with enough actions on a path from source to sink, and their edges."""
    kept_names = {node.name for node in nodes if node.count >= min_actions} | {SOURCE, SINK}
    pairs = [pair for pair in edges if kept_names.issuperset(pair)]
    kept_names &= reachable_nodes(pairs, SOURCE) & reachable_nodes([(end, start) for start, end in pairs], SINK)
    pairs = sorted(pair for pair in pairs if kept_names.issuperset(pair))
    kept_edges = tuple(Edge(*pair, edges[pair].total(), _context_counts(edges[pair])) for pair in pairs)
    return tuple(node for node in nodes if node.name in kept_names), kept_edges


def _context_counts(counts: Mapping[str, int]) -> dict[str, int]:
    return {context: count for context, count in sorted(counts.items()) if context != ANY}
