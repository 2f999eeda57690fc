"""Runtime for episodes: environment, team, tools and reward terms.

This module does not import torch or load models; the caller provides the engine and the renderer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from marft.agents.game import Game
from marft.agents.loop_threads import LoopThreadPool
from marft.agents.team import Team
from marft.agents.tools.run_tools import RunTools
from marft.common.errors import UserError
from marft.common.token_data import Grammar
from marft.common.usage import sum_counts
from marft.config.agents import AgentSettings
from marft.config.endpoint import LimitsFactory
from marft.config.interfaces.engine import Sampler
from marft.config.interfaces.reward import RewardTerm
from marft.config.run import RunSettings
from marft.inference.renderer import ChatRenderer
from marft.rewards.reward_manager import RewardManager

MODEL_PLACEHOLDER = "models.…"  # placeholder in error messages about chat templates


class GameRuntime:
    """Runtime components of a recipe, except its models; call :meth:`close` at the end.

    Args:
        terms: the recipe's reward terms, opened (:func:`open_terms`).
        threads: for sessions, tools and terms; closed together with the runtime.

    Raises:
        UserError: a tool is not available, or an agent has tools or a memory that its model's chat template does not
            support.
    """

    def __init__(
        self,
        run: RunSettings,
        terms: Sequence[RewardTerm],
        engine: Sampler,
        renderer: ChatRenderer,
        threads: LoopThreadPool,
    ) -> None:
        self._terms = terms
        with ExitStack() as exit_stack:  # closes the started components if a later step fails
            self.tool_registry = RunTools(run)
            exit_stack.callback(self.tool_registry.close)
            self.game = Game(
                environment=run.environment,
                team=_build_team(run, self.tool_registry, renderer),
                tools=self.tool_registry.sources,
                engine=engine,
                renderer=renderer,
                threads=threads,
                seed=run.seed,
                max_steps=run.rollout.max_steps,
                timeout=run.rollout.timeout_seconds,
            )
            exit_stack.callback(self.game.threads.close)
            roles = [agent.role for agent in run.agents]
            self.reward_manager = RewardManager(terms, roles, self.game.threads, run.rollout.timeout_seconds)
            self._exit_stack = exit_stack.pop_all()

    def usage(self) -> dict[str, float]:
        """Return scoring costs, abandoned threads and unclosed sessions by metric name."""
        threads = self.game.threads
        thread_counts = {
            "threads_abandoned": float(threads.blocked_threads),
            "sessions_not_closed": float(threads.failed_closes),
        }
        return sum_counts(thread_counts, threads.counts(), *(term.counts() for term in self._terms))

    def close(self) -> None:
        """Close tools and threads."""
        self._exit_stack.close()


def open_terms(
    run: RunSettings, on_close: Callable[[Callable[[], None]], object], limits: LimitsFactory | None = None
) -> list[RewardTerm]:
    """Open the reward terms of a recipe.

    Args:
        on_close: receives each term's close function.
        limits: limits on judge endpoints shared with other processes.

    Raises:
        UserError: a requirement of a term is missing.
    """
    answer_roles = [agent.role for agent in run.agents if agent.answers]
    terms = []
    for number, term in enumerate(run.rewards):
        terms.append(term.open(answer_roles))
        on_close(terms[-1].close)
        if limits:
            terms[-1].share_limits(f"rewards {number}", limits)
    return terms


def _build_team(run: RunSettings, tool_registry: RunTools, renderer: ChatRenderer) -> Team:
    team = Team.from_settings(run, tool_registry.attach_tools)
    for agent in team.agents:
        settings = next(candidate for candidate in run.agents if candidate.role == agent.role)
        check_agent(run, settings, bool(agent.profile.tools), renderer)
    return team


def check_agent(run: RunSettings, agent: AgentSettings, uses_tools: bool, renderer: ChatRenderer) -> None:
    """Check that an agent's model supports the recipe's settings.

    Args:
        uses_tools: whether the agent has tools or skills.

    Raises:
        UserError: the chat template does not support tools or continued conversations, or the grammar cannot be
            enforced.
    """
    role, policy = agent.role, agent.policy
    if renderer.formats[policy].remote:
        return
    grammar = agent.sampling.to_sampling_params().grammar
    checks: list[tuple[str, bool, Callable[[], object]]] = [
        ("tools", uses_tools, lambda: renderer.tool_format(policy)),
        ("memory", agent.memory == "own", lambda: renderer.check_multi_turn(policy)),
        ("sampling", grammar is not None, lambda: _check_grammar(renderer, policy, grammar)),
    ]
    for key, is_required, check in checks:
        try:
            if is_required:
                check()
        except ValueError as error:
            message = str(error).replace(MODEL_PLACEHOLDER, f"models.{run.loaded_policies[policy].model}")
            raise UserError(f"agents.{role}.{key}: {message}") from error


def _check_grammar(renderer: ChatRenderer, policy: str, grammar: Grammar | None) -> None:
    if grammar is not None:
        renderer.check_grammar(policy, grammar, reasoning=grammar.kind != "json")
