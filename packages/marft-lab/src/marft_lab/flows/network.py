"""A flow network: what agents do (nodes), what follows on what (edges), kinds of tasks (contexts). Frozen, and JSON.

The idea is MANGO's (Wang et al. 2026), of which we know the abstract and summaries: what is not said there is our
reading (docs/flows.md).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from marft.common import atomic
from marft.common.atomic import regular

SOURCE, SINK = "source", "sink"  # where every path begins and ends; no node is called so
STOP = "stop"  # what a router says to go to the sink
ANY = ""  # the context of tasks that are like none, and of weights that hold for all
MOST_NODES = 1000  # and contexts
MOST_DIMENSIONS = 8192
STRICT = ConfigDict(extra="forbid")  # of what is read: no keys that nobody knows
Vector = tuple[float, ...]  # [d], a sum of vectors of length 1
Weights = Mapping[str, Mapping[str, Mapping[str, float]]]  # by context, start and end of an edge


@dataclass(frozen=True, slots=True)
class Node:
    """Something that an agent does.

    Args:
        role: of the agent that does it.
        instructions: what it is told beside what it is shown.
        example: what it was like when it was first done.
        count: actions of successful episodes that joined it, whose vectors' sum is ``vector``.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: str
    role: str
    instructions: str = ""
    example: str = ""
    count: int = 1
    vector: Vector = ()


@dataclass(frozen=True, slots=True)
class Context:
    """A kind of task: what the prompts of ``count`` successful episodes had in common."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: str
    example: str = ""
    count: int = 1
    vector: Vector = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """``end`` came right after ``start``, so often; ``by_context`` says for which tasks."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    start: str
    end: str
    count: int = 1
    by_context: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that was tried with a network, and whether it was kept: its lineage.

    ``gain`` is of held-out success, on so many ``tasks``; ``low`` and ``high`` are the ends of its interval where
    instructions are judged, and bounds of one side each where a skip is (flows/board.py).
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    kind: Literal["instructions", "skip"]
    node: str
    context: str
    before: str
    after: str
    kept: bool
    gain: float
    low: float
    high: float
    tasks: int


@dataclass(frozen=True, slots=True)
class FlowNetwork:
    """
    >>> plan, do = Node("plan", "planner"), Node("do", "worker")
    >>> edges = (Edge(SOURCE, "plan"), Edge("plan", "do"), Edge("do", SINK))
    >>> FlowNetwork((plan, do), edges).after("plan")
    ('do',)

    Args:
        weights: what learning has added to the logarithm of an edge's count.
        skips: nodes that are passed by, by context.
        embed: import path of what made the vectors; "": hashed pieces of words.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    contexts: tuple[Context, ...] = ()
    weights: Weights = field(default_factory=dict)
    skips: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lineage: tuple[Change, ...] = ()
    threshold: float = 0.5
    dimensions: int = 256
    embed: str = ""

    def node(self, name: str) -> Node:
        """
        Raises:
            KeyError: there is none.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    def after(self, name: str) -> tuple[str, ...]:
        """What has come after a node, most often first."""
        ends = sorted((edge for edge in self.edges if edge.start == name), key=lambda edge: (-edge.count, edge.end))
        return tuple(edge.end for edge in ends)

    def passed_by(self, context: str) -> frozenset[str]:
        """Nodes that are skipped for tasks of a context."""
        return frozenset(self.skips.get(context, ()))

    def problems(self) -> list[str]:
        """What is wrong with it: names that come twice or are nobody's, a source or a sink out of reach."""
        names = [node.name for node in self.nodes]
        found = [f"two nodes are called {name!r}" for name in sorted({n for n in names if names.count(n) > 1})]
        found += [f"no node may be called {name!r}" for name in (SOURCE, SINK, ANY, STOP) if name in names]
        kinds = [context.name for context in self.contexts]
        found += [f"two contexts are called {name!r}" for name in sorted({k for k in kinds if kinds.count(k) > 1})]
        found += ["a context has no name"] if ANY in kinds else []
        pairs = Counter((edge.start, edge.end) for edge in self.edges)
        found += [f"the edge {one!r} to {two!r} comes twice" for (one, two), times in pairs.items() if times > 1]
        known = {*names, SOURCE, SINK}
        ends = {name for edge in self.edges for name in (edge.start, edge.end)}
        found += [f"an edge names {name!r}, which is no node" for name in sorted(ends - known)]
        found += [f"an edge leads from {e.start!r} back to the source" for e in self.edges if e.end == SOURCE]
        found += [f"an edge leads from the sink on to {e.end!r}" for e in self.edges if e.start == SINK]
        if SINK in self.after(SOURCE):
            found.append("an edge leads from the source to the sink, where nobody acts")
        skipped = {name for skips in self.skips.values() for name in skips}
        found += [f"a skip names {name!r}, which is no node" for name in sorted(skipped - known)]
        found += [
            f"the edge {e.start!r} to {e.end!r} has been taken {e.count} times" for e in self.edges if e.count < 1
        ]
        if not all(math.isfinite(w) for row in self.weights.values() for ends in row.values() for w in ends.values()):
            found.append("a weight is no finite number")
        if max(len(names), len(self.contexts)) > MOST_NODES:
            found.append(f"more than {MOST_NODES} nodes or contexts")
        found += self._odd_numbers()
        if not found and not _reaches_sink(self):
            found.append("no path leads from the source to the sink")
        return found

    def _odd_numbers(self) -> list[str]:
        """Vectors that cannot be compared, and counts that nothing can have been."""
        found, sized = list[str](), (0, self.dimensions)
        if not 1 <= self.dimensions <= MOST_DIMENSIONS:
            found.append(f"vectors of {self.dimensions} numbers")
        if not math.isfinite(self.threshold):
            found.append("the threshold is no finite number")
        vectors = [(node.name, node.vector) for node in self.nodes]
        vectors += [(context.name, context.vector) for context in self.contexts]
        for name, vector in vectors:
            if len(vector) not in sized or not all(map(math.isfinite, vector)):
                found.append(f"the vector of {name!r} is none of {self.dimensions} finite numbers")
        for edge in self.edges:
            if any(count < 0 for count in edge.by_context.values()):
                found.append(f"the edge {edge.start!r} to {edge.end!r} has been taken less than never in a context")
        return found

    def to_json(self) -> str:
        return _ADAPTER.dump_json(self, indent=1).decode() + "\n"

    @property
    def digest(self) -> str:
        """What tells it from others."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


_ADAPTER = TypeAdapter(FlowNetwork)


def _reaches_sink(network: FlowNetwork) -> bool:
    seen, waiting = {SOURCE}, [SOURCE]
    while waiting:
        new = [end for end in network.after(waiting.pop()) if end not in seen]
        seen.update(new)
        waiting += new
    return SINK in seen


def read_network(path: Path) -> FlowNetwork:
    """
    Raises:
        ValueError: it cannot be read, or is no flow network.
    """
    remedy = "marft flow grow RUN --to FILE makes one"
    try:
        network = _ADAPTER.validate_json(regular(path).read_bytes())
    except OSError as error:
        raise ValueError(f"cannot read the flow network {path}: {error.strerror}; {remedy}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise ValueError(f"{path} is no flow network: {place}: {first['msg']}; {remedy}") from error
    if problems := network.problems():
        raise ValueError(f"the flow network {path}: {'; '.join(problems)}; {remedy}")
    return network


def write_network(path: Path, network: FlowNetwork) -> None:
    """Write one, whole or not at all."""
    assert not network.problems(), network.problems()
    atomic.write_file(path, network.to_json())
