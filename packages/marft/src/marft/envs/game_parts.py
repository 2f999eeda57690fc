"""Runtime for episodes: environment, team, tools and reward terms.

This module does not import torch or load models; the caller provides the engine and the renderer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import cast

from marft.agents.engine import Sampler
from marft.agents.environment import Environment
from marft.agents.game import Game
from marft.agents.loop_threads import LoopThreadPool
from marft.agents.team import Team
from marft.agents.tools.toolkit import Toolkit
from marft.common.marks import Grammar
from marft.common.usage import added
from marft.config.agents import AgentSettings
from marft.config.run import RunSettings
from marft.inference.endpoints.limits import MakeLimits
from marft.inference.renderer import ChatRenderer
from marft.rewards.composer import RewardComposer
from marft.rewards.terms import Term

SOME_MODEL = "models.…"  # placeholder in error messages about chat templates


class GameParts:
    """Runtime components of a recipe, except its models; call :meth:`close` at the end.

    Args:
        terms: the recipe's reward terms, opened (:func:`open_terms`).
        threads: for sessions, tools and terms; closed together with the runtime.

    Raises:
        ValueError: a tool is not available, or an agent has tools or a memory that its model's chat template does not
            support.
    """

    def __init__(
        self, run: RunSettings, terms: Sequence[Term], engine: Sampler, renderer: ChatRenderer, threads: LoopThreadPool
    ) -> None:
        self._terms = terms
        with ExitStack() as started:  # closes the started components if a later step fails
            self.toolkit = Toolkit(run)
            started.callback(self.toolkit.close)
            self.game = Game(
                environment=cast("Environment", run.environment),
                team=_team(run, self.toolkit, renderer),
                tools=self.toolkit.sources,
                engine=engine,
                renderer=renderer,
                threads=threads,
                seed=run.seed,
                max_steps=run.rollout.max_steps,
                timeout=run.rollout.timeout_seconds,
            )
            started.callback(self.game.threads.close)
            roles = [agent.role for agent in run.agents]
            self.compose = RewardComposer(terms, roles, self.game.threads, run.rollout.timeout_seconds)
            self._started = started.pop_all()

    def usage(self) -> dict[str, float]:
        """Return scoring costs, abandoned threads and unclosed sessions by metric name."""
        threads = self.game.threads
        lost = {"threads_given_up": float(threads.given_up), "sessions_not_closed": float(threads.not_closed)}
        return added(lost, threads.counts(), *(term.counts() for term in self._terms))

    def close(self) -> None:
        """Close tools and threads."""
        self._started.close()


def open_terms(
    run: RunSettings, closing: Callable[[Callable[[], None]], object], limits: MakeLimits | None = None
) -> list[Term]:
    """Open the reward terms of a recipe.

    Args:
        closing: receives each term's close function.
        limits: limits on judge endpoints shared with other processes.

    Raises:
        ValueError: a requirement of a term is missing.
    """
    answering = [agent.role for agent in run.agents if agent.answers]
    terms = []
    for number, term in enumerate(cast("Sequence[Term]", run.rewards)):
        terms.append(term.opened(answering))
        closing(terms[-1].close)
        if limits:
            terms[-1].keep_to(f"rewards {number}", limits)
    return terms


def _team(run: RunSettings, toolkit: Toolkit, renderer: ChatRenderer) -> Team:
    team = Team.of(run, toolkit.equip)
    for agent in team.agents:
        settings = next(one for one in run.agents if one.role == agent.role)
        check_agent(run, settings, bool(agent.profile.tools), renderer)
    return team


def check_agent(run: RunSettings, agent: AgentSettings, uses_tools: bool, renderer: ChatRenderer) -> None:
    """Check that an agent's model supports the recipe's settings.

    Args:
        uses_tools: whether the agent has tools or skills.

    Raises:
        ValueError: the chat template does not support tools or continued conversations, or the grammar cannot be
            enforced.
    """
    role, policy = agent.role, agent.policy
    if renderer.formats[policy].remote:
        return
    grammar = agent.sampling.resolve().grammar
    checks: list[tuple[str, bool, Callable[[], object]]] = [
        ("tools", uses_tools, lambda: renderer.tool_format(policy)),
        ("memory", agent.memory == "own", lambda: renderer.check_continues(policy)),
        ("sampling", grammar is not None, lambda: _check_grammar(renderer, policy, grammar)),
    ]
    for key, asked_for, check in checks:
        try:
            if asked_for:
                check()
        except ValueError as error:
            said = str(error).replace(SOME_MODEL, f"models.{run.loaded_policies[policy].model}")
            raise ValueError(f"agents.{role}.{key}: {said}") from error


def _check_grammar(renderer: ChatRenderer, policy: str, grammar: Grammar | None) -> None:
    if grammar is not None:
        renderer.check_grammar(policy, grammar, thoughts=grammar.kind != "json")
