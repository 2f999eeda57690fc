"""Growth of a network from successful episodes; each action joins the most similar node or creates a new node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from marft.common.texts import cut, one_line
from marft.common.types import Action, Episode
from marft_lab.flows.likeness import added, nearest, vectors_of
from marft_lab.flows.network import ANY, MOST_NODES, SINK, SOURCE, STOP, Context, Edge, FlowNetwork, Node

TOLD = "Do what was done here, for your own task:\n"
NAME_WORDS, EXAMPLE = 3, 400  # words in a name; characters in an example
_TAGS = str.maketrans("<>", "  ")


@dataclass(frozen=True, slots=True)
class Growth:
    """Options of network growth.

    Args:
        threshold: minimum cosine similarity to join a node of the same role, or a context.
        least: minimum actions per node; nodes with fewer actions are removed with their edges.
        instructed: True to use the example as instructions of a new node; False leaves them empty.
        apart: roles without nodes, such as a router.
        dimensions: length of the vectors.
        embed: import path of the embedding function; "" hashes word pieces.
    """

    threshold: float = 0.5
    least: int = 1
    instructed: bool = True
    apart: frozenset[str] = frozenset()
    dimensions: int = 256
    embed: str = ""


def grown(episodes: Iterable[Episode], growth: Growth, network: FlowNetwork | None = None) -> FlowNetwork:
    """Grow a network from successful episodes, or extend an existing network.

    Nodes and contexts of ``network`` stay and grow. Learned weights, instructions and skips stay.

    Args:
        episodes: episodes; failed and unsuccessful episodes are ignored.
        growth: options of the growth.
        network: network to extend; None starts empty.

    Raises:
        ValueError: no successful episode, no path with at least ``least`` actions per node, too many nodes or contexts,
            or a ``network`` with a different ``embed``.
    """
    if network is not None:  # new vectors are compared with the vectors of the network
        if network.embed != growth.embed:
            raise ValueError(
                f"the network's vectors were made by {network.embed!r}; grow it on with the same: --embed "
                f"{network.embed!r}, if you trust that code"
            )
        growth = replace(growth, threshold=network.threshold, dimensions=network.dimensions)
    nodes = list(network.nodes) if network else []
    contexts = list(network.contexts) if network else []
    # counts by context; ANY counts occurrences without a recorded context
    edges: dict[tuple[str, str], Counter[str]] = {}
    for edge in network.edges if network else ():
        noted = Counter(edge.by_context)
        edges[edge.start, edge.end] = noted + Counter({ANY: edge.count - noted.total()})
    grew = 0
    for episode in episodes:
        if not episode.scored or not episode.success:
            continue
        grew += 1
        context = _join_context(contexts, episode.task.prompt, growth)
        for _, actions in groupby(_acts(episode, growth), key=lambda action: action.step):
            names = [_join_node(nodes, action, growth) for action in actions]
            for pair in pairwise((SOURCE, *names, SINK)):
                edges.setdefault(pair, Counter())[context] += 1
    if not grew:
        raise ValueError("no episode succeeded, and a flow network is grown from those that did; train longer first")
    found = _trimmed(nodes, edges, growth.least)
    base = network or FlowNetwork((), (), (), threshold=growth.threshold, dimensions=growth.dimensions)
    gone = {node.name for node in nodes} - {node.name for node in found[0]}
    skips = {context: tuple(n for n in names if n not in gone) for context, names in base.skips.items()}
    made = replace(base, nodes=found[0], edges=found[1], contexts=tuple(contexts), embed=growth.embed, skips=skips)
    if len(made.nodes) > MOST_NODES or len(contexts) > MOST_NODES:
        raise ValueError(
            f"{len(made.nodes)} nodes and {len(contexts)} kinds of tasks, where {MOST_NODES} are the most: lower the "
            "threshold, so that more is alike, or raise least"
        )
    if not made.edges:
        raise ValueError(
            f"no path is left of {grew} successful episodes: no {growth.least} actions did the same in any of them; "
            "lower the threshold, or least"
        )
    if problems := made.problems():
        raise ValueError(f"what is grown is no flow network: {'; '.join(problems)}")
    return made


def _acts(episode: Episode, growth: Growth) -> Iterator[Action]:
    """Return the actions that become nodes, in request order."""
    return (action for action in episode.actions if action.agent not in growth.apart and action.choice is None)


def _join_context(contexts: list[Context], prompt: str, growth: Growth) -> str:
    """Add a prompt to the nearest or a new context, and return the context's name."""
    vector = vectors_of([prompt], growth.dimensions, growth.embed)[0]
    place = nearest(vector, [context.vector for context in contexts], growth.threshold)
    if place is None:
        name = _free(_words(prompt) or "task", [context.name for context in contexts])
        contexts.append(Context(name, cut(one_line(prompt), EXAMPLE), 1, added((), vector)))
        return name
    context = contexts[place]
    contexts[place] = replace(context, count=context.count + 1, vector=added(context.vector, vector))
    return context.name


def _join_node(nodes: list[Node], action: Action, growth: Growth) -> str:
    """Add an action to its role's nearest node or to a new node, and return the node's name."""
    vector = vectors_of([action.own_text], growth.dimensions, growth.embed)[0]
    same = [place for place, node in enumerate(nodes) if node.role == action.agent]
    found = nearest(vector, [nodes[place].vector for place in same], growth.threshold)
    if found is None:
        words = _words(action.own_text)
        taken = [*(node.name for node in nodes), SOURCE, SINK, STOP]
        name = _free(f"{action.agent}: {words}" if words else action.agent, taken)
        example = cut(action.own_text.strip(), EXAMPLE)
        instructions = f"{TOLD}{example}" if growth.instructed and example else ""
        nodes.append(Node(name, action.agent, instructions, example, 1, added((), vector)))
        return name
    node = nodes[same[found]]
    nodes[same[found]] = replace(node, count=node.count + 1, vector=added(node.vector, vector))
    return node.name


def _words(text: str) -> str:
    """Return the first words of a text, as a name without tag characters, because names appear in critic prompts."""
    return " ".join(one_line(text.translate(_TAGS)).split()[:NAME_WORDS])[:40].strip(" :,.;")


def _free(name: str, taken: Sequence[str]) -> str:
    """Return a unique name, with a number if the name is taken.

    >>> _free("plan", ["plan", "plan 2"])
    'plan 3'
    """
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name} {number}"
    return found


def _trimmed(
    nodes: Sequence[Node], edges: Mapping[tuple[str, str], Counter[str]], least: int
) -> tuple[tuple[Node, ...], tuple[Edge, ...]]:
    """Return the nodes with enough actions on a path from source to sink, and their edges."""
    kept = {node.name for node in nodes if node.count >= least} | {SOURCE, SINK}
    kept &= _reached(edges, kept, SOURCE, 1) & _reached(edges, kept, SINK, -1)
    some = sorted(pair for pair in edges if kept.issuperset(pair))
    left = tuple(Edge(*pair, edges[pair].total(), _noted(edges[pair])) for pair in some)
    return tuple(node for node in nodes if node.name in kept), left


def _noted(counts: Mapping[str, int]) -> dict[str, int]:
    return {context: count for context, count in sorted(counts.items()) if context != ANY}


def _reached(edges: Iterable[tuple[str, str]], kept: set[str], start: str, way: int) -> set[str]:
    """Return the kept nodes reachable from ``start``, along edges (``way = 1``) or against edges (``way = -1``)."""
    follows: dict[str, list[str]] = {}
    for pair in edges:
        one, other = pair[::way]
        follows.setdefault(one, []).append(other)
    seen, waiting = {start}, [start]
    while waiting:
        new = [name for name in follows.get(waiting.pop(), ()) if name in kept and name not in seen]
        seen.update(new)
        waiting += new
    return seen
