"""Rollouts in worker processes: environment, tools and reward terms are there, models and engine here."""

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
    """Loads the models that a recipe names, and plays in ``rollout.processes`` processes. Close it, or use it as a
    context manager.

    Episodes are the same as in one process, to the last bit where requests are admitted in order: which of the workers
    plays an attempt changes nothing, and the engine waits for all of them.

    Raises:
        ValueError: a model cannot be loaded, something else that the recipe names cannot be had, or the recipe cannot
            be sent to another process.
        RunError: a worker ended before it had begun.
    """

    def __init__(self, run: RunSettings, for_parts: bool = False) -> None:
        with ExitStack() as started:  # what has been started ends, should the rest fail
            self.run, self._gate = run, asyncio.Semaphore(run.rollout.max_live_episodes)
            self.set_aside: dict[str, str] = {}
            settings = pickled(run, "the recipe")
            self._starter = open_starter(run, "worker", run.rollout.processes)
            started.callback(self._starter.close)
            names = [f"worker {number}" for number in range(run.rollout.processes)]
            children = start_all(self._starter, names, worker_command)
            for child in children:  # which import what they need while models are loaded here
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
        """The version of a policy that was published last; 0 where none was."""
        return self._engine.version(policy)

    def publish(self, version: int) -> None:
        """The policies in training are at this version now."""
        self._samplers.publish(version)

    def publish_versions(self, versions: Mapping[str, int]) -> None:
        """These policies were given other weights, each of a step."""
        self._samplers.publish_versions(versions)

    def instruct(self, versions: Sequence[Version]) -> None:
        """What agents are told from here on, in the roles of these versions; in all others, what the recipe says."""
        before = {agent.role: agent.instructions for agent in self.run.agents}
        self.team = self._recipes_team().instructed(versions, before)

    def ask(self, policy: str, question: str, sampling: Sampling, key: ActionKey) -> tuple[str, int]:
        """What a policy says to a question that is no agent's part of an episode, and the tokens that it took."""
        return self._samplers.ask(policy, question, sampling, key)

    def usage(self) -> dict[str, float]:
        """What sampling and scoring have taken so far, and what was lost, by the name of a metric."""
        return added(self._engine.usage(), self._crew.usage())

    def play(
        self, attempts: Sequence[Attempt], team: Team | None = None, on_done: Callable[[Episode], None] = nobody
    ) -> list[Episode]:
        """Play every attempt → episodes in the same order. What is lost with a worker is played again; an attempt that
        ends ``rollout.tries`` workers by itself has failed, and so do all others at its task from then on."""
        return self._samplers.wait_for(self._play(attempts, self._sent(team or self.team), on_done))

    def begin(self, attempts: Sequence[Attempt]) -> Background[list[Episode]]:
        """Play attempts in the background."""
        return self._samplers.begin(self._play(attempts, self._sent(self.team), nobody))

    def end(self, begun: Sequence[Begun]) -> None:
        """Let go of what is played in the background."""
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
        """A team as it travels: the recipe's own organization and channel are in the workers already."""
        organization = None if team.organization is self.team.organization else team.organization
        channel = None if team.channel is self.team.channel else team.channel
        return pickled((team.agents, organization, channel), "the team")

    def close(self) -> None:
        """End the workers and whatever else was started."""
        self._started.close()

    def __enter__(self) -> WorkerRollouts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
