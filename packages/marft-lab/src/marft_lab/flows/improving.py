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
from marft_lab.flows.board import Board, Judged, judged, refuse_unknown
from marft_lab.flows.choosing import context_of
from marft_lab.flows.network import ANY, Change, FlowNetwork, Node
from marft_lab.profiles.transcripts import transcript

FAILED = "flow/failed"  # random stream of the attempts for the critic
Tell = Callable[[Change, FlowNetwork], None]  # receives each tried change and the network after the change


@dataclass(frozen=True, slots=True)
class Failure:
    """Failed attempt: the task, and the messages by node name.

    Messages include tool results, observations and the outcome (:mod:`marft_lab.profiles.transcripts`).
    """

    task: str
    said: tuple[tuple[str, str], ...]


class Critic(Protocol):
    """Function that proposes instructions for a node."""

    def __call__(self, node: Node, failures: Sequence[Failure], /) -> str:
        """Return new instructions for a node, based on failed attempts along a path with the node.

        An empty text or the current instructions mean no proposal.
        """
        ...


@dataclass(frozen=True, slots=True)
class Improving:
    """Options of rewording.

    Args:
        rounds: number of rounds; in each round the critic is asked once about every node with failures.
        attempts: attempts per round to collect failures.
        shown: maximum failures per critic prompt.
        accept: "better" requires an interval above 0; "no worse" requires a gain above 0 and an interval above
            −tolerance.
        tolerance: tolerated loss of success rate for "no worse".
        patience: consecutive rejections after which a node is left unchanged.
        longest: maximum characters of a proposal; longer proposals are rejected.
    """

    rounds: int = 3
    attempts: int = 100
    shown: int = 4
    accept: Literal["better", "no worse"] = "better"
    tolerance: float = 0.01
    patience: int = 2
    longest: int = 4000  # maximum characters of a proposal; longer proposals are rejected

    def accepts(self, found: Judged) -> bool:
        """Return True if the estimated gain passes the acceptance rule."""
        if self.accept == "better":
            return found.low > 0
        return found.gain > 0 and found.low >= -self.tolerance


def reworded(
    board: Board, network: FlowNetwork, critic: Critic, improving: Improving,
    tell: Tell = lambda *_: None,
) -> FlowNetwork:  # fmt: skip
    """Return the network with the accepted proposals of a critic, and all proposals in its lineage.

    A node is evaluated on the held-out tasks whose path includes the node. Each task is played once before and once
    after the change, with the same seed.

    Args:
        board: evaluator.
        network: flow network.
        critic: critic that proposes instructions.
        improving: options of rewording.
        tell: callback for each tried change.

    Raises:
        ValueError: no held-out task has a known outcome.
    """
    refused, known = Counter[str](), board.outcomes(network, board.held_out)
    refuse_unknown(known)
    kinds = board.by_context(network)
    for number in range(improving.rounds):
        failures = _failures(board, network, number, improving.attempts)
        for name in sorted(failures, key=lambda name: (-len(failures[name]), name)):
            if refused[name] >= improving.patience:
                continue
            node = network.node(name)
            proposed = critic(node, failures[name][: improving.shown]).strip()
            if not proposed or proposed == node.instructions or len(proposed) > improving.longest:
                refused[name] += 1
                continue
            tried = _with(network, replace(node, instructions=proposed))
            tasks = [task for kind, some in kinds.items() if name in board.acting(network, kind) for task in some]
            if not any(task.id in known for task in tasks):
                continue  # no held-out task can decide
            after = board.outcomes(tried, tasks)
            found = judged({task.id: known[task.id] for task in tasks if task.id in known}, after)
            kept = improving.accepts(found)
            change = Change(
                "instructions", name, ANY, node.instructions, proposed, kept, found.gain, found.low, found.high,
                found.tasks,
            )  # fmt: skip
            refused[name] = 0 if kept else refused[name] + 1
            known = {**known, **after} if kept else known
            network = replace(tried if kept else network, lineage=(*network.lineage, change))
            tell(change, network)
    return network


def _failures(board: Board, network: FlowNetwork, number: int, attempts: int) -> dict[str, list[Failure]]:
    """Return failed attempts at training tasks, by acting node."""
    drawn = generator(board.seed, FAILED, number).integers(len(board.tasks), size=attempts)
    played = [Attempt(board.tasks[place], f"{FAILED}/{number}", count) for count, place in enumerate(drawn)]
    found: dict[str, list[Failure]] = {}
    for episode in board.greedy(network, played):
        if episode.scored and episode.success is False:
            names = _names(board, network, episode)
            failure = Failure(episode.task.prompt, transcript(episode, names))
            for name in dict.fromkeys(names):
                found.setdefault(name, []).append(failure)
    return found


def _names(board: Board, network: FlowNetwork, episode: Episode) -> list[str]:
    """Return the node behind each action in an episode, on the likeliest path."""
    acting = board.acting(network, context_of(network, episode.task.prompt))
    return [*acting] * (len(episode.actions) // len(acting))


def _with(network: FlowNetwork, node: Node) -> FlowNetwork:
    return replace(network, nodes=tuple(node if one.name == node.name else one for one in network.nodes))
