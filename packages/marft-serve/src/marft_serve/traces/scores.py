"""Scores of recorded episodes under the recipe's environment and reward terms, by term and by agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from marft.common.types import Episode
from marft.config.run import RunSettings
from marft.evaluation.intervals import wilson_interval
from marft.runs.episode_files import write_episodes
from marft.runs.run_folder import RunFolder
from marft.runs.state import checkpoint_name
from marft_serve.traces.reader import read_traces
from marft_serve.traces.replayer import ReplayedTrace, TraceReplayer
from marft_serve.traces.settings import SftSettings
from marft_serve.traces.types import SkipCounter

EPISODES_PER_FILE = 512  # episodes per file


@dataclass(slots=True)
class Scores:
    """Sums of rewards over episodes.

    Args:
        episodes: number of scored episodes.
        dropped: number of episodes without a score.
        reward: sum of the team's rewards.
        known_success: number of episodes with a known success.
        solved: number of successful episodes.
        terms: sum of each reward term, by ``term`` or ``term/agent``.
        agent_rewards: sum of the individual rewards, by agent.
        turns: number of turns, by agent.
    """

    episodes: int = 0
    dropped: int = 0
    reward: float = 0.0
    known_success: int = 0
    solved: int = 0
    terms: dict[str, float] = field(default_factory=dict)
    agent_rewards: dict[str, float] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)

    def add_episode(self, replayed: ReplayedTrace) -> None:
        """Add an episode; without a score, count it under ``dropped`` instead of a reward of 0."""
        episode = replayed.episode
        if not episode.is_scored:
            self.dropped += 1
            return
        self.episodes += 1
        self.reward += episode.total_reward
        self.known_success += episode.success is not None
        self.solved += bool(episode.success)
        for action in episode.actions:
            self.turns[action.agent] = self.turns.get(action.agent, 0) + 1
        for transition in episode.transitions:
            for name, share in transition.terms.items():
                self.terms[name] = self.terms.get(name, 0.0) + share
            for agent, reward in transition.agent_rewards.items():
                self.agent_rewards[agent] = self.agent_rewards.get(agent, 0.0) + reward

    @property
    def accuracy(self) -> float | None:
        """Success rate over episodes with a known success; None without any."""
        return self.solved / self.known_success if self.known_success else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson confidence interval for the success rate, at 95 %; None without a known success."""
        return wilson_interval(self.solved, self.known_success) if self.known_success else None

    def build_table(self, roles: Sequence[str]) -> list[tuple[str, float | None, list[float | None]]]:
        """Return ``(term, team mean, mean per agent)`` per episode for each reward term.

        A mean is None if the term gave nothing. The last row is the total reward.
        """
        names = list(dict.fromkeys(name.partition("/")[0] for name in self.terms))
        rows = [
            (name, self._mean(self.terms.get(name)), [self._mean(self.terms.get(f"{name}/{role}")) for role in roles])
            for name in names
        ]
        return [
            *rows,
            ("reward", self._mean(self.reward), [self._mean(self.agent_rewards.get(role)) for role in roles]),
        ]

    def _mean(self, total: float | None) -> float | None:
        return total / self.episodes if total is not None and self.episodes else None


def score_traces(
    run: RunSettings,
    folder: RunFolder,
    skip_counter: SkipCounter,
    *,
    overwrite: bool = False,
    on_episode: Callable[[Episode], None] = lambda _: None,
) -> Scores:
    """Score the traces of a recipe (``sft.traces``), and save the episodes in a folder for ``marft show``.

    Args:
        run: the recipe.
        folder: output folder.
        skip_counter: counter of skipped items.
        overwrite: True to replace an existing folder.
        on_episode: callback for each episode.

    Raises:
        ValueError: the recipe, the traces or the folder are invalid.
    """
    scores = Scores()
    with folder.acquire_lock(), TraceReplayer(run, skip_counter) as replayer:
        folder.check_links()
        folder.check_free(overwrite)
        folder.begin(run, overwrite=overwrite)
        traces = read_traces([Path(path) for path in SftSettings.from_run(run).traces], skip_counter)
        graded, number = replayer.replay(traces, grade=True), 0
        while batch := list(islice(graded, EPISODES_PER_FILE)):
            number += 1
            for replayed in batch:
                scores.add_episode(replayed)
                on_episode(replayed.episode)
            write_episodes(
                folder.episodes / f"{checkpoint_name(number)}.parquet", [replayed.episode for replayed in batch]
            )
        replayer.skip_unused_roles()
    return scores
