"""Rollout runner on worker processes; models and engine stay in the main process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import cast

from marft.agents.game import Attempt
from marft.agents.prompt_messages import Channel
from marft.agents.rollout import run_bounded
from marft.agents.team import Organization, Team
from marft.common.processes.launcher import ProcessHandle, start_all
from marft.common.prompt_history import PromptVersion
from marft.common.types import ActionKey, Episode, SamplingParams
from marft.common.usage import sum_counts
from marft.config.placement import open_launcher
from marft.config.run import RunSettings
from marft.inference.caller_thread import BackgroundTask
from marft.inference.runtime import InferenceRuntime
from marft.rollout.runner import RolloutHandle, ignore_episode
from marft.rollout.workers.messages import StartWorker, pickle_value
from marft.rollout.workers.program import worker_command
from marft.rollout.workers.retried_rollout import RetriedRollout
from marft.rollout.workers.worker_pool import WorkerPool


class WorkerRolloutRunner:
    """Rollout runner on ``rollout.workers`` worker processes; use it as a context manager or call ``close``.

    The runner loads the models of the recipe. Workers load the environment, tools and reward terms. If the engine
    admits requests in order, episodes are bitwise equal to episodes of a single process. The assignment of attempts to
    workers then has no effect, and the engine waits for all workers.

    Args:
        run: recipe of the run.
        for_parts: keep models in host memory, because only a part of each model moves to the device.

    Raises:
        ValueError: a model cannot be loaded, another component of the recipe is unavailable, or the recipe cannot
            be sent to another process.
        RunError: a worker process ended during its start.
    """

    def __init__(self, run: RunSettings, for_parts: bool = False) -> None:
        with ExitStack() as started:  # closes all started parts if a later part fails
            self.run, self._gate = run, asyncio.Semaphore(run.rollout.max_concurrent_episodes)
            self.excluded_tasks: dict[str, str] = {}
            settings = pickle_value(run, "the recipe")
            self._starter = open_launcher(run, "worker", run.rollout.workers)
            started.callback(self._starter.close)
            names = [f"worker {number}" for number in range(run.rollout.workers)]
            children = start_all(self._starter, names, worker_command)
            for child in children:  # workers import modules while this process loads the models
                started.callback(child.close)
            self._samplers = InferenceRuntime(run, keep_on_cpu=for_parts)
            started.callback(self._samplers.close)
            self.models, self._engine = self._samplers.models, self._samplers.engine
            self._pool = self._samplers.wait_for(self._start_pool(settings, children))
            started.callback(lambda: self._samplers.wait_for(self._pool.end()))
            self.team = self._recipe_team()
            self._started = started.pop_all()

    async def _start_pool(self, settings: bytes, children: Sequence[ProcessHandle]) -> WorkerPool:
        from transformers.utils import logging

        formats = pickle_value(self._samplers.renderer.formats, "a tokenizer")
        begin = StartWorker(settings, formats, logging.get_verbosity())
        rollout = self.run.rollout
        pool = WorkerPool(
            begin, self._engine, rollout.timeout_seconds, self._starter, rollout.max_retries, self.excluded_tasks
        )
        await pool.start(children)
        return pool

    def version(self, policy: str) -> int:
        """Return the latest published version of a policy; 0 before the first."""
        return self._engine.version(policy)

    def publish(self, version: int) -> None:
        """Publish the current weights of trained policies under a version."""
        self._samplers.publish(version)

    def publish_versions(self, versions: Mapping[str, int]) -> None:
        """Publish new weights of the given policies, each under its own version."""
        self._samplers.publish_versions(versions)

    def instruct(self, versions: Sequence[PromptVersion]) -> None:
        """Set the instructions of agents to the given prompt versions.

        Roles without a version use the instructions of the recipe.
        """
        before = {agent.role: agent.instructions for agent in self.run.agents}
        self.team = self._recipe_team().with_prompt_versions(versions, before)

    def ask(self, policy: str, question: str, sampling: SamplingParams, key: ActionKey) -> tuple[str, int]:
        """Query a policy outside episodes → text, number of tokens."""
        return self._samplers.ask_policy(policy, question, sampling, key)

    def usage(self) -> dict[str, float]:
        """Return total usage of sampling and scoring, and failure counts, by metric name."""
        return sum_counts(self._engine.usage(), self._pool.usage())

    def play(
        self, attempts: Sequence[Attempt], team: Team | None = None, on_done: Callable[[Episode], None] = ignore_episode
    ) -> list[Episode]:
        """Play every attempt and return episodes in the same order.

        Attempts lost with a worker are played again. An attempt fails if 1 + ``rollout.max_retries`` workers end while
        playing only that attempt. All later attempts at its task then fail too.
        """
        return self._samplers.wait_for(self._play(attempts, self._pickle_team(team or self.team), on_done))

    def begin(self, attempts: Sequence[Attempt]) -> BackgroundTask[list[Episode]]:
        """Start attempts in the background."""
        return self._samplers.start_background(self._play(attempts, self._pickle_team(self.team), ignore_episode))

    def end(self, handles: Sequence[RolloutHandle]) -> None:
        """Cancel background attempts."""
        self._samplers.cancel_background(handles)

    async def _play(
        self, attempts: Sequence[Attempt], team: bytes, on_done: Callable[[Episode], None]
    ) -> list[Episode]:
        async def begin(attempt: Attempt) -> RetriedRollout:
            rollout = RetriedRollout(attempt, team)
            await self._pool.play(rollout)
            return rollout

        try:
            return await run_bounded(self._gate, attempts, begin, self._pool.wait_for_episode, on_done)
        except BaseException:
            await asyncio.shield(self._pool.cancel())
            raise
        finally:
            await self._engine.wait_idle()

    def _recipe_team(self) -> Team:
        agents = self._pool.links[0].agents
        return Team(agents, cast("Organization", self.run.team), cast("Channel", self.run.channel))

    def _pickle_team(self, team: Team) -> bytes:
        """Pickle a team without the recipe's own organization and channel; workers have both."""
        organization = None if team.organization is self.team.organization else team.organization
        channel = None if team.channel is self.team.channel else team.channel
        return pickle_value((team.agents, organization, channel), "the team")

    def close(self) -> None:
        """Stop the workers and release all resources."""
        self._started.close()

    def __enter__(self) -> WorkerRolloutRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
