"""Rollout runners: the base class of both runners, shared by training, evaluation and batch collection."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from marft.agents.game import Attempt
from marft.agents.team import Team
from marft.common.prompt_history import PromptVersion
from marft.common.types import ActionKey, Episode, SamplingParams
from marft.common.usage import ENGINE_RESTARTS
from marft.config.run import RunSettings
from marft.inference.caller_thread import BackgroundTask
from marft.runs.checkpoints import load_policies
from marft.runs.state import read_learned_prompts

if TYPE_CHECKING:
    from marft.inference.runtime import InferenceRuntime

FAILURE_METRICS = (ENGINE_RESTARTS, "workers_lost", "episodes_retried", "tasks_excluded")  # metrics of worker processes
EpisodeCallback = Callable[[Episode], None]  # called with each finished episode
RolloutHandle = BackgroundTask[list[Episode]]  # handle for attempts in the background


def ignore_episode(_: Episode) -> None:
    """Ignore a finished episode; default ``on_done`` callback."""


class RolloutRunner(ABC):
    """Runner for a run's episodes, independent of where environment and tools run; use it as a context manager.

    Models and engine are in this process. The tasks in ``excluded_tasks`` (by id, with the reason) are not played: a
    task is excluded after repeated crashes of worker processes. The mapping grows during rollouts, and entries added
    from an earlier run stay in effect.

    Args:
        run: recipe of the run.
        keep_on_cpu: keep weights in CPU memory, because only a shard of them will move to the device.

    Raises:
        ValueError: a component of the recipe is unavailable.
    """

    def __init__(self, run: RunSettings, keep_on_cpu: bool = False) -> None:
        self.run, self._gate = run, asyncio.Semaphore(run.rollout.max_concurrent_episodes)
        self.excluded_tasks: dict[str, str] = {}
        with ExitStack() as started:  # closes all started parts if a later part fails
            self.team = self._recipe_team = self._open(keep_on_cpu, started)
            self._started = started.pop_all()

    @abstractmethod
    def _open(self, keep_on_cpu: bool, started: ExitStack) -> Team:
        """Open the components of the recipe; return its team, the agents equipped with their tools and skills."""

    def _open_samplers(self, samplers: InferenceRuntime, started: ExitStack) -> None:
        started.callback(samplers.close)
        self._samplers, self.models, self.engine = samplers, samplers.models, samplers.engine

    @abstractmethod
    async def _play(self, attempts: Sequence[Attempt], team: Team, on_done: EpisodeCallback) -> list[Episode]: ...

    @abstractmethod
    def usage(self) -> Mapping[str, float]:
        """Return total usage of sampling and scoring, and failure counts, by metric name."""

    def play(
        self, attempts: Sequence[Attempt], team: Team | None = None, on_done: EpisodeCallback = ignore_episode
    ) -> list[Episode]:
        """Play every attempt and return rewarded episodes in the same order.

        An error in an environment, a tool or a reward term affects only its own episode. The status of that episode is
        ``failed`` or ``timed_out``, with the reason. An attempt lost with a worker process is played again. It fails if
        1 + ``rollout.max_retries`` workers end while playing only that attempt. Then all later attempts at its task
        fail too.

        Args:
            attempts: attempts to play.
            team: team to play instead of the recipe's team; optional.
            on_done: callback for each finished episode, rewards included.
        """
        return self._samplers.wait_for(self._play(attempts, team or self.team, on_done))

    def play_in_background(self, attempts: Sequence[Attempt]) -> RolloutHandle:
        """Start attempts in the background; requires a separate engine.

        The outcome of the handle holds the episodes in the order of the attempts.
        """
        return self._samplers.start_background(self._play(attempts, self.team, ignore_episode))

    def end(self, handles: Sequence[RolloutHandle]) -> None:
        """Cancel background attempts and wait a few seconds for their end."""
        self._samplers.cancel_background(handles)

    def publish(self, version: int) -> None:
        """Publish the current weights of trained policies under a version.

        With an engine in this process, no rollout may be in progress.
        """
        self._samplers.publish(version)

    def publish_versions(self, versions: Mapping[str, int]) -> None:
        """Publish new weights of the given policies, each under its own version."""
        self._samplers.publish_versions(versions)

    def version(self, policy: str) -> int:
        """Return the latest published version of a policy; 0 before the first."""
        return self.engine.version(policy)

    def set_prompt_versions(self, versions: Sequence[PromptVersion]) -> None:
        """Set the instructions of agents to the given prompt versions.

        Roles without a version use the instructions of the recipe.
        """
        before = {agent.role: agent.instructions for agent in self.run.agents}
        self.team = self._recipe_team.with_prompt_versions(versions, before)

    def load_checkpoint(self, path: Path | None) -> None:
        """Load the trained policies and learned prompts of a checkpoint; None loads nothing.

        Raises:
            UserError: the checkpoint was deleted, lacks a policy, or does not fit.
        """
        if path is not None:
            load_policies(path, self.models, dict.fromkeys(self.run.trained_policies))
            self.set_prompt_versions(read_learned_prompts(path))

    def ask(self, policy: str, question: str, sampling: SamplingParams, key: ActionKey) -> tuple[str, int]:
        """Query a policy outside episodes → text, number of tokens."""
        return self._samplers.ask_policy(policy, question, sampling, key)

    def close(self) -> None:
        """Release all resources."""
        self._started.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
