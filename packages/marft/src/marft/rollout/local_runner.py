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
from marft.agents.rollout import keep_rewards, play_all
from marft.agents.sandbox.runner import terminate_all
from marft.agents.team import Team
from marft.common.prompt_history import PromptVersion
from marft.common.types import ActionKey, Episode, SamplingParams, TokenIds
from marft.common.usage import sum_counts
from marft.config.run import RunSettings
from marft.envs.game_runtime import GameRuntime, open_terms
from marft.inference.caller_thread import BackgroundTask
from marft.inference.runtime import InferenceRuntime
from marft.rollout.runner import RolloutHandle, ignore_episode
from marft.rollout.workers.worker_runner import WorkerRolloutRunner

T = TypeVar("T")


def open_rollouts(run: RunSettings, for_parts: bool = False) -> LocalRolloutRunner | WorkerRolloutRunner:
    """Open the rollout runner for ``rollout.workers``; use it as a context manager or call ``close``.

    Args:
        run: recipe of the run.
        for_parts: keep models in host memory, because only a part of each model moves to the device.

    Raises:
        ValueError: a component of the recipe is unavailable.
    """
    return (WorkerRolloutRunner if run.rollout.workers else LocalRolloutRunner)(run, for_parts)


class LocalRolloutRunner:
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
            self.run, self._gate = run, asyncio.Semaphore(run.rollout.max_concurrent_episodes)
            self.excluded_tasks: dict[str, str] = {}  # stays empty: a crash would end this process
            terms = open_terms(run, started.callback)
            self._samplers = InferenceRuntime(run, terminate_all, for_parts)
            started.callback(self._samplers.close)
            self.models, self.engine = self._samplers.models, self._samplers.engine
            self._parts = GameRuntime(run, terms, self.engine, self._samplers.renderer, LoopThreadPool())
            started.callback(self._parts.close)
            self.game, self.compose = self._parts.game, self._parts.reward_manager
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

    def instruct(self, versions: Sequence[PromptVersion]) -> None:
        """Set the instructions of agents to the given prompt versions.

        Roles without a version use the instructions of the recipe.
        """
        before = {agent.role: agent.instructions for agent in self.run.agents}
        self.game = replace(self.game, team=self._parts.game.team.with_prompt_versions(versions, before))

    def ask(self, policy: str, question: str, sampling: SamplingParams, key: ActionKey) -> tuple[str, int]:
        """Query a policy outside episodes → text, number of tokens."""
        return self._samplers.ask_policy(policy, question, sampling, key)

    def usage(self) -> dict[str, float]:
        """Return total usage of sampling and scoring, and the count of hung threads, by metric name."""
        return sum_counts(self.engine.usage(), self._parts.usage())

    def play(
        self, attempts: Sequence[Attempt], team: Team | None = None, on_done: Callable[[Episode], None] = ignore_episode
    ) -> list[Episode]:
        """Play every attempt and return episodes in the same order."""
        game = replace(self.game, team=team) if team else self.game
        return self.wait_for(self._play(game, attempts, on_done))

    def play_in(self, environment: Environment, attempts: Sequence[Attempt], max_steps: int) -> list[Episode]:
        """Play attempts of the recipe's team in another environment.

        Rewards come from that environment, without the recipe's reward terms.

        Args:
            environment: environment to play in.
            attempts: attempts to play.
            max_steps: maximum number of steps; longer episodes are truncated.
        """
        game = replace(self.game, environment=environment, max_steps=max_steps)
        return self.wait_for(self._play(game, attempts, ignore_episode, keep_rewards))

    def begin(self, attempts: Sequence[Attempt]) -> BackgroundTask[list[Episode]]:
        """Start attempts in the background."""
        return self._samplers.start_background(self._play(self.game, attempts, ignore_episode))

    def end(self, handles: Sequence[RolloutHandle]) -> None:
        """Cancel background attempts."""
        self._samplers.cancel_background(handles)

    async def _play(
        self,
        game: Game,
        attempts: Sequence[Attempt],
        on_done: Callable[[Episode], None],
        compose: Callable[[Episode], Awaitable[Episode]] | None = None,
    ) -> list[Episode]:
        try:
            return await play_all(game, attempts, self._gate, on_done, compose or self.compose)
        finally:
            await self.engine.wait_idle()

    def wait_for(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine that uses the engine; the engine computes on the calling thread."""
        return self._samplers.wait_for(coroutine)

    def close(self) -> None:
        """Release all resources."""
        self._started.close()

    def __enter__(self) -> LocalRolloutRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
