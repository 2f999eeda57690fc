"""Who plays a run's episodes: this process alone, on its threads, or worker processes beside it."""

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
    """What plays a run as ``rollout.processes`` says. Close it, or use it as a context manager.

    Args:
        for_parts: models stay in the host's memory: a part of them alone will come to the device.

    Raises:
        ValueError: something that the recipe names cannot be had.
    """
    return (WorkerRollouts if run.rollout.processes else LocalRollouts)(run, for_parts)


class LocalRollouts:
    """Loads what a recipe names and plays episodes on it. Close it, or use it as a context manager.

    Raises:
        ValueError: a model cannot be loaded, an endpoint's key or a tool is not there, or an agent's
            ``max_new_tokens`` fills its model's context.
    """

    def __init__(self, run: RunSettings, for_parts: bool = False) -> None:
        with ExitStack() as started:  # what has been started ends, should the rest fail
            self.run, self._gate = run, asyncio.Semaphore(run.rollout.max_live_episodes)
            self.set_aside: dict[str, str] = {}  # what ends a process ends this one
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
        """Return what a policy's turn says, without its end and what its chat template begins each turn with."""
        return self._samplers.decode(policy, ids)

    def publish(self, version: int) -> None:
        """The policies in training are at this version now."""
        self._samplers.publish(version)

    def version(self, policy: str) -> int:
        """The version of a policy that was published last; 0 where none was."""
        return self.engine.version(policy)

    def publish_versions(self, versions: Mapping[str, int]) -> None:
        """These policies were given other weights, each of a step."""
        self._samplers.publish_versions(versions)

    def instruct(self, versions: Sequence[Version]) -> None:
        """What agents are told from here on, in the roles of these versions; in all others, what the recipe says."""
        before = {agent.role: agent.instructions for agent in self.run.agents}
        self.game = replace(self.game, team=self._parts.game.team.instructed(versions, before))

    def ask(self, policy: str, question: str, sampling: Sampling, key: ActionKey) -> tuple[str, int]:
        """What a policy says to a question that is no agent's part of an episode, and the tokens that it took."""
        return self._samplers.ask(policy, question, sampling, key)

    def usage(self) -> dict[str, float]:
        """What sampling and scoring have taken so far, and threads that hang, by the name of a metric."""
        return added(self.engine.usage(), self._parts.usage())

    def play(
        self, attempts: Sequence[Attempt], team: Team | None = None, on_done: Callable[[Episode], None] = nobody
    ) -> list[Episode]:
        """Play every attempt → episodes in the same order."""
        game = replace(self.game, team=team) if team else self.game
        return self.wait_for(self._play(game, attempts, on_done))

    def play_in(self, environment: Environment, attempts: Sequence[Attempt], most_steps: int) -> list[Episode]:
        """Play attempts in another environment than the recipe's, by the recipe's team: what that one pays stands,
        without the recipe's reward terms.

        Args:
            most_steps: of an episode; then it is truncated.
        """
        game = replace(self.game, environment=environment, max_steps=most_steps)
        return self.wait_for(self._play(game, attempts, nobody, as_it_is))

    def begin(self, attempts: Sequence[Attempt]) -> Background[list[Episode]]:
        """Play attempts in the background."""
        return self._samplers.begin(self._play(self.game, attempts, nobody))

    def end(self, begun: Sequence[Begun]) -> None:
        """Let go of what is played in the background."""
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
        """Run a coroutine that uses the engine. The engine computes on the thread that calls this."""
        return self._samplers.wait_for(coroutine)

    def close(self) -> None:
        """End whatever was started."""
        self._started.close()

    def __enter__(self) -> LocalRollouts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
