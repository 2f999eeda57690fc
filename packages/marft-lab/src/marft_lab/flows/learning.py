"""Path learning by playing sampled paths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from marft.agents.game import Attempt
from marft.common.seeds import generator
from marft.common.types import Episode
from marft_lab.flows.board import Board
from marft_lab.flows.choosing import Walked, context_of, learned, played_of
from marft_lab.flows.network import FlowNetwork
from marft_lab.flows.organization import paths_of

LEARN = "flow/learn"  # random stream of the training attempts


@dataclass(frozen=True, slots=True)
class Learning:
    """Options of path learning.

    Args:
        steps: steps of REINFORCE.
        batch: episodes per step.
        rate: learning rate.
        cost: penalty per acting node, subtracted from the reward.
    """

    steps: int = 40
    batch: int = 64
    rate: float = 2.0
    cost: float = 0.0


def edges_learned(
    board: Board,
    network: FlowNetwork,
    learning: Learning,
    tell: Callable[[int, float], None] = lambda *_: None,
) -> FlowNetwork:
    """Play training tasks along sampled paths, and reinforce paths with high returns.

    Args:
        board: evaluator.
        network: flow network.
        learning: options of path learning.
        tell: callback with the step and the mean reward of its episodes.

    Raises:
        ValueError: a step has no scored episode.
    """
    for step in range(learning.steps):
        drawn = generator(board.seed, LEARN, step).integers(len(board.tasks), size=learning.batch)
        attempts = [Attempt(board.tasks[place], f"{LEARN}/{step}", number) for number, place in enumerate(drawn)]
        flow = board.flow.playing(network, 1.0)
        episodes = [episode for episode in board.play(flow, attempts) if episode.scored]
        if not episodes:
            raise ValueError("no episode of a flow network could be scored, so there is nothing to learn from")
        walks = [
            walked
            for number, episode in enumerate(episodes)
            for walked in _walked(board, network, episode, number, learning.cost)
        ]
        tell(step + 1, sum(episode.total_reward for episode in episodes) / len(episodes))
        network = learned(network, walks, learning.rate, board.flow.most)
    return network


def _walked(board: Board, network: FlowNetwork, episode: Episode, number: int, cost: float) -> list[Walked]:
    """Return the paths of an episode with their returns: the total reward minus the cost of the acting nodes."""
    context = context_of(network, episode.task.prompt)
    paths = paths_of(board.flow.playing(network, 1.0), episode, board.seed)
    return [
        Walked(context, path, episode.total_reward - cost * len(played_of(network, context, path)), number)
        for path in paths
    ]
