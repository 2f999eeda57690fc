"""Comparison arms: weights, roles and visible messages; each arm is played once and cached."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from marft.agents.game import Attempt
from marft.agents.team import Team
from marft.common import atomic
from marft.common.lineage import Version
from marft.common.types import Episode, Task
from marft.common.version import __version__
from marft.config.run import RunSettings
from marft.envs.tasks import digest_of
from marft.evaluation.evaluate import Advance
from marft.rollout.forking.counterfactual import counterfactuals
from marft.rollout.playing import nobody
from marft.rollout.rollouts import LocalRollouts
from marft.rollout.workers.rollouts import WorkerRollouts
from marft.runs.checkpoints import load_policies
from marft.runs.code import digests_of_code
from marft.runs.episodes import read_episodes, write_episodes
from marft.runs.stated import told_at
from marft_lab.team_worth.teams import alone, reseated, unheard

BASE = "base"
STREAM = "test/worth"  # random stream of all arms: unchanged parts are sampled as for the team
PLAYED_WITH = ("agents", "channel", "engine", "environment", "models", "policies", "rewards", "seed", "team", "tools")
Messages = Mapping[tuple[str, int], Mapping[str, str]]  # by task and sample: replacement text by action


@dataclass(frozen=True, slots=True)
class Arm:
    """Variant of the team, without tasks.

    Args:
        weights: checkpoint of each trained policy, by folder name, or ``base``.
        seats: policy that replaces each policy.
        alone: role that answers without a team; "" for the whole team.
        unheard: roles with muted messages.
        messages: replacement of messages.
        samples: attempts per task, starting at ``first``.
        first: index of the first sample.
    """

    weights: Mapping[str, str]
    seats: Mapping[str, str] = field(default_factory=dict)
    alone: str = ""
    unheard: tuple[str, ...] = ()
    messages: Messages = field(default_factory=dict)
    samples: int = 1
    first: int = 0

    def team(self, team: Team) -> Team:
        """Return this arm's team."""
        team = reseated(team, self.seats) if self.seats else team
        team = unheard(team, self.unheard) if self.unheard else team
        return alone(team, self.alone) if self.alone else team

    def attempts(self, tasks: Sequence[Task]) -> list[Attempt]:
        """Return the attempts, ordered by task."""
        return [
            Attempt(task, STREAM, sample, self.messages.get((task.id, sample), {}))
            for task in tasks
            for sample in range(self.first, self.first + self.samples)
        ]

    def told(self, tasks: Sequence[Task]) -> dict[str, object]:
        """Return the arm's identity on given tasks, as JSON values."""
        messages = [
            [attempt.task.id, attempt.sample, sorted(attempt.messages.items())] for attempt in self.attempts(tasks)
        ]
        seats = {policy: other for policy, other in self.seats.items() if policy != other}
        return {
            "seats": seats, "alone": self.alone, "unheard": sorted(self.unheard), "samples": self.samples,
            "first": self.first, "messages": messages if self.messages else [],
        }  # fmt: skip


class Player:
    """Player of arms; loads their weights and caches their episodes in a folder.

    Episodes are cached in portions with as many tasks as are played concurrently.

    Args:
        rollouts: rollouts of the run.
        checkpoints: checkpoint folders by name; None for the base.
        tasks: tasks.
        kept: folder of the cache.
        advance: progress callback.
        again: True to ignore the cache.
    """

    def __init__(
        self, rollouts: LocalRollouts | WorkerRollouts, checkpoints: Mapping[str, Path | None], tasks: Sequence[Task],
        kept: Path, advance: Advance, *, again: bool = False,
    ) -> None:  # fmt: skip
        self.rollouts, self.tasks, self.advance = rollouts, tasks, advance
        self._checkpoints, self._kept, self._again = checkpoints, kept, again
        self._settings = settings_of(rollouts.run) | {"models": rollouts.models.digests()}
        self._loaded: dict[str, str] = {}
        self._version = 0
        self._played_now: set[Path] = set()

    def play(self, arm: Arm) -> list[Episode]:
        """Return the episodes of an arm, ordered by task."""
        found: list[Episode] = []
        for tasks in self._portions(arm.samples):
            found += self._once(arm, tasks, {}, partial(self._played, arm, arm.attempts(tasks)))
        return found

    def forks(self, arm: Arm, episodes: Sequence[Episode], resamples: int) -> list[Episode]:
        """Resample every action in an arm's episodes, with its dependent actions.

        Args:
            arm: arm of the episodes.
            episodes: at most one episode per task.
            resamples: number of resamples per action.
        """
        policies = [agent.policy for agent in arm.team(self.rollouts.team).agents]
        by_task = {episode.task.id: episode for episode in episodes}
        found: list[Episode] = []

        def play(attempts: Sequence[Attempt], *, on_done: Callable[[Episode], None] = nobody) -> list[Episode]:  # noqa: ARG001
            return self._played(arm, attempts)

        for tasks in self._portions(resamples * len(policies)):
            here = [task for task in tasks if task.id in by_task]

            attempts = replace(arm, samples=1).attempts(here)
            playing = [by_task[task.id] for task in here]
            again = partial(counterfactuals, play, attempts, playing, resamples, policies)
            found += self._once(arm, here, {"resamples": resamples}, again)
        return found

    def with_team(
        self, weights: Mapping[str, str], attempts: Sequence[Attempt], team: Team, told: object
    ) -> list[Episode]:
        """Return the episodes of a custom team on attempts.

        Args:
            weights: checkpoint of each trained policy.
            attempts: attempts to play.
            team: team.
            told: identity of the team, as JSON data.
        """

        def played() -> list[Episode]:
            self._load(weights)
            return self.rollouts.play(attempts, team, lambda _: self.advance())

        return self._once(Arm(weights), [attempt.task for attempt in attempts], {"told": told}, played)

    def _portions(self, of_each: int) -> Iterator[Sequence[Task]]:
        size = max(1, self.rollouts.run.rollout.max_live_episodes // of_each)
        for first in range(0, len(self.tasks), size):
            yield self.tasks[first : first + size]

    def _played(self, arm: Arm, attempts: Sequence[Attempt]) -> list[Episode]:
        self._load(arm.weights)
        return self.rollouts.play(attempts, arm.team(self.rollouts.team), lambda _: self.advance())

    def _load(self, weights: Mapping[str, str]) -> None:
        """Load weights, unless they are loaded already."""
        if self._version and all(self._loaded.get(policy) == name for policy, name in weights.items()):
            return
        for policy in self.rollouts.run.trained_policies:
            self.rollouts.models.reset_policy(policy)
            path = self._checkpoints[weights[policy]]
            if path is not None:
                load_policies(path, self.rollouts.models, {policy: None})
        self.rollouts.instruct(self._instructions(weights))
        self._version += 1
        self.rollouts.publish(self._version)
        self._loaded = dict(weights)

    def _instructions(self, weights: Mapping[str, str]) -> list[Version]:
        """Return each agent's instructions, from its policy's checkpoint.

        An agent with an untrained policy gets the instructions of the last checkpoint in use.
        """
        policies = {agent.role: agent.policy for agent in self.rollouts.run.agents}
        told = {name: {v.role: v for v in told_at(path)} for name, path in self._checkpoints.items()}
        last = max(weights.values(), key=lambda name: (self._checkpoints[name] is not None, name), default="")
        found = (told.get(weights.get(policy, last), {}).get(role) for role, policy in policies.items())
        return [version for version in found if version is not None]

    def _once(
        self, arm: Arm, tasks: Sequence[Task], more: Mapping[str, object], play: Callable[[], list[Episode]]
    ) -> list[Episode]:
        path = self._kept / f"{self._digest(arm, tasks, more)}.parquet"
        if path in self._played_now or not self._again:
            with suppress(ValueError):  # play if the cache is missing or damaged
                return self._told(read_episodes(path))
        found = play()
        write_episodes(path, found)
        self._played_now.add(path)
        return found

    def _told(self, episodes: list[Episode]) -> list[Episode]:
        for _ in episodes:
            self.advance()
        return episodes

    def _digest(self, arm: Arm, tasks: Sequence[Task], more: Mapping[str, object]) -> str:
        weights = {policy: _digests(self._checkpoints[name], policy) for policy, name in arm.weights.items()}
        told = [arm.told(tasks), weights, digest_of(tasks), [task.id for task in tasks], more, self._settings]
        told += [version.instructions for version in self._instructions(arm.weights)]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]


def settings_of(run: RunSettings) -> dict[str, object]:
    """Return the settings and code digests that determine episodes."""
    table = run.model_dump(mode="json")
    limits = {key: table["rollout"][key] for key in ("max_steps", "timeout_seconds")}
    return {**{key: table[key] for key in PLAYED_WITH}, **limits, "code": digests_of_code(run), "marft": __version__}


def _digests(path: Path | None, policy: str) -> object:
    """Return the digests of a policy's files in a checkpoint."""
    if path is None:
        return BASE
    files = atomic.read_json(path / "state.json")["files"]
    return sorted(pair for pair in files.items() if pair[0].startswith(f"policies/{policy}/"))
