"""Comparison arms: weights, roles and visible messages; each arm is played once and cached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from marft.agents.game import Attempt
from marft.agents.team import Team
from marft.common import atomic
from marft.common.atomic import digest_of_json
from marft.common.prompt_history import PromptVersion
from marft.common.types import Episode, JointAction, Observation, Task
from marft.common.version import __version__
from marft.config.interfaces.channel import Channel, Message
from marft.config.interfaces.organization import Agents, Organization
from marft.config.run import RunSettings
from marft.envs.tasks import digest_tasks
from marft.evaluation.evaluate import ProgressCallback
from marft.rollout.fork_plans import play_counterfactuals
from marft.rollout.local_runner import LocalRolloutRunner
from marft.rollout.runner import ignore_episode
from marft.rollout.workers.worker_runner import WorkerRolloutRunner
from marft.runs.changes import hash_user_code
from marft.runs.checkpoints import load_policies
from marft.runs.episode_files import read_episodes, write_episodes
from marft.runs.state import read_learned_prompts

BASE = "base"
STREAM = "test/worth"  # random stream of all arms: unchanged parts are sampled as for the team
CACHE_KEYS = ("agents", "channel", "engine", "environment", "models", "policies", "rewards", "seed", "team", "tools")
Messages = Mapping[tuple[str, int], Mapping[str, str]]  # by task and sample: replacement text by action


class SingleAgentTeam(Organization):
    """Organization with a single acting agent, which only sees the observation.

    Its teammates stay in the team without actions, so their reward terms keep their meaning.
    """

    role: str

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Return the single agent's action as the answer."""
        return JointAction(answer=await agents[self.role](observation))


class MutedChannel(Channel):
    """Channel that mutes some agents: no agent receives their messages, not even the author."""

    channel: Channel
    roles: tuple[str, ...]

    def transform(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        """Return the team channel's output for other messages, and None for messages of ``roles``.

        >>> from marft.agents.channels import Raw
        >>> MutedChannel(channel=Raw(), roles=("a",)).transform([Message("a", "no"), Message("b", "yes")])
        [None, Message(role='b', text='yes')]
        """
        carried = iter(self.channel.transform([message for message in messages if message.role not in self.roles]))
        return [None if message.role in self.roles else next(carried) for message in messages]


@dataclass(frozen=True, slots=True)
class TeamVariant:
    """Variant of the team, without tasks.

    Args:
        weights: checkpoint of each trained policy, by folder name, or ``base``.
        policy_swaps: policy that replaces each policy.
        single_role: role that answers without a team; "" for the whole team.
        muted_roles: roles with muted messages.
        messages: replacement of messages.
        samples: attempts per task, starting at ``first_sample``.
        first_sample: index of the first sample.
    """

    weights: Mapping[str, str]
    policy_swaps: Mapping[str, str] = field(default_factory=dict)
    single_role: str = ""
    muted_roles: tuple[str, ...] = ()
    messages: Messages = field(default_factory=dict)
    samples: int = 1
    first_sample: int = 0

    def build_team(self, team: Team) -> Team:
        """Return this arm's team."""
        if self.policy_swaps:
            policies = [self.policy_swaps.get(agent.policy, agent.policy) for agent in team.agents]
            agents = [replace(agent, policy=policy) for agent, policy in zip(team.agents, policies, strict=True)]
            team = replace(team, agents=tuple(agents))
        if self.muted_roles:
            team = replace(team, channel=MutedChannel(channel=team.channel, roles=self.muted_roles))
        return replace(team, organization=SingleAgentTeam(role=self.single_role)) if self.single_role else team

    def build_attempts(self, tasks: Sequence[Task]) -> list[Attempt]:
        """Return the attempts, ordered by task."""
        return [
            Attempt(task, STREAM, sample, self.messages.get((task.id, sample), {}))
            for task in tasks
            for sample in range(self.first_sample, self.first_sample + self.samples)
        ]

    def identity(self, tasks: Sequence[Task]) -> dict[str, object]:
        """Return the arm's identity on given tasks, as JSON values."""
        messages = [
            [attempt.task.id, attempt.sample, sorted(attempt.messages.items())]
            for attempt in self.build_attempts(tasks)
        ]
        seats = {policy: replacement for policy, replacement in self.policy_swaps.items() if policy != replacement}
        return {
            "seats": seats,
            "alone": self.single_role,
            "unheard": sorted(self.muted_roles),
            "samples": self.samples,
            "first": self.first_sample,
            "messages": messages if self.messages else [],
        }


class VariantPlayer:
    """Player of arms; loads their weights and caches their episodes in a folder.

    Episodes are cached in portions with as many tasks as are played concurrently.

    Args:
        rollouts: rollouts of the run.
        checkpoints: checkpoint folders by name; None for the base.
        tasks: tasks.
        cache_folder: folder of the cache.
        advance: progress callback.
        ignore_cache: True to ignore the cache.
    """

    def __init__(
        self,
        rollouts: LocalRolloutRunner | WorkerRolloutRunner,
        checkpoints: Mapping[str, Path | None],
        tasks: Sequence[Task],
        cache_folder: Path,
        advance: ProgressCallback,
        *,
        ignore_cache: bool = False,
    ) -> None:
        self.rollouts, self.tasks, self.advance = rollouts, tasks, advance
        self._checkpoints, self._cache_folder, self._ignore_cache = checkpoints, cache_folder, ignore_cache
        self._settings = cache_key_settings(rollouts.run) | {"models": rollouts.models.compute_digests()}
        self._loaded: dict[str, str] = {}
        self._version = 0
        self._fresh_files: set[Path] = set()

    def play(self, variant: TeamVariant) -> list[Episode]:
        """Return the episodes of an arm, ordered by task."""
        episodes: list[Episode] = []
        for tasks in self._task_batches(variant.samples):
            episodes += self._play_cached(
                variant, tasks, {}, partial(self._play_attempts, variant, variant.build_attempts(tasks))
            )
        return episodes

    def play_forks(self, variant: TeamVariant, episodes: Sequence[Episode], resamples: int) -> list[Episode]:
        """Resample every action in an arm's episodes, with its dependent actions.

        Args:
            variant: arm of the episodes.
            episodes: at most one episode per task.
            resamples: number of resamples per action.
        """
        policies = [agent.policy for agent in variant.build_team(self.rollouts.team).agents]
        by_task = {episode.task.id: episode for episode in episodes}
        forks: list[Episode] = []

        def play(attempts: Sequence[Attempt], *, on_done: Callable[[Episode], None] = ignore_episode) -> list[Episode]:  # noqa: ARG001
            return self._play_attempts(variant, attempts)

        for tasks in self._task_batches(resamples * len(policies)):
            played_tasks = [task for task in tasks if task.id in by_task]

            attempts = replace(variant, samples=1).build_attempts(played_tasks)
            originals = [by_task[task.id] for task in played_tasks]
            play_batch = partial(play_counterfactuals, play, attempts, originals, resamples, policies)
            forks += self._play_cached(variant, played_tasks, {"resamples": resamples}, play_batch)
        return forks

    def play_team(
        self, weights: Mapping[str, str], attempts: Sequence[Attempt], team: Team, identity: object
    ) -> list[Episode]:
        """Return the episodes of a custom team on attempts.

        Args:
            weights: checkpoint of each trained policy.
            attempts: attempts to play.
            team: team.
            identity: identity of the team, as JSON data.
        """

        def play() -> list[Episode]:
            self._load_weights(weights)
            return self.rollouts.play(attempts, team, lambda _: self.advance())

        return self._play_cached(TeamVariant(weights), [attempt.task for attempt in attempts], {"told": identity}, play)

    def _task_batches(self, episodes_per_task: int) -> Iterator[Sequence[Task]]:
        size = max(1, self.rollouts.run.rollout.max_concurrent_episodes // episodes_per_task)
        for first in range(0, len(self.tasks), size):
            yield self.tasks[first : first + size]

    def _play_attempts(self, variant: TeamVariant, attempts: Sequence[Attempt]) -> list[Episode]:
        self._load_weights(variant.weights)
        return self.rollouts.play(attempts, variant.build_team(self.rollouts.team), lambda _: self.advance())

    def _load_weights(self, weights: Mapping[str, str]) -> None:
        """Load weights, unless they are loaded already."""
        if self._version and all(self._loaded.get(policy) == name for policy, name in weights.items()):
            return
        for policy in self.rollouts.run.trained_policies:
            self.rollouts.models.reset_policy(policy)
            path = self._checkpoints[weights[policy]]
            if path is not None:
                load_policies(path, self.rollouts.models, {policy: None})
        self.rollouts.set_prompt_versions(self._instructions(weights))
        self._version += 1
        self.rollouts.publish(self._version)
        self._loaded = dict(weights)

    def _instructions(self, weights: Mapping[str, str]) -> list[PromptVersion]:
        """Return each agent's instructions, from its policy's checkpoint.

        An agent with an untrained policy gets the instructions of the last checkpoint in use.
        """
        policies = {agent.role: agent.policy for agent in self.rollouts.run.agents}
        versions = {name: {v.role: v for v in read_learned_prompts(path)} for name, path in self._checkpoints.items()}
        last = max(weights.values(), key=lambda name: (self._checkpoints[name] is not None, name), default="")
        selected = (versions.get(weights.get(policy, last), {}).get(role) for role, policy in policies.items())
        return [version for version in selected if version is not None]

    def _play_cached(
        self,
        variant: TeamVariant,
        tasks: Sequence[Task],
        extra_key: Mapping[str, object],
        play: Callable[[], list[Episode]],
    ) -> list[Episode]:
        path = self._cache_folder / f"{self._cache_key(variant, tasks, extra_key)}.parquet"
        if path in self._fresh_files or not self._ignore_cache:
            with suppress(ValueError):  # play if the cache is missing or damaged
                return self._report_progress(read_episodes(path))
        episodes = play()
        write_episodes(path, episodes)
        self._fresh_files.add(path)
        return episodes

    def _report_progress(self, episodes: list[Episode]) -> list[Episode]:
        for _ in episodes:
            self.advance()
        return episodes

    def _cache_key(self, variant: TeamVariant, tasks: Sequence[Task], extra_key: Mapping[str, object]) -> str:
        weights = {policy: _policy_digests(self._checkpoints[name], policy) for policy, name in variant.weights.items()}
        key_parts = [
            variant.identity(tasks),
            weights,
            digest_tasks(tasks),
            [task.id for task in tasks],
            extra_key,
            self._settings,
        ]
        key_parts += [version.instructions for version in self._instructions(variant.weights)]
        return digest_of_json(key_parts)[:32]


def cache_key_settings(run: RunSettings) -> dict[str, object]:
    """Return the settings and code digests that determine episodes."""
    table = run.model_dump(mode="json")
    limits = {key: table["rollout"][key] for key in ("max_steps", "timeout_seconds")}
    return {**{key: table[key] for key in CACHE_KEYS}, **limits, "code": hash_user_code(run), "marft": __version__}


def _policy_digests(path: Path | None, policy: str) -> object:
    """Return the digests of a policy's files in a checkpoint."""
    if path is None:
        return BASE
    files = atomic.read_json(path / "state.json")["files"]
    return sorted(pair for pair in files.items() if pair[0].startswith(f"policies/{policy}/"))
