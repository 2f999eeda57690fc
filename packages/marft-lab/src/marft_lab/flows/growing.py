"""A network from successful episodes: an action joins the node that does most nearly the same, or founds a new one."""

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
NAME_WORDS, EXAMPLE = 3, 400  # words of a name; characters of an example
_TAGS = str.maketrans("<>", "  ")


@dataclass(frozen=True, slots=True)
class Growth:
    """How a network is grown.

    Args:
        threshold: cosine from which on an action joins a node of its role, and a task a context.
        least: actions that a node needs to stay; nodes with fewer go, and edges with them.
        instructed: whether a new node's instructions are its example; else they are empty.
        apart: roles whose actions are no nodes: a router's.
    """

    threshold: float = 0.5
    least: int = 1
    instructed: bool = True
    apart: frozenset[str] = frozenset()
    dimensions: int = 256
    embed: str = ""


def grown(episodes: Iterable[Episode], growth: Growth, network: FlowNetwork | None = None) -> FlowNetwork:
    """A network from the episodes that succeeded, or a larger one.

    Nodes and contexts are what they were in ``network``, and grow; what was learned, reworded and skipped stays.

    Raises:
        ValueError: none of the episodes succeeded, or fewer than ``least`` did anything alike, or so many did different
            things that no network holds them; or ``network`` was made with another ``embed``.
    """
    if network is not None:  # whose vectors are compared with new ones
        if network.embed != growth.embed:
            raise ValueError(
                f"the network's vectors were made by {network.embed!r}; grow it on with the same: --embed "
                f"{network.embed!r}, if you trust that code"
            )
        growth = replace(growth, threshold=network.threshold, dimensions=network.dimensions)
    nodes = list(network.nodes) if network else []
    contexts = list(network.contexts) if network else []
    edges: dict[tuple[str, str], Counter[str]] = {}  # by context; ANY: of those that nobody noted
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
    """The actions that are nodes, in the order asked for."""
    return (action for action in episode.actions if action.agent not in growth.apart and action.choice is None)


def _join_context(contexts: list[Context], prompt: str, growth: Growth) -> str:
    """The context that a task joins or founds."""
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
    """The node that an action joins or founds: one of its own agent's, whose seat can do it again."""
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
    """The first words of a text, for a name, which stands in questions to critics: without what tags are made of."""
    return " ".join(one_line(text.translate(_TAGS)).split()[:NAME_WORDS])[:40].strip(" :,.;")


def _free(name: str, taken: Sequence[str]) -> str:
    """A name that nobody has.

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
    """What is done often enough, and lies on a path from the source to the sink."""
    kept = {node.name for node in nodes if node.count >= least} | {SOURCE, SINK}
    kept &= _reached(edges, kept, SOURCE, 1) & _reached(edges, kept, SINK, -1)
    some = sorted(pair for pair in edges if kept.issuperset(pair))
    left = tuple(Edge(*pair, edges[pair].total(), _noted(edges[pair])) for pair in some)
    return tuple(node for node in nodes if node.name in kept), left


def _noted(counts: Mapping[str, int]) -> dict[str, int]:
    return {context: count for context, count in sorted(counts.items()) if context != ANY}


def _reached(edges: Iterable[tuple[str, str]], kept: set[str], start: str, way: int) -> set[str]:
    """What can be come to from ``start`` over what is kept, along edges or against them."""
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
