"""Small flow networks, and a board on which a function of the path says what succeeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from marft.agents.game import Attempt
from marft.common.types import Episode, Observation, Task, Transition
from marft_lab.flows.edge_policy import active_nodes, match_context
from marft_lab.flows.network import SINK, SOURCE, Context, Edge, FlowNetwork, Node, write_network
from marft_lab.flows.organization import Flow, episode_paths
from marft_lab.flows.tuning import FlowEvaluator
from tests.episodes import make_action

Solves = Callable[[tuple[Node, ...], Task], bool]


def network(*edges: str, **changes: object) -> FlowNetwork:
    """Of edges such as ``"source a 3"``; each node is its own role's."""
    found = [Edge(start, end, int(count)) for start, end, count in map(str.split, edges)]
    names = dict.fromkeys(name for edge in found for name in (edge.start, edge.end) if name not in (SOURCE, SINK))
    made = FlowNetwork(tuple(Node(name, name, f"You do {name}.") for name in names), tuple(found))
    return replace(made, **changes)  # type: ignore[arg-type]


def contexts(*prompts: str) -> tuple[Context, ...]:
    """One of each prompt, and called like it."""
    from marft_lab.flows.network import add_vectors, embed_texts

    return tuple(Context(prompt, prompt, 1, add_vectors((), embed_texts([prompt], 256)[0])) for prompt in prompts)


def vectors(texts: Sequence[str]) -> list[list[float]]:
    """Somebody's own function of texts."""
    return [[1.0] + [0.0] * 255 for _ in texts]


def flow(tmp_path: Path, found: FlowNetwork, **keys: object) -> Flow:
    """What plays a network, from its file."""
    write_network(tmp_path / "network.json", found)
    return Flow(network=str(tmp_path / "network.json"), **keys)  # type: ignore[arg-type]


def board(tmp_path: Path, found: FlowNetwork, solves: Solves, tasks: Sequence[Task]) -> FlowEvaluator:
    """A board whose episodes are made up: what the nodes of a path are told decides."""

    def play(organization: Flow, attempts: Sequence[Attempt]) -> list[Episode]:
        return [_episode(organization, attempt, solves) for attempt in attempts]

    return FlowEvaluator(flow(tmp_path, found), play, tasks, tasks)


def _episode(organization: Flow, attempt: Attempt, solves: Solves) -> Episode:
    bare = Episode(attempt.task, attempt.stream, attempt.sample, (make_action(),), "terminated")
    played = organization.flow
    context = match_context(played, attempt.task.prompt)
    path = next(iter(_paths(organization, bare)))
    nodes = tuple(played.node(name) for name in active_nodes(played, context, path))
    actions = tuple(make_action(node.role, call=place, text=node.name) for place, node in enumerate(nodes))
    solved = solves(nodes, attempt.task)
    step = Transition(Observation(attempt.task.prompt), float(bool(solved)))
    whole = replace(bare, actions=actions, transitions=(step,), success=solved)
    assert episode_paths(organization, whole, 0) == [path]
    return whole


def _paths(organization: Flow, bare: Episode) -> list[tuple[str, ...]]:
    from marft.common.seeds import derive_seed
    from marft_lab.flows.organization import sample_step_path

    seed = derive_seed(0, "organization", bare.stream, bare.task.id, bare.sample)
    context = match_context(organization.flow, bare.task.prompt)
    return [sample_step_path(organization.flow, context, seed, 0, organization.max_nodes, organization.temperature)]


def failing(made: FlowEvaluator, *names: str) -> FlowEvaluator:
    """One on which the episodes of some tasks fail."""

    def play(organization: Flow, attempts: Sequence[Attempt]) -> list[Episode]:
        whole = made.play(organization, attempts)
        return [replace(one, status="failed") if one.task.id in names else one for one in whole]

    return replace(made, play=play)


def watched(made: FlowEvaluator) -> tuple[FlowEvaluator, list[Attempt]]:
    """The same, and all that is attempted on it."""
    attempts = list[Attempt]()

    def play(organization: Flow, given: Sequence[Attempt]) -> list[Episode]:
        attempts.extend(given)
        return made.play(organization, given)

    return replace(made, play=play), attempts
