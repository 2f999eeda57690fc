"""Flow network: agents' actions (nodes), transitions (edges) and kinds of tasks (contexts); immutable, stored as JSON.

The idea is from MANGO (Wang et al. 2026), known to us only by its abstract and summaries. All details beyond these
sources are OUR READING (docs/flows.md).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError

from marft.agents.memories.index import hash_text, validate_embeddings
from marft.common import atomic
from marft.common.atomic import check_regular_file
from marft.common.errors import UserError
from marft.config.load import first_problem
from marft.config.plugins import import_object

Vectors = NDArray[np.float32]  # [n, d], each of length 1 or zero
DIGITS = 4  # decimals of a stored vector element
SOURCE, SINK = "source", "sink"  # reserved names of the start and the end of every path
STOP = "stop"  # answer of a router to go to the sink
ANY = ""  # context of tasks without a similar context, and of weights shared by all contexts
MAX_NODES = 1000  # maximum nodes, and maximum contexts
MAX_DIMENSIONS = 8192
STRICT = ConfigDict(extra="forbid")  # reject unknown keys in files
Vector = tuple[float, ...]  # [d], a sum of unit vectors
Weights = Mapping[str, Mapping[str, Mapping[str, float]]]  # by context, start and end of an edge


def embed_texts(texts: Sequence[str], dimensions: int, embed: str = "") -> Vectors:
    """Return texts as vectors, shape [texts, dimensions], from hashed word pieces or from a custom function.

    Args:
        texts: texts to embed.
        dimensions: length of a vector.
        embed: import path of a function from texts to vectors; "" hashes word pieces.

    Raises:
        UserError: the function returns vectors of the wrong shape or with invalid numbers.
    """
    if not embed:
        return np.array([_hashed_vector(text, dimensions) for text in texts], np.float32).reshape(
            len(texts), dimensions
        )
    return validate_embeddings(import_object(embed)(list(texts)), len(texts), dimensions, embed)


@lru_cache(4096)
def _hashed_vector(text: str, dimensions: int) -> NDArray[np.float32]:
    return hash_text(text, dimensions)  # cached, because tasks are played often


def cosine_similarity(vector: NDArray[np.floating], other: Sequence[float]) -> float:
    """Return the cosine similarity of two vectors; 0 for a zero or empty vector.

    The result is rounded to six decimals, so that the order of summation does not decide.

    >>> cosine_similarity(np.array([3.0, 4.0]), (6.0, 8.0))
    1.0
    """
    a, b = np.asarray(vector, np.float64), np.asarray(other, np.float64)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return round(float(a @ b) / lengths, 6) if lengths else 0.0


def find_nearest(vector: NDArray[np.floating], candidates: Sequence[Sequence[float]], threshold: float) -> int | None:
    """Return the index of the most similar vector, the first in a tie; None if no vector reaches the threshold."""
    scores = [cosine_similarity(vector, candidate) for candidate in candidates]
    best = max(range(len(scores)), key=scores.__getitem__, default=None)
    return best if best is not None and scores[best] >= threshold else None


def add_vectors(vector: Sequence[float], other: NDArray[np.floating]) -> tuple[float, ...]:
    """Return the sum of two vectors, rounded for storage."""
    total = np.asarray(vector, np.float64) + other if len(vector) else np.asarray(other, np.float64)
    return tuple(np.round(total, DIGITS).tolist())


@dataclass(frozen=True, slots=True)
class Node:
    """Node of a flow network: an agent's action.

    Args:
        name: unique name.
        role: role of the acting agent.
        instructions: instructions for the agent, added to its observation.
        example: text of the first action.
        count: number of joined actions from successful episodes.
        vector: sum of the vectors of these actions.
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
    """Kind of task: common features in the prompts from ``count`` successful episodes."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: str
    example: str = ""
    count: int = 1
    vector: Vector = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """Transition from ``start`` to ``end`` with its count in successful episodes, in total and by context."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    start: str
    end: str
    count: int = 1
    by_context: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """Tried change of a network with its verdict, for the lineage.

    ``gain`` is the change of the held-out success rate on ``tasks`` tasks. For instructions, ``low`` and ``high`` are
    the ends of an interval. For a skip they are one-sided bounds (flows/tuning.py).
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
    """Flow network with nodes, edges and contexts.

    >>> plan, do = Node("plan", "planner"), Node("do", "worker")
    >>> edges = (Edge(SOURCE, "plan"), Edge("plan", "do"), Edge("do", SINK))
    >>> FlowNetwork((plan, do), edges).successors("plan")
    ('do',)

    Args:
        nodes: nodes.
        edges: edges.
        contexts: kinds of tasks.
        weights: learned terms, added to the log of an edge's count.
        skips: skipped nodes, by context.
        lineage: tried changes, oldest first.
        threshold: minimum cosine similarity to join a node or a context.
        dimensions: length of the vectors.
        embed: import path of the embedding function; "" hashes word pieces.
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
        """Return the node with a given name.

        Raises:
            KeyError: unknown name.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    def successors(self, name: str) -> tuple[str, ...]:
        """Return the successors of a node, most frequent first."""
        ends = sorted((edge for edge in self.edges if edge.start == name), key=lambda edge: (-edge.count, edge.end))
        return tuple(edge.end for edge in ends)

    def skipped_nodes(self, context: str) -> frozenset[str]:
        """Return the skipped nodes for tasks of a context."""
        return frozenset(self.skips.get(context, ()))

    def problems(self) -> list[str]:
        """Return all problems: duplicate or unknown names, invalid numbers, and an unreachable sink."""
        names = [node.name for node in self.nodes]
        messages = [f"two nodes are called {name!r}" for name in sorted({n for n in names if names.count(n) > 1})]
        messages += [f"no node may be called {name!r}" for name in (SOURCE, SINK, ANY, STOP) if name in names]
        kinds = [context.name for context in self.contexts]
        messages += [f"two contexts are called {name!r}" for name in sorted({k for k in kinds if kinds.count(k) > 1})]
        messages += ["a context has no name"] if ANY in kinds else []
        pairs = Counter((edge.start, edge.end) for edge in self.edges)
        messages += [
            f"the edge {first!r} to {second!r} comes twice" for (first, second), times in pairs.items() if times > 1
        ]
        known_names = {*names, SOURCE, SINK}
        ends = {name for edge in self.edges for name in (edge.start, edge.end)}
        messages += [f"an edge names {name!r}, which is no node" for name in sorted(ends - known_names)]
        messages += [f"an edge leads from {e.start!r} back to the source" for e in self.edges if e.end == SOURCE]
        messages += [f"an edge leads from the sink on to {e.end!r}" for e in self.edges if e.start == SINK]
        if SINK in self.successors(SOURCE):
            messages.append("an edge leads from the source to the sink, where nobody acts")
        skipped = {name for skips in self.skips.values() for name in skips}
        messages += [f"a skip names {name!r}, which is no node" for name in sorted(skipped - known_names)]
        messages += [
            f"the edge {e.start!r} to {e.end!r} has been taken {e.count} times" for e in self.edges if e.count < 1
        ]
        if not all(math.isfinite(w) for row in self.weights.values() for ends in row.values() for w in ends.values()):
            messages.append("a weight is no finite number")
        if max(len(names), len(self.contexts)) > MAX_NODES:
            messages.append(f"more than {MAX_NODES} nodes or contexts")
        messages += self._numeric_problems()
        if not messages and SINK not in reachable_nodes([(edge.start, edge.end) for edge in self.edges], SOURCE):
            messages.append("no path leads from the source to the sink")
        return messages

    def _numeric_problems(self) -> list[str]:
        """Return problems of vectors, threshold and counts."""
        messages, lengths = list[str](), (0, self.dimensions)
        if not 1 <= self.dimensions <= MAX_DIMENSIONS:
            messages.append(f"vectors of {self.dimensions} numbers")
        if not math.isfinite(self.threshold):
            messages.append("the threshold is no finite number")
        vectors = [(node.name, node.vector) for node in self.nodes]
        vectors += [(context.name, context.vector) for context in self.contexts]
        for name, vector in vectors:
            if len(vector) not in lengths or not all(map(math.isfinite, vector)):
                messages.append(f"the vector of {name!r} is none of {self.dimensions} finite numbers")
        for edge in self.edges:
            if any(count < 0 for count in edge.by_context.values()):
                messages.append(f"the edge {edge.start!r} to {edge.end!r} has been taken less than never in a context")
        return messages

    def to_json(self) -> str:
        """Return the network as JSON text."""
        return _ADAPTER.dump_json(self, indent=1).decode() + "\n"

    @property
    def digest(self) -> str:
        """Short SHA-256 digest of the network."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


_ADAPTER = TypeAdapter(FlowNetwork)


def reachable_nodes(edges: Iterable[tuple[str, str]], start: str) -> set[str]:
    """Return the nodes on paths along edges from a start node, with the start node.

    >>> sorted(reachable_nodes([("a", "b"), ("b", "c"), ("d", "a")], "a"))
    ['a', 'b', 'c']
    """
    successors: dict[str, list[str]] = {}
    for origin, end in edges:
        successors.setdefault(origin, []).append(end)
    reached, pending = {start}, [start]
    while pending:
        new = [name for name in successors.get(pending.pop(), ()) if name not in reached]
        reached.update(new)
        pending += new
    return reached


def read_network(path: Path) -> FlowNetwork:
    """Read a flow network from a file.

    Raises:
        UserError: the file cannot be read, or does not hold a valid flow network.
    """
    hint = "marft flow grow RUN --output FILE makes one"
    try:
        network = _ADAPTER.validate_json(check_regular_file(path).read_bytes())
    except OSError as error:
        raise UserError(f"cannot read the flow network {path}: {error.strerror}; {hint}") from error
    except ValidationError as error:
        raise UserError(f"{path} is no flow network: {first_problem(error)}; {hint}") from error
    if problems := network.problems():
        raise UserError(f"the flow network {path}: {'; '.join(problems)}; {hint}")
    return network


def write_network(path: Path, network: FlowNetwork) -> None:
    """Write a network to a file, atomically."""
    assert not network.problems(), network.problems()
    atomic.write_file(path, network.to_json())
