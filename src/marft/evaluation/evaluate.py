"""Held-out evaluation: a team on the tasks of a split, greedy or sampled, with intervals."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, Protocol, cast, get_args

from marft.evaluation.cohorts import fields_of
from marft.evaluation.intervals import mean_interval, wilson
from marft.evaluation.metrics import episode_metrics, remote_metrics
from marft.evaluation.showing import EXAMPLES, example
from marft.evaluation.trajectories.measures import measured, over
from marft.evaluation.trajectories.ratio import Ratio
from marft.game.environment import Split
from marft.game.game import Attempt
from marft.game.team import Team
from marft.playing import Rollouts
from marft.types import Episode, Task

Mode = Literal["greedy", "sampled"]
OF_AGENTS = (
    "action_length", "truncation_rate", "tool_rate", "tool_calls", "tool_errors", "tool_tokens",
    "remote_prompt_tokens", "remote_completion_tokens", "remote_cost", "remote_retries",
)  # fmt: skip


def modes_in(names: Sequence[str], asked: str) -> tuple[Mode, ...]:
    """Modes by their names.

    Args:
        asked: where, for the message: ``--mode``.

    Raises:
        ValueError: one is none.
    """
    for name in names:
        if name not in get_args(Mode):
            raise ValueError(f"{asked}: {name!r} is none of {', '.join(get_args(Mode))}")
    return cast("tuple[Mode, ...]", tuple(dict.fromkeys(names)))


class Advance(Protocol):
    """Called with the total number of episodes once, then once an episode."""

    def __call__(self, total: int | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How a team did. Success is what the environment says of it: a task of which it says nothing counts as ``unknown``
    and in no accuracy, and where it never says anything there is none. ``outcomes``, ``rewards`` and ``measured`` hold
    each scored task's success, where that is known, its team reward, and its metrics by name, for paired comparisons;
    ``fields`` what of their data tells cohorts of tasks apart.

    ``interval`` is Wilson's; ``reward_interval`` is by the normal approximation. Both are of 95 %.
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
    outcomes: Mapping[str, bool] = field(repr=False)
    rewards: Mapping[str, float] = field(repr=False)
    measured: Mapping[str, Mapping[str, Ratio]] = field(default_factory=dict, repr=False)
    fields: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    examples: Sequence[Mapping[str, object]] = field(default_factory=tuple, repr=False)

    @property
    def name(self) -> str:
        """The file's name: ``<checkpoint>-<mode>``."""
        return f"{self.checkpoint}-{self.mode}" + ("-shuffled" if self.shuffled_messages else "")

    @property
    def metrics(self) -> dict[str, float]:
        """What ``measured`` comes to over all tasks."""
        return over(self.measured.values())

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def evaluate(
    rollouts: Rollouts,
    checkpoint: str,
    mode: Mode,
    tasks: Sequence[Task],
    *,
    split: Split = "test",
    messages_from: Sequence[Episode] | None = None,
    on_done: Callable[[Episode], None] = lambda _: None,
) -> tuple[Evaluation, list[Episode]]:
    """Play every task once.

    Args:
        checkpoint: what the weights are called, for the record; they are in place already.
        messages_from: episodes of other tasks (see :func:`shuffle`), whose messages agents see instead of their own
            team's: what that costs is what the messages were worth.
    """
    stream = f"{split}/{mode}"
    donors: Sequence[Episode | None] = messages_from or [None] * len(tasks)
    attempts = [Attempt(task, stream, messages=_messages(donor)) for task, donor in zip(tasks, donors, strict=True)]
    team = rollouts.team if mode == "sampled" else greedy(rollouts.team)
    episodes = rollouts.play(attempts, team, on_done)
    scored = [episode for episode in episodes if episode.scored]
    outcomes = {episode.task.id: episode.success for episode in scored if episode.success is not None}
    rewards = {episode.task.id: episode.total_reward for episode in scored}
    roles = [agent.role for agent in team.agents]
    metrics = episode_metrics(episodes, roles, rollouts.version) | remote_metrics(episodes, roles)
    agents = {
        role: {name: metrics[key] for name in OF_AGENTS if (key := f"agents/{role}/{name}") in metrics}
        for role in roles
    }
    wins = sum(outcomes.values())
    evaluation = Evaluation(
        checkpoint=checkpoint,
        mode=mode,
        split=split,
        shuffled_messages=messages_from is not None,
        tasks=len(scored),
        failed=len(episodes) - len(scored),
        unknown=len(scored) - len(outcomes),
        accuracy=wins / len(outcomes) if outcomes else None,
        interval=wilson(wins, len(outcomes)) if outcomes else None,
        reward=metrics["reward"] if scored else None,
        reward_interval=mean_interval([*rewards.values()]),
        agents=agents,
        outcomes=outcomes,
        rewards=rewards,
        fields=fields_of([episode.task for episode in scored]),
        measured={episode.task.id: measured(episode, roles) for episode in scored},
        examples=tuple(example(episode) for episode in scored[:EXAMPLES]),
    )
    return evaluation, episodes


def shuffle(episodes: Sequence[Episode], seed: int) -> list[Episode]:
    """Another task's episode for each one: a random cycle, so that nobody keeps its own."""
    order = list(range(len(episodes)))
    random.Random(seed).shuffle(order)
    donors: list[Episode] = list(episodes)
    for number, index in enumerate(order):
        donors[index] = episodes[order[(number + 1) % len(order)]]
    return donors


def greedy(team: Team) -> Team:
    """The same team, every agent taking its likeliest token."""
    agents = tuple(
        replace(agent, sampling=replace(agent.sampling, temperature=0.0, top_p=1.0, top_k=0)) for agent in team.agents
    )
    return replace(team, agents=agents)


def _messages(donor: Episode | None) -> dict[str, str]:
    return {action.id: action.message for action in donor.actions} if donor else {}
