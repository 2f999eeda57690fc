"""Textual gradients: a critic proposes what a node is told, from what failed; held-out success disposes.

After TextGrad (Yuksekgonul et al. 2024) and MANGO; that a proposal is held to a paired test, and that a node whose
proposals were refused so often in a row is left in peace, is our reading of the latter's skipping of "well-optimized
agents".
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

FAILED = "flow/failed"  # the stream of what a critic reads
Tell = Callable[[Change, FlowNetwork], None]  # what was tried, and the network after it


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that did not succeed: the task, and who said what, by the name of the node, with tools' answers, what
    the environment showed, and what came of it (:mod:`marft_lab.profiles.transcripts`)."""

    task: str
    said: tuple[tuple[str, str], ...]


class Critic(Protocol):
    """Says what a node should be told."""

    def __call__(self, node: Node, failures: Sequence[Failure], /) -> str:
        """New instructions, from attempts that failed along a path with the node; what it is told already, or nothing:
        no proposal."""
        ...


@dataclass(frozen=True, slots=True)
class Improving:
    """How nodes are reworded.

    Args:
        rounds: in each of them, every node that failed is asked about once.
        attempts: that are played to find failures, a round.
        shown: failures that the critic sees.
        accept: "better": the interval is above 0; "no worse": the gain is above 0, and the interval above −tolerance.
        patience: refusals in a row, after which a node is asked about no more.
        longest: characters of a proposal; a longer one is refused.
    """

    rounds: int = 3
    attempts: int = 100
    shown: int = 4
    accept: Literal["better", "no worse"] = "better"
    tolerance: float = 0.01
    patience: int = 2
    longest: int = 4000  # characters of a proposal: a longer one is none

    def accepts(self, found: Judged) -> bool:
        if self.accept == "better":
            return found.low > 0
        return found.gain > 0 and found.low >= -self.tolerance


def reworded(
    board: Board, network: FlowNetwork, critic: Critic, improving: Improving,
    tell: Tell = lambda *_: None,
) -> FlowNetwork:  # fmt: skip
    """The network with what was accepted of a critic's proposals, and all of them in its lineage.

    A node is judged on the held-out tasks whose path it acts on, each played once before and once after under the same
    seed.
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
                continue  # no held-out task would tell
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
    """Attempts at training tasks that failed, by each node that acted in them."""
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
    """The node of each of an episode's actions, on the likeliest path."""
    acting = board.acting(network, context_of(network, episode.task.prompt))
    return [*acting] * (len(episode.actions) // len(acting))


def _with(network: FlowNetwork, node: Node) -> FlowNetwork:
    return replace(network, nodes=tuple(node if one.name == node.name else one for one in network.nodes))
