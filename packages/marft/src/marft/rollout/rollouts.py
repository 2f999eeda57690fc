"""Rollout runner on threads of this process, and the factory for both runners."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeVar

from marft.agents.environment import Environment
from marft.agents.game import Attempt, Game
from marft.agents.loop_threads import LoopThreadPool
from marft.agents.rollout import as_it_is, play_all
from marft.agents.sandbox.runner import end_all
from marft.agents.team import Team
from marft.common.lineage import Version
from marft.common.types import ActionKey, Episode, Sampling, TokenIds
from marft.common.usage import added
from marft.config.run import RunSettings
from marft.envs.game_parts import GameParts, open_terms
from marft.inference.caller_thread import Background
from marft.inference.samplers import Samplers
from marft.rollout.playing import Begun, nobody
from marft.rollout.workers.rollouts import WorkerRollouts

T = TypeVar("T")


def open_rollouts(run: RunSettings, for_parts: bool = False) -> LocalRollouts | WorkerRollouts:
    """Open the rollout runner for ``rollout.processes``; use it as a context manager or call ``close``.

    Args:
        run: recipe of the run.
        for_parts: keep models in host memory, because only a part of each model moves to the device.

    Raises:
        ValueError: a component of the recipe is unavailable.
    """
    return (WorkerRollouts if run.rollout.processes else LocalRollouts)(run, for_parts)


class LocalRollouts:
    """Rollout runner in this process; use it as a context manager or call ``close``.

    The runner loads the models, environment, tools and reward terms of the recipe.

    Args:
        run: recipe of the run.
        for_parts: keep models in host memory, because only a part of each model moves to the device.

    Raises:
        ValueError: a model cannot be loaded, an endpoint's key or a tool is missing, or an agent's
            ``max_new_tokens`` fills its model's context.
    """

    def __init__(self, run: RunSettings, for_parts: bool = False) -> None:
        with ExitStack() as started:  # closes all started parts if a later part fails
            self.run, self._gate = run, asyncio.Semaphore(run.rollout.max_live_episodes)
            self.set_aside: dict[str, str] = {}  # stays empty: a crash would end this process
            terms = open_terms(run, started.callback)
            self._samplers = Samplers(run, end_all, for_parts)
            started.callback(self._samplers.close)
            self.models, self.engine = self._samplers.models, self._samplers.engine
            self._parts = GameParts(run, terms, self.engine, self._samplers.renderer, LoopThreadPool())
            started.callback(self._parts.close)
            self.game, self.compose = self._parts.game, self._parts.compose
            self._started = started.pop_all()

    @property
    def team(self) -> Team:
        """The recipe's team, its agents equipped with their tools and skills."""
        return self.game.team

    def decode(self, policy: str, ids: TokenIds) -> str:
        """Return the text of a policy's turn, without the end token and the fixed start of the chat template."""
        return self._samplers.decode(policy, ids)

    def publish(self, version: int) -> None:
        """Publish the current weights of trained policies under a version."""
        self._samplers.publish(version)

    def version(self, policy: str) -> int:
        """Return the latest published version of a policy; 0 before the first."""
        return self.engine.version(policy)

    def publish_versions(self, versions: Mapping[str, int]) -> None:
        """Publish new weights of the given policies, each under its own version."""
        self._samplers.publish_versions(versions)

    def instruct(self, versions: Sequence[Version]) -> None:
        """Set the instructions of agents to the given prompt versions.

        Roles without a version use the instructions of the recipe.
        """
        before = {agent.role: agent.instructions for agent in self.run.agents}
        self.game = replace(self.game, team=self._parts.game.team.instructed(versions, before))

    def ask(self, policy: str, question: str, sampling: Sampling, key: ActionKey) -> tuple[str, int]:
        """Query a policy outside episodes → text, number of tokens."""
        return self._samplers.ask(policy, question, sampling, key)

    def usage(self) -> dict[str, float]:
        """Return total usage of sampling and scoring, and the count of hung threads, by metric name."""
        return added(self.engine.usage(), self._parts.usage())

    def play(
        self, attempts: Sequence[Attempt], team: Team | None = None, on_done: Callable[[Episode], None] = nobody
    ) -> list[Episode]:
        """Play every attempt and return episodes in the same order."""
        game = replace(self.game, team=team) if team else self.game
        return self.wait_for(self._play(game, attempts, on_done))

    def play_in(self, environment: Environment, attempts: Sequence[Attempt], most_steps: int) -> list[Episode]:
        """Play attempts of the recipe's team in another environment.

        Rewards come from that environment, without the recipe's reward terms.

        Args:
            environment: environment to play in.
            attempts: attempts to play.
            most_steps: maximum number of steps; longer episodes are truncated.
        """
        game = replace(self.game, environment=environment, max_steps=most_steps)
        return self.wait_for(self._play(game, attempts, nobody, as_it_is))

    def begin(self, attempts: Sequence[Attempt]) -> Background[list[Episode]]:
        """Start attempts in the background."""
        return self._samplers.begin(self._play(self.game, attempts, nobody))

    def end(self, begun: Sequence[Begun]) -> None:
        """Cancel background attempts."""
        self._samplers.end(begun)

    async def _play(
        self, game: Game, attempts: Sequence[Attempt], on_done: Callable[[Episode], None],
        compose: Callable[[Episode], Awaitable[Episode]] | None = None,
    ) -> list[Episode]:  # fmt: skip
        try:
            return await play_all(game, attempts, self._gate, on_done, compose or self.compose)
        finally:
            await self.engine.settle()

    def wait_for(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine that uses the engine; the engine computes on the calling thread."""
        return self._samplers.wait_for(coroutine)

    def close(self) -> None:
        """Release all resources."""
        self._started.close()

    def __enter__(self) -> LocalRollouts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
