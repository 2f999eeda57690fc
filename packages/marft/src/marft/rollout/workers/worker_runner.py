"""Rollout runner on worker processes; models and engine stay in the main process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

from marft.agents.game import Attempt
from marft.agents.play import run_bounded
from marft.agents.team import Team
from marft.common.processes.launcher import ProcessHandle, start_all
from marft.common.processes.pickling import pickle_value
from marft.common.types import Episode
from marft.common.usage import sum_counts
from marft.config.sections import open_launcher
from marft.inference.runtime import InferenceRuntime
from marft.rollout.runner import EpisodeCallback, RolloutRunner
from marft.rollout.workers.messages import StartWorker
from marft.rollout.workers.worker_pool import RetriedRollout, WorkerPool, worker_command


class WorkerRolloutRunner(RolloutRunner):
    """Rollout runner on ``rollout.workers`` worker processes.

    The runner loads the models of the recipe. Workers load the environment, tools and reward terms. If the engine
    admits requests in order, episodes are bitwise equal to episodes of a single process. The assignment of attempts to
    workers then has no effect, and the engine waits for all workers.

    Raises:
        ValueError: a model cannot be loaded, another component of the recipe is unavailable, or the recipe cannot
            be sent to another process.
        RunError: a worker process ended during its start.
    """

    def _open(self, keep_on_cpu: bool, started: ExitStack) -> Team:
        run = self.run
        settings = pickle_value(run, "the recipe")
        self._launcher = open_launcher(run, "worker", run.rollout.workers)
        started.callback(self._launcher.close)
        names = [f"worker {number}" for number in range(run.rollout.workers)]
        children = start_all(self._launcher, names, worker_command)
        for child in children:  # workers import modules while this process loads the models
            started.callback(child.close)
        self._open_samplers(InferenceRuntime(run, keep_on_cpu=keep_on_cpu), started)
        self._pool = self._samplers.wait_for(self._start_pool(settings, children))
        started.callback(lambda: self._samplers.wait_for(self._pool.end()))
        return Team(self._pool.connections[0].agents, run.team, run.channel)

    async def _start_pool(self, settings: bytes, children: Sequence[ProcessHandle]) -> WorkerPool:
        from transformers.utils import logging

        formats = pickle_value(self._samplers.renderer.formats, "a tokenizer")
        start_message = StartWorker(settings, formats, logging.get_verbosity())
        rollout = self.run.rollout
        pool = WorkerPool(
            start_message,
            self.engine,
            rollout.timeout_seconds,
            self._launcher,
            rollout.max_retries,
            self.excluded_tasks,
        )
        await pool.start(children)
        return pool

    def usage(self) -> dict[str, float]:
        """Return total usage of sampling and scoring, and failure counts, by metric name."""
        return sum_counts(self.engine.usage(), self._pool.usage())

    async def _play(self, attempts: Sequence[Attempt], team: Team, on_done: EpisodeCallback) -> list[Episode]:
        pickled_team = self._pickle_team(team)

        async def play_attempt(attempt: Attempt) -> RetriedRollout:
            rollout = RetriedRollout(attempt, pickled_team)
            await self._pool.play_until_ended(rollout)
            return rollout

        try:
            return await run_bounded(self._gate, attempts, play_attempt, self._pool.wait_for_episode, on_done)
        except BaseException:
            await asyncio.shield(self._pool.cancel())
            raise
        finally:
            await self.engine.wait_idle()

    def _pickle_team(self, team: Team) -> bytes:
        """Pickle a team without the recipe's own organization and channel; workers have both."""
        organization = None if team.organization is self.team.organization else team.organization
        channel = None if team.channel is self.team.channel else team.channel
        return pickle_value((team.agents, organization, channel), "the team")
