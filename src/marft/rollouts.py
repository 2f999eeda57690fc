"""Everything that plays: the models of a run, the engine that samples from them, and the game they are in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar, cast

from marft.config.run import RunSettings
from marft.endpoints.client import Endpoint
from marft.engines.caller_thread import CallerThreadExecutor
from marft.engines.local import LocalEngine, LocalPolicy
from marft.engines.remote import RemoteEngine, RemotePolicy
from marft.engines.renderer import ChatFormat, ChatRenderer
from marft.engines.router import Router
from marft.game.environment import Environment
from marft.game.game import Attempt, Game
from marft.game.loop_threads import LoopThreadPool
from marft.game.rollout import play_all
from marft.game.team import Team
from marft.models.pool import Models
from marft.rewards.composer import RewardComposer
from marft.rewards.terms import Term
from marft.sandbox.runner import end_all
from marft.tools.toolkit import Toolkit
from marft.types import Episode, TokenIds

T = TypeVar("T")


class LocalRollouts:
    """Loads what a recipe names and plays episodes on it. Close it, or use it as a context manager.

    Raises:
        ValueError: a model cannot be loaded, an endpoint's key is not there, or an agent's ``max_new_tokens`` fills its
            model's context.
    """

    def __init__(self, run: RunSettings) -> None:
        with ExitStack() as started:  # what has been started ends, should the rest fail
            self._begin(run, started)
            self._started = started.pop_all()

    def _begin(self, run: RunSettings, started: ExitStack) -> None:
        self.run = run
        self._endpoints: dict[str, Endpoint] = {}
        for name, model in run.models.items():
            if model.endpoint:
                self._endpoints[name] = Endpoint(name, model.endpoint, model.path)
                started.callback(self._endpoints[name].close)
        answering = [agent.role for agent in run.agents if agent.answers]
        self._terms = [term.opened(answering) for term in cast("Sequence[Term]", run.rewards)]
        for term in self._terms:
            started.callback(term.close)
        self.models = Models(run)
        _check_room(run, self.models)
        self._thread = CallerThreadExecutor(end_all)
        started.callback(self._thread.shutdown)
        admission = run.engine.admission
        remote = {
            name: RemotePolicy(self._endpoints[policy.settings.model], policy.context)
            for name, policy in self.models.policies.items()
            if policy.settings.model in self._endpoints
        }
        local = LocalEngine(
            {
                name: LocalPolicy(policy.backbone, policy.adapter, policy.tokenizer, policy.stop_ids)
                for name, policy in self.models.policies.items()
                if name not in remote
            },
            self._thread,
            seed=run.seed,
            max_rows=run.engine.max_rows,
            in_order=admission == "in_order" or (admission == "auto" and self.models.device.type == "cpu"),
        )
        renderer = _renderer(run, self.models, remote)
        endpoints = RemoteEngine(renderer, remote, decode=self.decode, seed=run.seed)
        self.engine = Router(
            dict.fromkeys(local.policies, local) | dict.fromkeys(remote, endpoints),
        )
        self.toolkit = Toolkit(run)
        started.callback(self.toolkit.close)
        self.game = Game(
            environment=cast("Environment", run.environment),
            team=self._team(renderer),
            tools=self.toolkit.sources,
            engine=self.engine,
            renderer=renderer,
            threads=LoopThreadPool(),
            seed=run.seed,
            max_steps=run.rollout.max_steps,
            timeout=run.rollout.timeout_seconds,
        )
        started.callback(self.game.threads.close)
        roles = [agent.role for agent in run.agents]
        self.compose = RewardComposer(self._terms, roles, self.game.threads, run.rollout.timeout_seconds)

    def decode(self, policy: str, ids: TokenIds) -> str:
        """The text of token ids of a policy."""
        return str(self.models.policies[policy].tokenizer.decode(ids.tolist(), skip_special_tokens=True))

    def publish(self, version: int) -> None:
        """The policies in training are at this version now."""
        trained = {name: self.models.policies[name] for name in self.run.trained_policies}
        self.wait_for(self.engine.publish(trained, version))

    def usage(self) -> dict[str, float]:
        """What sampling and scoring have taken so far, and threads that hang, by the name of a metric."""
        counts = dict(self.engine.usage())
        counts["threads_given_up"] = float(self.game.threads.given_up)
        counts["sessions_not_closed"] = float(self.game.threads.not_closed)
        for term in self._terms:
            for name, count in term.counts().items():
                counts[name] = counts.get(name, 0.0) + count
        return counts

    def _team(self, renderer: ChatRenderer) -> Team:
        team = Team.of(self.run, self.toolkit.equip)
        for agent in team.agents:
            if renderer.formats[agent.policy].remote:
                continue
            for key, asked_for, check in (
                ("tools", agent.profile.tools, renderer.tool_format),
                ("memory", agent.memory == "own", renderer.check_continues),
            ):
                try:
                    if asked_for:
                        check(agent.policy)
                except ValueError as error:
                    raise ValueError(f"agents.{agent.role}.{key}: {error}") from error
        return team

    def play(
        self, attempts: Sequence[Attempt], team: Team | None = None, on_done: Callable[[Episode], None] = lambda _: None
    ) -> list[Episode]:
        """Play every attempt → episodes in the same order."""
        game = replace(self.game, team=team) if team else self.game
        return self.wait_for(self._play(game, attempts, on_done))

    async def _play(self, game: Game, attempts: Sequence[Attempt], on_done: Callable[[Episode], None]) -> list[Episode]:
        try:
            return await play_all(game, attempts, self.run.rollout.max_live_episodes, on_done, self.compose)
        finally:
            await self.engine.settle()

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that uses the engine. The engine computes on the thread that calls this."""
        return self._thread.wait_for(coroutine)

    def close(self) -> None:
        """End whatever was started."""
        self._started.close()

    def __enter__(self) -> LocalRollouts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_room(run: RunSettings, models: Models) -> None:
    for agent in run.agents:
        context = models.policies[agent.policy].context
        if agent.sampling.max_new_tokens >= context:
            raise ValueError(
                f"agents.{agent.role}.sampling: max_new_tokens = {agent.sampling.max_new_tokens} leaves no room "
                f"for a prompt in a context of {context} tokens"
            )


def _renderer(run: RunSettings, models: Models, remote: Collection[str]) -> ChatRenderer:
    formats = {}
    for name, policy in models.policies.items():
        options = run.models[policy.base].template_options
        formats[name] = ChatFormat(policy.tokenizer, policy.context, options, policy.stop_ids, remote=name in remote)
    return ChatRenderer(formats)
