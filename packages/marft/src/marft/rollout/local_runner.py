"""Rollout runner on threads of this process, and the factory for both runners."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeVar

from marft.agents.game import Attempt, Game
from marft.agents.loop_threads import LoopThreadPool
from marft.agents.play import keep_rewards, play_all
from marft.agents.sandbox.runner import terminate_all
from marft.agents.team import Team
from marft.common.types import Episode, TokenIds
from marft.common.usage import sum_counts
from marft.config.interfaces.environment import Environment
from marft.config.run import RunSettings
from marft.envs.game_runtime import GameRuntime, open_terms
from marft.inference.runtime import InferenceRuntime
from marft.rollout.runner import EpisodeCallback, RolloutRunner, ignore_episode
from marft.rollout.workers.worker_runner import WorkerRolloutRunner

T = TypeVar("T")


def open_rollout_runner(run: RunSettings, keep_on_cpu: bool = False) -> LocalRolloutRunner | WorkerRolloutRunner:
    """Open the rollout runner for ``rollout.workers``; use it as a context manager or call ``close``.

    Args:
        run: recipe of the run.
        keep_on_cpu: keep weights in CPU memory, because only a shard of them will move to the device.

    Raises:
        ValueError: a component of the recipe is unavailable.
    """
    return (WorkerRolloutRunner if run.rollout.workers else LocalRolloutRunner)(run, keep_on_cpu)


class LocalRolloutRunner(RolloutRunner):
    """Rollout runner in this process: it loads the models, environment, tools and reward terms of the recipe.

    ``excluded_tasks`` stays empty: a crash would end this process.

    Raises:
        ValueError: a model cannot be loaded, an endpoint's key or a tool is missing, or an agent's
            ``max_new_tokens`` fills its model's context.
    """

    def _open(self, keep_on_cpu: bool, started: ExitStack) -> Team:
        terms = open_terms(self.run, started.callback)
        self._open_samplers(InferenceRuntime(self.run, terminate_all, keep_on_cpu), started)
        self._parts = GameRuntime(self.run, terms, self.engine, self._samplers.renderer, LoopThreadPool())
        started.callback(self._parts.close)
        self.compose = self._parts.reward_manager
        return self._parts.game.team

    @property
    def game(self) -> Game:
        """The recipe's game, with the current instructions of the team."""
        return replace(self._parts.game, team=self.team)

    def decode(self, policy: str, ids: TokenIds) -> str:
        """Return the text of a policy's turn, without the end token and the fixed start of the chat template."""
        return self._samplers.decode(policy, ids)

    def usage(self) -> dict[str, float]:
        """Return total usage of sampling and scoring, and the count of hung threads, by metric name."""
        return sum_counts(self.engine.usage(), self._parts.usage())

    def play_in(self, environment: Environment, attempts: Sequence[Attempt], max_steps: int) -> list[Episode]:
        """Play attempts of the recipe's team in another environment.

        Rewards come from that environment, without the recipe's reward terms.

        Args:
            environment: environment to play in.
            attempts: attempts to play.
            max_steps: maximum number of steps; longer episodes are truncated.
        """
        game = replace(self.game, environment=environment, max_steps=max_steps)
        return self.wait_for(self._play_game(game, attempts, ignore_episode, keep_rewards))

    async def _play(self, attempts: Sequence[Attempt], team: Team, on_done: EpisodeCallback) -> list[Episode]:
        return await self._play_game(replace(self.game, team=team), attempts, on_done, self.compose)

    async def _play_game(
        self,
        game: Game,
        attempts: Sequence[Attempt],
        on_done: EpisodeCallback,
        compose: Callable[[Episode], Awaitable[Episode]],
    ) -> list[Episode]:
        try:
            return await play_all(game, attempts, self._gate, on_done, compose)
        finally:
            await self.engine.wait_idle()

    def wait_for(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine that uses the engine; the engine computes on the calling thread."""
        return self._samplers.wait_for(coroutine)
