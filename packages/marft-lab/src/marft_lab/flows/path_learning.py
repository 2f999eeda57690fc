"""Path learning by playing sampled paths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from marft.agents.game import Attempt
from marft.common.seeds import generator
from marft.common.types import Episode
from marft_lab.flows.edge_policy import PathReturn, active_nodes, match_context, reinforce_step
from marft_lab.flows.evaluator import FlowEvaluator
from marft_lab.flows.network import FlowNetwork
from marft_lab.flows.organization import episode_paths

LEARN_STREAM = "flow/learn"  # random stream of the training attempts


@dataclass(frozen=True, slots=True)
class PathLearningOptions:
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


def learn_paths(
    board: FlowEvaluator,
    network: FlowNetwork,
    options: PathLearningOptions,
    on_step: Callable[[int, float], None] = lambda *_: None,
) -> FlowNetwork:
    """Play training tasks along sampled paths, and reinforce paths with high returns.

    Args:
        board: evaluator.
        network: flow network.
        options: options of path learning.
        on_step: callback with the step and the mean reward of its episodes.

    Raises:
        ValueError: a step has no scored episode.
    """
    for step in range(options.steps):
        indices = generator(board.seed, LEARN_STREAM, step).integers(len(board.tasks), size=options.batch)
        attempts = [
            Attempt(board.tasks[index], f"{LEARN_STREAM}/{step}", number) for number, index in enumerate(indices)
        ]
        flow = board.flow.with_network(network, 1.0)
        episodes = [episode for episode in board.play(flow, attempts) if episode.is_scored]
        if not episodes:
            raise ValueError("no episode of a flow network could be scored, so there is nothing to learn from")
        path_returns = [
            path_return
            for number, episode in enumerate(episodes)
            for path_return in _path_returns(board, network, episode, number, options.cost)
        ]
        on_step(step + 1, sum(episode.total_reward for episode in episodes) / len(episodes))
        network = reinforce_step(network, path_returns, options.rate, board.flow.max_nodes)
    return network


def _path_returns(
    board: FlowEvaluator, network: FlowNetwork, episode: Episode, number: int, cost: float
) -> list[PathReturn]:
    """Return the paths of an episode with their returns: the total reward minus the cost of the acting nodes."""
    context = match_context(network, episode.task.prompt)
    paths = episode_paths(board.flow.with_network(network, 1.0), episode, board.seed)
    return [
        PathReturn(context, path, episode.total_reward - cost * len(active_nodes(network, context, path)), number)
        for path in paths
    ]
