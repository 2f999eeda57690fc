r"""Reward terms: named parts of a reward, each with a weight and a clip, in the recipe's order.

::

    [[rewards]]
    name = "outcome"          # reward of the environment

    [[rewards]]
    name = "step_cost"
    weight = 0.01

    [[rewards]]
    name = "format"
    agents = ["actor"]
    pattern = '\\boxed\{.+\}'
    weight = 0.2
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from marft.common.error_origin import source_location
from marft.common.errors import UserError
from marft.common.types import Action, Episode
from marft.config.interfaces.reward import RewardTerm, TermReward
from marft.config.patterns import Pattern, contains_match
from marft.config.plugins import import_object
from marft.config.python_objects import ImportPath
from marft.config.settings import Names, did_you_mean

Roles = Names


class Outcome(RewardTerm):
    """Reward from the environment, for the team and for agents."""

    def score(self, episode: Episode) -> list[TermReward]:
        """Return the environment's reward at each step."""
        return [TermReward(t.reward, t.agent_rewards) for t in episode.transitions]


class Trajectory(RewardTerm):
    """Success reward: 1 at the last step for a solved task. Episodes without known success fail."""

    same_for_team: ClassVar[bool] = True

    def score(self, episode: Episode) -> list[TermReward]:
        """Return 1 at the last step for a solved task, else 0.

        Raises:
            UserError: the environment does not report success.
        """
        if episode.success is None:
            raise UserError("the environment does not say whether the task was solved (Step.success)")
        return reward_last_step(episode, float(episode.success))


class Progress(RewardTerm):
    """Progress beyond the best earlier step, from declared progress (``StepInfo.progress``), else from the
    environment's rewards.
    """

    same_for_team: ClassVar[bool] = True

    def score(self, episode: Episode) -> list[TermReward]:
        """Return the improvement at each step.

        If other steps declare progress, a step without declared progress gets 0.
        """
        declared = [transition.declared.progress for transition in episode.transitions]
        rewards = [transition.reward for transition in episode.transitions]
        best, gains = 0.0, []
        for reached in rewards if all(share is None for share in declared) else declared:
            gains.append(TermReward(max(0.0, (best if reached is None else reached) - best)))
            best = max(best, best if reached is None else reached)
        return gains


class TrajectoryScore(RewardTerm):
    """Mean declared progress over the steps, paid at the last step. Episodes without declared progress fail."""

    same_for_team: ClassVar[bool] = True

    def score(self, episode: Episode) -> list[TermReward]:
        """Return ``(1/T) Σ_t p_t`` at the last step.

        Raises:
            UserError: the environment declares no progress.
        """
        declared = [t.declared.progress for t in episode.transitions if t.declared.progress is not None]
        if not declared:
            raise UserError("the environment does not declare how near its goal a step is (Step.info['progress'])")
        return reward_last_step(episode, sum(declared) / len(declared))


class StepCost(RewardTerm):
    """Penalty: −1 for every environment step."""

    same_for_team: ClassVar[bool] = True
    shaping_only: bool = Field(
        default=True, description="guide learning without grading; algorithm.dynamic_sampling ignores the term"
    )

    def score(self, episode: Episode) -> list[TermReward]:
        """Return −1 for every step."""
        return [TermReward(-1.0) for _ in episode.transitions]


class ToolErrors(RewardTerm):
    """Penalty: −1 to an agent for every failed or unparsable tool call."""

    shaping_only: bool = Field(
        default=True, description="guide learning without grading; algorithm.dynamic_sampling ignores the term"
    )

    def score(self, episode: Episode) -> list[TermReward]:
        """Return the negative number of failed calls for each step and agent."""
        errors = [(action, sum(call.error for call in action.calls)) for action in _scored_actions(episode)]
        return _sum_by_step(episode, ((action.step, action.agent, -count) for action, count in errors if count))


class MessageTokens(RewardTerm):
    """Penalty: −1 to an agent for every message token read by other agents."""

    shaping_only: bool = Field(
        default=True, description="guide learning without grading; algorithm.dynamic_sampling ignores the term"
    )

    def score(self, episode: Episode) -> list[TermReward]:
        """Return the negative number of read tokens for each step and author."""
        owners = {action.id: action.agent for action in episode.actions}
        costs = (
            (action.step, owners[seen], -tokens)
            for action in _scored_actions(episode)
            for seen, tokens in zip(action.sees, action.message_tokens, strict=True)
        )
        return _sum_by_step(episode, costs)


class Format(RewardTerm):
    """Format reward: 1 to an agent for every action with a match for ``pattern``."""

    shaping_only: bool = Field(
        default=True, description="guide learning without grading; algorithm.dynamic_sampling ignores the term"
    )
    pattern: Pattern = Field(description="regular expression, searched in the text")
    agents: Roles = Field(default=(), description="roles to reward; []: every agent")

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield problems with this term in a team with these roles."""
        yield from unknown_role_problems(self.agents, roles)

    def score(self, episode: Episode) -> list[TermReward]:
        """Return the number of matching texts for each step and author."""
        actions = [a for a in _scored_actions(episode) if not self.agents or a.agent in self.agents]
        matches = ((a.step, a.agent, float(contains_match(self.pattern, a.agent_text))) for a in actions)
        return _sum_by_step(episode, matches)


class Function(RewardTerm):
    """Reward from a user function of the whole episode, optionally async: a number for the team or by agent."""

    call: ImportPath = Field(description="import path of the function, such as my_package.rewards:brevity")

    @field_validator("call")
    @classmethod
    def _check_import(cls, call: str, info: ValidationInfo) -> str:
        import_object(call, info.context)
        return call

    @property
    def label(self) -> str:
        """Name of the function."""
        return self.call.rpartition(":")[2]

    def source_location(self) -> str:
        """Return the file and line of the function."""
        return source_location(import_object(self.call))

    def score(self, episode: Episode) -> list[TermReward] | Awaitable[list[TermReward]]:
        """Call the function, awaiting an async one, and return its reward at the last step."""
        result = import_object(self.call)(episode)
        return _await_rewards(episode, result) if inspect.isawaitable(result) else _to_rewards(episode, result)


async def _await_rewards(episode: Episode, result: Awaitable[Any]) -> list[TermReward]:
    return _to_rewards(episode, await result)


def _to_rewards(episode: Episode, result: Any) -> list[TermReward]:
    return reward_last_step(episode, 0.0, result) if isinstance(result, Mapping) else reward_last_step(episode, result)


def _scored_actions(episode: Episode) -> list[Action]:
    """Return the actions in completed environment steps."""
    return [action for action in episode.actions if action.step < len(episode.transitions)]


def _sum_by_step(episode: Episode, amounts: Iterable[tuple[int, str, float]]) -> list[TermReward]:
    """Return the sum of amounts for each step and agent.

    Args:
        amounts: step, agent and amount.
    """
    sums: list[dict[str, float]] = [{} for _ in episode.transitions]
    for step, agent, amount in amounts:
        sums[step][agent] = sums[step].get(agent, 0.0) + amount
    return [TermReward(agents=agents) for agents in sums]


def unique_names(terms: Sequence[RewardTerm]) -> list[str]:
    """Return a unique name for each term of a recipe, for metrics and messages.

    The only term of its kind has the name of the kind (``format``). Several terms of one kind have their labels
    appended (``function_brevity``). Equal names are numbered from the second on (``format_2``).
    """
    kinds, names = Counter(term.name for term in terms), list[str]()
    for term in terms:
        name = base = f"{term.name}_{term.label}" if kinds[term.name] > 1 and term.label else term.name
        used = {*names, *(kinds.keys() - {term.name})}
        number = 1
        while name in used:
            number += 1
            name = f"{base}_{number}"
        names.append(name)
    return names


def unknown_role_problems(agents: Iterable[str], roles: Sequence[str]) -> Iterable[str]:
    """Yield problems with a term for ``agents`` in a team with ``roles``."""
    for agent in agents:
        if agent not in roles:
            yield f"rewards: no agent is called {agent!r}{did_you_mean(agent, roles)}"


def reward_last_step(episode: Episode, team: float, agents: Mapping[str, float] | None = None) -> list[TermReward]:
    """Return zero rewards except at the last step."""
    zeros = [TermReward() for _ in episode.transitions[1:]]
    return [*zeros, TermReward(team, agents or {})] if episode.transitions else []
