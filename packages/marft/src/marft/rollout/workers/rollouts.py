"""Rollout runner on worker processes; models and engine stay in the main process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import cast

from marft.agents.game import Attempt
from marft.agents.rendering import Channel
from marft.agents.rollout import at_most
from marft.agents.team import Organization, Team
from marft.common.lineage import Version
from marft.common.processes.starting import Started, start_all
from marft.common.types import ActionKey, Episode, Sampling
from marft.common.usage import added
from marft.config.placement import open_starter
from marft.config.run import RunSettings
from marft.inference.caller_thread import Background
from marft.inference.samplers import Samplers
from marft.rollout.playing import Begun, nobody
from marft.rollout.workers.crew import Crew
from marft.rollout.workers.messages import Begin, pickled
from marft.rollout.workers.program import worker_command
from marft.rollout.workers.tried import Tried


class WorkerRollouts:
    """Rollout runner on ``rollout.processes`` worker processes; use it as a context manager or call ``close``.

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
            self.run, self._gate = run, asyncio.Semaphore(run.rollout.max_live_episodes)
            self.set_aside: dict[str, str] = {}
            settings = pickled(run, "the recipe")
            self._starter = open_starter(run, "worker", run.rollout.processes)
            started.callback(self._starter.close)
            names = [f"worker {number}" for number in range(run.rollout.processes)]
            children = start_all(self._starter, names, worker_command)
            for child in children:  # workers import modules while this process loads the models
                started.callback(child.close)
            self._samplers = Samplers(run, for_parts=for_parts)
            started.callback(self._samplers.close)
            self.models, self._engine = self._samplers.models, self._samplers.engine
            self._crew = self._samplers.wait_for(self._begin(settings, children))
            started.callback(lambda: self._samplers.wait_for(self._crew.end()))
            self.team = self._recipes_team()
            self._started = started.pop_all()

    async def _begin(self, settings: bytes, children: Sequence[Started]) -> Crew:
        from transformers.utils import logging

        formats = pickled(self._samplers.renderer.formats, "a tokenizer")
        begin = Begin(settings, formats, logging.get_verbosity())
        rollout = self.run.rollout
        crew = Crew(
            begin, self._engine, rollout.timeout_seconds, self._starter, rollout.tries, self.set_aside
        )  # fmt: skip
        await crew.start(children)
        return crew

    def version(self, policy: str) -> int:
        """Return the latest published version of a policy; 0 before the first."""
        return self._engine.version(policy)

    def publish(self, version: int) -> None:
        """Publish the current weights of trained policies under a version."""
        self._samplers.publish(version)

    def publish_versions(self, versions: Mapping[str, int]) -> None:
        """Publish new weights of the given policies, each under its own version."""
        self._samplers.publish_versions(versions)

    def instruct(self, versions: Sequence[Version]) -> None:
        """Set the instructions of agents to the given prompt versions.

        Roles without a version use the instructions of the recipe.
        """
        before = {agent.role: agent.instructions for agent in self.run.agents}
        self.team = self._recipes_team().instructed(versions, before)

    def ask(self, policy: str, question: str, sampling: Sampling, key: ActionKey) -> tuple[str, int]:
        """Query a policy outside episodes → text, number of tokens."""
        return self._samplers.ask(policy, question, sampling, key)

    def usage(self) -> dict[str, float]:
        """Return total usage of sampling and scoring, and failure counts, by metric name."""
        return added(self._engine.usage(), self._crew.usage())

    def play(
        self, attempts: Sequence[Attempt], team: Team | None = None, on_done: Callable[[Episode], None] = nobody
    ) -> list[Episode]:
        """Play every attempt and return episodes in the same order.

        Attempts lost with a worker are played again. An attempt fails if ``rollout.tries`` workers end while playing
        only that attempt. All later attempts at its task then fail too.
        """
        return self._samplers.wait_for(self._play(attempts, self._sent(team or self.team), on_done))

    def begin(self, attempts: Sequence[Attempt]) -> Background[list[Episode]]:
        """Start attempts in the background."""
        return self._samplers.begin(self._play(attempts, self._sent(self.team), nobody))

    def end(self, begun: Sequence[Begun]) -> None:
        """Cancel background attempts."""
        self._samplers.end(begun)

    async def _play(
        self, attempts: Sequence[Attempt], team: bytes, on_done: Callable[[Episode], None]
    ) -> list[Episode]:
        async def begin(attempt: Attempt) -> Tried:
            tried = Tried(attempt, team)
            await self._crew.play(tried)
            return tried

        try:
            return await at_most(self._gate, attempts, begin, self._crew.episode, on_done)
        except BaseException:
            await asyncio.shield(self._crew.cancel())
            raise
        finally:
            await self._engine.settle()

    def _recipes_team(self) -> Team:
        agents = self._crew.links[0].agents
        return Team(agents, cast("Organization", self.run.team), cast("Channel", self.run.channel))

    def _sent(self, team: Team) -> bytes:
        """Pickle a team without the recipe's own organization and channel; workers have both."""
        organization = None if team.organization is self.team.organization else team.organization
        channel = None if team.channel is self.team.channel else team.channel
        return pickled((team.agents, organization, channel), "the team")

    def close(self) -> None:
        """Stop the workers and release all resources."""
        self._started.close()

    def __enter__(self) -> WorkerRollouts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
