"""Textual gradients: a critic proposes node instructions from failures, and held-out success decides.

The method follows TextGrad (Yuksekgonul et al. 2024) and MANGO. OUR READING of MANGO's skipping of "well-optimized
agents" has two parts. A proposal must pass a paired test. A node is left unchanged after a number of consecutive
rejections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from marft.agents.game import Attempt
from marft.common.seeds import generator
from marft.common.types import Episode
from marft_lab.flows.edge_policy import match_context
from marft_lab.flows.evaluator import FlowEvaluator, GainEstimate, check_known_outcomes, estimate_gain
from marft_lab.flows.network import ANY, Change, FlowNetwork, Node
from marft_lab.prompt_optimization.transcripts import build_transcript

FAILURE_STREAM = "flow/failed"  # random stream of the attempts for the critic
OnChange = Callable[[Change, FlowNetwork], None]  # receives each tried change and the network after the change


@dataclass(frozen=True, slots=True)
class Failure:
    """Failed attempt: the task, and the messages by node name.

    Messages include tool results, observations and the outcome (:mod:`marft_lab.prompt_optimization.transcripts`).
    """

    task: str
    messages: tuple[tuple[str, str], ...]


class Critic(Protocol):
    """Function that proposes instructions for a node."""

    def __call__(self, node: Node, failures: Sequence[Failure], /) -> str:
        """Return new instructions for a node, based on failed attempts along a path with the node.

        An empty text or the current instructions mean no proposal.
        """
        ...


@dataclass(frozen=True, slots=True)
class RewordingOptions:
    """Options of rewording.

    Args:
        rounds: number of rounds; in each round the critic is asked once about every node with failures.
        attempts: attempts per round to collect failures.
        max_failures: maximum failures per critic prompt.
        accept: "better" requires an interval above 0; "no_worse" requires a gain above 0 and an interval above
            −tolerance.
        tolerance: tolerated loss of success rate for "no_worse".
        patience: consecutive rejections after which a node is left unchanged.
        max_characters: maximum characters of a proposal; longer proposals are rejected.
    """

    rounds: int = 3
    attempts: int = 100
    max_failures: int = 4
    accept: Literal["better", "no_worse"] = "better"
    tolerance: float = 0.01
    patience: int = 2
    max_characters: int = 4000  # maximum characters of a proposal; longer proposals are rejected

    def accepts(self, estimate: GainEstimate) -> bool:
        """Return True if the estimated gain passes the acceptance rule."""
        if self.accept == "better":
            return estimate.low > 0
        return estimate.gain > 0 and estimate.low >= -self.tolerance


def reword_nodes(
    board: FlowEvaluator,
    network: FlowNetwork,
    critic: Critic,
    options: RewordingOptions,
    on_change: OnChange = lambda *_: None,
) -> FlowNetwork:
    """Return the network with the accepted proposals of a critic, and all proposals in its lineage.

    A node is evaluated on the held-out tasks whose path includes the node. Each task is played once before and once
    after the change, with the same seed.

    Args:
        board: evaluator.
        network: flow network.
        critic: critic that proposes instructions.
        options: options of rewording.
        on_change: callback for each tried change.

    Raises:
        ValueError: no held-out task has a known outcome.
    """
    rejections, baseline = Counter[str](), board.task_outcomes(network, board.held_out)
    check_known_outcomes(baseline)
    kinds = board.tasks_by_context(network)
    for number in range(options.rounds):
        failures = _collect_failures(board, network, number, options.attempts)
        for name in sorted(failures, key=lambda name: (-len(failures[name]), name)):
            if rejections[name] >= options.patience:
                continue
            node = network.node(name)
            proposed = critic(node, failures[name][: options.max_failures]).strip()
            if not proposed or proposed == node.instructions or len(proposed) > options.max_characters:
                rejections[name] += 1
                continue
            candidate = _replace_node(network, replace(node, instructions=proposed))
            tasks = [
                task
                for kind, context_tasks in kinds.items()
                if name in board.active_nodes(network, kind)
                for task in context_tasks
            ]
            if not any(task.id in baseline for task in tasks):
                continue  # no held-out task can decide
            after = board.task_outcomes(candidate, tasks)
            estimate = estimate_gain({task.id: baseline[task.id] for task in tasks if task.id in baseline}, after)
            accepted = options.accepts(estimate)
            change = Change(
                "instructions",
                name,
                ANY,
                node.instructions,
                proposed,
                accepted,
                estimate.gain,
                estimate.low,
                estimate.high,
                estimate.tasks,
            )
            rejections[name] = 0 if accepted else rejections[name] + 1
            baseline = {**baseline, **after} if accepted else baseline
            network = replace(candidate if accepted else network, lineage=(*network.lineage, change))
            on_change(change, network)
    return network


def _collect_failures(
    board: FlowEvaluator, network: FlowNetwork, number: int, attempts: int
) -> dict[str, list[Failure]]:
    """Return failed attempts at training tasks, by acting node."""
    indices = generator(board.seed, FAILURE_STREAM, number).integers(len(board.tasks), size=attempts)
    batch = [Attempt(board.tasks[index], f"{FAILURE_STREAM}/{number}", count) for count, index in enumerate(indices)]
    failures: dict[str, list[Failure]] = {}
    for episode in board.play_greedy(network, batch):
        if episode.is_scored and episode.success is False:
            names = _action_nodes(board, network, episode)
            failure = Failure(episode.task.prompt, build_transcript(episode, names))
            for name in dict.fromkeys(names):
                failures.setdefault(name, []).append(failure)
    return failures


def _action_nodes(board: FlowEvaluator, network: FlowNetwork, episode: Episode) -> list[str]:
    """Return the node behind each action in an episode, on the likeliest path."""
    nodes = board.active_nodes(network, match_context(network, episode.task.prompt))
    return [*nodes] * (len(episode.actions) // len(nodes))


def _replace_node(network: FlowNetwork, node: Node) -> FlowNetwork:
    return replace(network, nodes=tuple(node if current.name == node.name else current for current in network.nodes))
