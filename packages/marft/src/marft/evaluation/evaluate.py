"""Held-out evaluation of a team on a split, greedy or sampled, with confidence intervals."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol, cast, get_args

from marft.agents.game import Attempt
from marft.agents.team import Team
from marft.common.errors import UserError
from marft.common.types import Episode, Task
from marft.config.interfaces.environment import Split
from marft.envs.tasks import digest_tasks
from marft.evaluation.cohorts import collect_fields
from marft.evaluation.episode_metrics import episode_metrics, remote_usage_metrics
from marft.evaluation.intervals import mean_interval
from marft.evaluation.ratios import Ratio, clustered_interval, compute_pass_ratios, count_solved
from marft.evaluation.tool_definitions import ToolDefinitions
from marft.evaluation.trajectory_metrics import aggregate_ratios, compute_ratios
from marft.evaluation.transcripts import MAX_EXAMPLES, episode_to_dict
from marft.rollout.runner import RolloutRunner

Interval = tuple[float, float]
Mode = Literal["greedy", "sampled"]
AGENT_METRICS = (
    "action_length",
    "truncation_rate",
    "tool_use_rate",
    "tool_calls",
    "tool_errors",
    "tool_tokens",
    "remote_prompt_tokens",
    "remote_completion_tokens",
    "remote_cost",
    "remote_retries",
)
DIGEST_DIGITS = 16  # hexadecimal digits in the digest of a task


def parse_modes(names: Sequence[str], source: str) -> tuple[Mode, ...]:
    """Validate and deduplicate evaluation modes, keeping their order.

    Args:
        source: origin of the names for the error message, such as ``--mode``.

    Raises:
        UserError: a name is not a mode.
    """
    for name in names:
        if name not in get_args(Mode):
            raise UserError(f"{source}: {name!r} is none of {', '.join(get_args(Mode))}")
    return cast("tuple[Mode, ...]", tuple(dict.fromkeys(names)))


class ProgressCallback(Protocol):
    """Progress callback for evaluations.

    It is called once with the total number of episodes, and then once for each episode.
    """

    def __call__(self, total: int | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of an evaluation.

    The environment decides about success. A task without a known success counts as ``unknown`` and not in the accuracy.
    The accuracy is None if no task has a known success. All intervals are 95 % intervals.

    Args:
        interval: Wilson's interval of the accuracy, over tasks instead of attempts
            (:func:`marft.evaluation.ratios.clustered_interval`).
        reward_interval: interval of the mean reward (:func:`marft.evaluation.intervals.mean_interval`).
        outcomes: success of each scored task, where known; with several attempts, the share of successful attempts.
        rewards: team reward of each scored task; with several attempts, their mean.
        measured: metrics of each scored task by name, for paired comparisons; with several attempts, their sums.
        fields: data fields that define cohorts of tasks.
        passes: pass@k, pass^k and avg@k, each with its interval.
        prompts: digest of each task.
        key: digest of all inputs that determine the episodes.
        scenarios: name and digest of the set of scenarios; {} for held-out tasks.
        tools: tool definitions (:mod:`marft.evaluation.tool_definitions`); None if they were not recorded.
        reorganized: differences between the evaluated team and the trained team, with ``name`` and ``digest``
            (:mod:`marft.config.team_changes`); {} for the team as trained.
    """

    checkpoint: str
    mode: Mode
    split: Split
    shuffled_messages: bool
    tasks: int
    failed: int
    unknown: int
    accuracy: float | None
    interval: tuple[float, float] | None
    reward: float | None
    reward_interval: tuple[float, float] | None
    agents: Mapping[str, Mapping[str, float]] = field(repr=False)
    outcomes: Mapping[str, bool | float] = field(repr=False)
    rewards: Mapping[str, float] = field(repr=False)
    measured: Mapping[str, Mapping[str, Ratio]] = field(repr=False)
    fields: Mapping[str, Mapping[str, str]] = field(repr=False)
    examples: Sequence[Mapping[str, object]] = field(repr=False)
    attempts: int
    passes: Mapping[str, tuple[float, Interval]]
    prompts: Mapping[str, str] = field(repr=False)
    key: str = field(default="", repr=False)
    scenarios: Mapping[str, str] = field(default_factory=dict)
    tools: ToolDefinitions | None = field(default=None, repr=False)
    reorganized: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the evaluation's files: ``<checkpoint>-<mode>`` with optional suffixes."""
        scenarios, team = self.scenarios.get("name", ""), self.reorganized.get("name", "")
        return evaluation_name(self.checkpoint, self.mode, self.shuffled_messages, scenarios, team)

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics in ``measured``, aggregated over all tasks."""
        return aggregate_ratios(self.measured.values())

    def as_json(self) -> dict[str, object]:
        """Return the fields in JSON form."""
        return asdict(self)


def evaluation_name(checkpoint: str, mode: Mode, shuffled: bool, scenarios: str = "", team: str = "") -> str:
    """Return the base name of an evaluation's files.

    The name is ``<checkpoint>-<mode>``, with the optional suffixes ``-shuffled``, ``-on-<scenarios>`` and
    ``-as-<team>``.
    """
    name = f"{checkpoint}-{mode}" + ("-shuffled" if shuffled else "")
    return name + (f"-on-{scenarios}" if scenarios else "") + (f"-as-{team}" if team else "")


def evaluate(
    rollouts: RolloutRunner,
    checkpoint: str,
    mode: Mode,
    tasks: Sequence[Task],
    *,
    split: Split = "test",
    messages_from: Sequence[Episode] | None = None,
    on_done: Callable[[Episode], None] = lambda _: None,
) -> tuple[Evaluation, list[Episode]]:
    """Play each task once and return the evaluation with its episodes.

    Args:
        checkpoint: name of the weights, for the record; they are already loaded.
        messages_from: episodes of other tasks (see :func:`shuffle_episodes`). Agents see their messages instead of
            those of their own team. The loss in score is the value of the messages.
    """
    attempts = build_attempts(tasks, 1, mode, split, messages_from)
    episodes = rollouts.play(attempts, team_for_mode(mode, rollouts.team), on_done)
    roles = [agent.role for agent in rollouts.team.agents]
    shuffled = messages_from is not None
    return aggregate_episodes(roles, checkpoint, mode, episodes, split=split, shuffled=shuffled), episodes


def build_attempts(
    tasks: Sequence[Task],
    number: int,
    mode: Mode,
    split: Split = "test",
    messages_from: Sequence[Episode] | None = None,
) -> list[Attempt]:
    """Return ``number`` attempts at each task, task by task.

    Args:
        messages_from: an episode for each attempt; agents see its messages instead of those of their own team.
    """
    stream, samples = f"{split}/{mode}", [(task, sample) for task in tasks for sample in range(number)]
    message_episodes: Sequence[Episode | None] = messages_from or [None] * len(samples)
    return [
        Attempt(task, stream, sample, messages=_collect_messages(message_episode))
        for (task, sample), message_episode in zip(samples, message_episodes, strict=True)
    ]


def team_for_mode(mode: Mode, team: Team) -> Team:
    """Return the team with the sampling settings of a mode."""
    if mode == "sampled":
        return team
    agents = tuple(
        replace(agent, sampling=replace(agent.sampling, temperature=0.0, top_p=1.0, top_k=0)) for agent in team.agents
    )
    return replace(team, agents=agents)


def aggregate_episodes(
    roles: Sequence[str],
    checkpoint: str,
    mode: Mode,
    episodes: Sequence[Episode],
    *,
    split: Split = "test",
    shuffled: bool = False,
    attempts: int = 1,
) -> Evaluation:
    """Aggregate episodes into an evaluation.

    Args:
        roles: roles of the team.
        attempts: number of attempts at each task.
    """
    scored = [episode for episode in episodes if episode.is_scored]
    metrics = episode_metrics(episodes, roles, lambda _: 0) | remote_usage_metrics(episodes, roles)
    agents = {
        role: {name: metrics[key] for name in AGENT_METRICS if (key := f"agents/{role}/{name}") in metrics}
        for role in roles
    }
    tasks = {episode.task.id: episode.task for episode in scored}
    counts, rewards = count_solved(scored), _rewards_by_task(scored)
    solved = clustered_interval([Ratio(float(c), float(n)) for n, c in counts.values()], attempts)
    pass_ratios = compute_pass_ratios(counts, attempts)
    return Evaluation(
        checkpoint=checkpoint,
        mode=mode,
        split=split,
        shuffled_messages=shuffled,
        tasks=len(tasks),
        failed=len(episodes) - len(scored),
        unknown=len(tasks) - len(counts),
        accuracy=solved[0] if solved else None,
        interval=solved[1] if solved else None,
        reward=metrics["reward"] if scored else None,
        reward_interval=mean_interval([*rewards.values()]),
        agents=agents,
        outcomes={task: bool(c) if attempts == 1 else c / n for task, (n, c) in counts.items()},
        rewards=rewards,
        fields=collect_fields([*tasks.values()]),
        measured={
            task: {**ratios, **pass_ratios.get(task, {})} for task, ratios in _metrics_by_task(scored, roles).items()
        },
        examples=tuple(episode_to_dict(episode) for episode in scored[:MAX_EXAMPLES]),
        attempts=attempts,
        passes={
            name: share
            for name in dict.fromkeys(name for ratios in pass_ratios.values() for name in ratios)
            if (
                share := clustered_interval(
                    [ratios[name] for ratios in pass_ratios.values() if name in ratios], attempts
                )
            )
        },
        prompts={name: digest_tasks([task])[:DIGEST_DIGITS] for name, task in tasks.items()},
    )


def _rewards_by_task(scored: Sequence[Episode]) -> dict[str, float]:
    """Return the mean team reward for each task over its attempts."""
    rewards: dict[str, list[float]] = {}
    for episode in scored:
        rewards.setdefault(episode.task.id, []).append(episode.total_reward)
    return {task: sum(task_rewards) / len(task_rewards) for task, task_rewards in rewards.items()}


def _metrics_by_task(scored: Sequence[Episode], roles: Sequence[str]) -> dict[str, dict[str, Ratio]]:
    """Return each metric for each task, summed over its attempts."""
    metrics: dict[str, dict[str, Ratio]] = {}
    for episode in scored:
        of_task = metrics.setdefault(episode.task.id, {})
        for name, ratio in compute_ratios(episode, roles).items():
            of_task[name] = Ratio.total([of_task[name], ratio]) if name in of_task else ratio
    return metrics


def shuffle_episodes(episodes: Sequence[Episode], seed: int) -> list[Episode]:
    """Return an episode of another task for each episode, by a random cycle without fixed points."""
    order = list(range(len(episodes)))
    random.Random(seed).shuffle(order)
    shuffled: list[Episode] = list(episodes)
    for number, index in enumerate(order):
        shuffled[index] = episodes[order[(number + 1) % len(order)]]
    return shuffled


def _collect_messages(episode: Episode | None) -> dict[str, str]:
    return {action.id: action.message for action in episode.actions} if episode else {}
