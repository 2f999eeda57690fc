"""Tuning of a flow network: learned paths, reworded nodes and skipped nodes; held-out success decides on changes.

The method follows TextGrad (Yuksekgonul et al. 2024) and MANGO. OUR READING of MANGO's skipping of "well-optimized
agents" has two parts. A proposal must pass a paired test. A node is left unchanged after a number of consecutive
rejections.

Skipping is our own method: MANGO's abstract skips updates of good agents instead (:func:`reword_nodes`). Skipped nodes
stay in the network, and can be enabled again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from marft.agents.game import Attempt
from marft.common.errors import UserError
from marft.common.seeds import generator
from marft.common.types import Episode, Task
from marft.evaluation.intervals import gain_bounds, paired_difference
from marft_lab.flows.edge_policy import PathReturn, active_nodes, match_context, reinforce_step
from marft_lab.flows.network import ANY, Change, FlowNetwork, Node
from marft_lab.flows.organization import Flow, episode_paths, sample_step_path
from marft_lab.prompt_optimization.prompts import AttemptTranscript

HELD_OUT_STREAM = "flow/held-out"  # random stream of comparisons: the same seeds before and after a change
LEARN_STREAM = "flow/learn"  # random stream of the training attempts
FAILURE_STREAM = "flow/failed"  # random stream of the attempts for the critic
Play = Callable[[Flow, Sequence[Attempt]], list[Episode]]  # plays attempts with a team; episodes in the same order
# new instructions for a node from failed attempts along a path with the node; "" or the current ones mean no proposal
Critic = Callable[[Node, Sequence[AttemptTranscript]], str]
OnChange = Callable[[Change, FlowNetwork], None]  # receives each tried change and the network after the change


class GainEstimate(NamedTuple):
    """Estimated gain of a network over another network on the same held-out tasks."""

    gain: float  # difference of the success rates
    low: float  # lower bound of the gain
    high: float
    tasks: int  # number of tasks


@dataclass(frozen=True, slots=True)
class FlowEvaluator:
    """Evaluator for flow tuning; each attempt plays a separate network, and networks are immutable.

    Args:
        flow: organization of the team, with path sampling by edge probabilities.
        play: function that plays attempts.
        tasks: training tasks.
        held_out: tasks for decisions; keep them separate from test tasks.
        seed: seed of the run behind ``play``.
    """

    flow: Flow
    play: Play
    tasks: Sequence[Task]
    held_out: Sequence[Task]
    seed: int = 0

    def play_greedy(self, network: FlowNetwork, attempts: Sequence[Attempt]) -> list[Episode]:
        """Play attempts along the likeliest edges."""
        return self.play(self.flow.with_network(network, 0.0), attempts)

    def greedy_path(self, network: FlowNetwork, context: str) -> tuple[str, ...]:
        """Return the likeliest path for tasks of a context, with skipped nodes."""
        return sample_step_path(network, context, 0, 0, self.flow.max_nodes, 0.0)

    def active_nodes(self, network: FlowNetwork, context: str) -> tuple[str, ...]:
        """Return the acting nodes of the likeliest path."""
        return active_nodes(network, context, self.greedy_path(network, context))

    def tasks_by_context(self, network: FlowNetwork) -> dict[str, list[Task]]:
        """Return the held-out tasks by context, in order of first occurrence."""
        groups: dict[str, list[Task]] = {}
        for task in self.held_out:
            groups.setdefault(match_context(network, task.prompt), []).append(task)
        return groups

    def task_outcomes(self, network: FlowNetwork, tasks: Sequence[Task]) -> dict[str, bool]:
        """Return the success of each task along the likeliest edges, by task id.

        Tasks without a known outcome are omitted.
        """
        episodes = self.play_greedy(network, [Attempt(task, HELD_OUT_STREAM) for task in tasks])
        return {e.task.id: e.success for e in episodes if e.is_scored and e.success is not None}


def check_known_outcomes(outcomes: Mapping[str, bool]) -> None:
    """Check that outcomes are known.

    Raises:
        UserError: no task has a known outcome.
    """
    if not outcomes:
        raise UserError(
            "a flow network is judged by held-out tasks, and of none is it known whether it was solved: the "
            "environment has to say so (Step.success), and episodes must not fail"
        )


def estimate_gain(before: Mapping[str, bool], after: Mapping[str, bool]) -> GainEstimate:
    """Return the gain of the later outcomes over the earlier outcomes, with a 95 % interval.

    The interval comes from :func:`marft.evaluation.intervals.paired_difference`. A task without a later outcome counts
    as failed. Otherwise failing episodes would improve a network.

    Raises:
        UserError: no task has an earlier outcome.
    """
    check_known_outcomes(before)
    gain, (low, high) = paired_difference([*before.values()], [after.get(task, False) for task in before])
    return GainEstimate(gain, low, high, len(before))


def bound_gain(before: Mapping[str, bool], after: Mapping[str, bool]) -> GainEstimate:
    """Return the gain like :func:`estimate_gain`, with separate one-sided 95 % bounds.

    The bounds are exact for pure losses and pure gains (:func:`marft.evaluation.intervals.gain_bounds`). A claim of
    no loss must not underestimate rare losses.

    Raises:
        UserError: no task has an earlier outcome.
    """
    check_known_outcomes(before)
    gains = [float(after.get(task, False)) - solved for task, solved in before.items()]
    return GainEstimate(sum(gains) / len(gains), *gain_bounds(gains), len(gains))


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
        UserError: a step has no scored episode.
    """
    for step in range(options.steps):
        indices = generator(board.seed, LEARN_STREAM, step).integers(len(board.tasks), size=options.batch)
        attempts = [
            Attempt(board.tasks[index], f"{LEARN_STREAM}/{step}", number) for number, index in enumerate(indices)
        ]
        flow = board.flow.with_network(network, 1.0)
        episodes = [episode for episode in board.play(flow, attempts) if episode.is_scored]
        if not episodes:
            raise UserError("no episode of a flow network could be scored, so there is nothing to learn from")
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
        UserError: no held-out task has a known outcome.
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
            change = Change("instructions", name, ANY, node.instructions, proposed, accepted, *estimate)
            rejections[name] = 0 if accepted else rejections[name] + 1
            baseline = {**baseline, **after} if accepted else baseline
            network = replace(candidate if accepted else network, lineage=(*network.lineage, change))
            on_change(change, network)
    return network


def _collect_failures(
    board: FlowEvaluator, network: FlowNetwork, number: int, attempts: int
) -> dict[str, list[AttemptTranscript]]:
    """Return failed attempts at training tasks, by acting node."""
    indices = generator(board.seed, FAILURE_STREAM, number).integers(len(board.tasks), size=attempts)
    batch = [Attempt(board.tasks[index], f"{FAILURE_STREAM}/{number}", count) for count, index in enumerate(indices)]
    failures: dict[str, list[AttemptTranscript]] = {}
    for episode in board.play_greedy(network, batch):
        if episode.is_scored and episode.success is False:
            names = _action_nodes(board, network, episode)
            failure = AttemptTranscript.from_episode(episode, names)
            for name in dict.fromkeys(names):
                failures.setdefault(name, []).append(failure)
    return failures


def _action_nodes(board: FlowEvaluator, network: FlowNetwork, episode: Episode) -> list[str]:
    """Return the node behind each action in an episode, on the likeliest path."""
    nodes = board.active_nodes(network, match_context(network, episode.task.prompt))
    return [*nodes] * (len(episode.actions) // len(nodes))


def _replace_node(network: FlowNetwork, node: Node) -> FlowNetwork:
    return replace(network, nodes=tuple(node if current.name == node.name else current for current in network.nodes))


def skip_nodes(
    evaluator: FlowEvaluator, network: FlowNetwork, tolerance: float, on_change: OnChange = lambda *_: None
) -> FlowNetwork:
    """Return the network with accepted skips, and all tried skips in its lineage.

    Each node of a context's likeliest path is left out once, together with earlier accepted skips. The skip is accepted
    if the lower bound of the gain (:func:`marft_lab.flows.evaluator.bound_gain`) is at least ``-tolerance``. The gain
    is relative to the whole path, not to the previous trial. So all skips of a context together cost at most
    ``tolerance``. Without any difference, acceptance needs about ``3 / tolerance`` held-out tasks of the context.

    Args:
        board: evaluator.
        network: flow network.
        tolerance: tolerated loss of success rate.
        on_change: callback for each tried change.

    Raises:
        UserError: no held-out task has a known outcome.
    """
    contexts = evaluator.tasks_by_context(network)
    baselines = {context: evaluator.task_outcomes(network, tasks) for context, tasks in contexts.items()}
    check_known_outcomes({task: solved for outcomes in baselines.values() for task, solved in outcomes.items()})
    for context, tasks in contexts.items():
        baseline = baselines[context]
        if not baseline:
            continue  # no task of the context has a known outcome
        for name in evaluator.active_nodes(network, context):
            before = network.skips.get(context, ())
            if len(evaluator.active_nodes(network, context)) == 1:
                break  # at least one agent has to act
            candidate = replace(network, skips={**network.skips, context: (*before, name)})
            estimate = bound_gain(baseline, evaluator.task_outcomes(candidate, tasks))
            accepted = estimate.low >= -tolerance
            change = Change("skip", name, context, "", "", accepted, *estimate)
            network = replace(candidate if accepted else network, lineage=(*network.lineage, change))
            on_change(change, network)
    return network
