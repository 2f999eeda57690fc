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
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import Strict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from marft.common.error_origin import source_location
from marft.common.types import Episode
from marft.config.patterns import Pattern, contains_match
from marft.config.plugins import Plugin, import_object
from marft.config.python_objects import ImportPath
from marft.config.settings import Bounded, Names, NotTiny, did_you_mean
from marft.inference.endpoints.limits import LimitsFactory

Roles = Names


@dataclass(frozen=True, slots=True)
class TermReward:
    """Reward from one term for one environment step: for the team, and by role for agents."""

    team: float = 0.0
    agents: Mapping[str, float] = field(default_factory=dict)


class Term(Plugin, ABC):
    """Base class for reward terms. A term's reward is clipped, then weighted.

    ``score`` runs on a thread with the same timeout as a call to the environment. A term with ``own_timeout`` runs on
    the event loop instead, and has to enforce a timeout itself.
    """

    own_timeout: ClassVar[bool] = False
    # factor on the reward, after the clip; negative: a penalty
    weight: Annotated[Bounded, NotTiny] = 1.0
    # lowest and highest reward that counts; default: no clip
    clip: Annotated[tuple[float, float] | None, Strict(False)] = None
    # True: the term guides learning but does not grade; algorithm.dynamic_sampling ignores it
    shaping_only: bool = False

    @field_validator("weight")
    @classmethod
    def _check_weight(cls, weight: float) -> float:
        if weight == 0:
            raise PydanticCustomError("weight", "a term of weight 0 does nothing; remove the term")
        return weight

    @field_validator("clip")
    @classmethod
    def _check_clip(cls, clip: tuple[float, float] | None) -> tuple[float, float] | None:
        if clip is not None and clip[0] >= clip[1]:
            raise PydanticCustomError("clip", "must be the lowest and then the highest value, such as [-1.0, 1.0]")
        return clip

    @abstractmethod
    def score(self, episode: Episode) -> Sequence[TermReward] | Awaitable[Sequence[TermReward]]:
        """Return a reward for each environment step."""

    def source_location(self) -> str:
        """Return the source location for messages, for example ``rewards.py:12``."""
        return source_location(type(self).score)

    @property
    def label(self) -> str:
        """Suffix to distinguish the term from others with the same kind; "" without one."""
        return ""

    def open(self, answer_roles: Sequence[str]) -> Term:
        """Return the term with open connections. The caller has to close the term.

        Args:
            answer_roles: roles of the agents that give the team's answer.

        Raises:
            ValueError: a requirement is missing.
        """
        del answer_roles
        return self

    def share_limits(self, name: str, limits: LimitsFactory) -> None:
        """Share the endpoint's request limits with terms in other processes.

        Args:
            name: unique name of this term.
        """
        del name, limits

    def counts(self) -> Mapping[str, float]:
        """Return scoring totals since the term was opened, by metric name."""
        return {}

    def close(self) -> None:
        """Close the connections."""

    def apply_weight(self, value: float) -> float:
        """Return a reward after clip and weight."""
        low, high = self.clip or (value, value)
        return self.weight * min(max(value, low), high)


class Outcome(Term):
    """Reward from the environment, for the team and for agents."""

    def score(self, episode: Episode) -> list[TermReward]:
        """Return the environment's reward at each step."""
        return [TermReward(t.reward, t.agent_rewards) for t in episode.transitions]


class Trajectory(Term):
    """Success reward: 1 at the last step for a solved task. Episodes without known success fail."""

    def score(self, episode: Episode) -> list[TermReward]:
        """Return 1 at the last step for a solved task, else 0.

        Raises:
            ValueError: the environment does not report success.
        """
        if episode.success is None:
            raise ValueError("the environment does not say whether the task was solved (Step.success)")
        return reward_last_step(episode, float(episode.success))


class Progress(Term):
    """Progress beyond the best earlier step. It uses the progress that the environment declares
    (``StepInfo.progress``), or else its rewards.
    """

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


class TrajectoryScore(Term):
    """Mean declared progress over the steps, paid at the last step. Episodes without declared progress fail."""

    def score(self, episode: Episode) -> list[TermReward]:
        """Return ``(1/T) Σ_t p_t`` at the last step.

        Raises:
            ValueError: the environment declares no progress.
        """
        declared = [t.declared.progress for t in episode.transitions if t.declared.progress is not None]
        if not declared:
            raise ValueError("the environment does not declare how near its goal a step is (Step.info['progress'])")
        return reward_last_step(episode, sum(declared) / len(declared))


class StepCost(Term):
    """Penalty: −1 for every environment step."""

    # True: the term guides learning but does not grade; algorithm.dynamic_sampling ignores it
    shaping_only: bool = True

    def score(self, episode: Episode) -> list[TermReward]:
        """Return −1 for every step."""
        return [TermReward(-1.0) for _ in episode.transitions]


class ToolErrors(Term):
    """Penalty: −1 to an agent for every failed or unparsable tool call."""

    # True: the term guides learning but does not grade; algorithm.dynamic_sampling ignores it
    shaping_only: bool = True

    def score(self, episode: Episode) -> list[TermReward]:
        """Return the negative number of failed calls for each step and agent."""
        penalties: list[dict[str, float]] = [{} for _ in episode.transitions]
        for action in episode.actions:
            errors = sum(call.error for call in action.calls)
            if errors and action.step < len(penalties):
                penalties[action.step][action.agent] = penalties[action.step].get(action.agent, 0.0) - errors
        return [TermReward(agents=costs) for costs in penalties]


class MessageTokens(Term):
    """Penalty: −1 to an agent for every message token read by other agents."""

    # True: the term guides learning but does not grade; algorithm.dynamic_sampling ignores it
    shaping_only: bool = True

    def score(self, episode: Episode) -> list[TermReward]:
        """Return the negative number of read tokens for each step and author."""
        owners = {action.id: action.agent for action in episode.actions}
        costs: list[dict[str, float]] = [{} for _ in episode.transitions]
        for action in episode.actions:
            for seen, tokens in zip(action.sees, action.message_tokens, strict=True):
                if action.step < len(costs):
                    costs[action.step][owners[seen]] = costs[action.step].get(owners[seen], 0.0) - tokens
        return [TermReward(agents=cost) for cost in costs]


class Format(Term):
    """Format reward: 1 to an agent for every action with a match for ``pattern``."""

    # True: the term guides learning but does not grade; algorithm.dynamic_sampling ignores it
    shaping_only: bool = True
    pattern: Pattern  # regular expression, searched in the text
    agents: Roles = ()  # roles to reward; empty: all agents

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield problems with this term in a team with these roles."""
        yield from unknown_role_problems(self.agents, roles)

    def score(self, episode: Episode) -> list[TermReward]:
        """Return the number of matching texts for each step and author."""
        rewards_by_step: list[dict[str, float]] = [{} for _ in episode.transitions]
        for action in episode.actions:
            if action.step < len(rewards_by_step) and (not self.agents or action.agent in self.agents):
                step_rewards = rewards_by_step[action.step]
                step_rewards[action.agent] = step_rewards.get(action.agent, 0.0) + float(
                    contains_match(self.pattern, action.agent_text)
                )
        return [TermReward(agents=rewards) for rewards in rewards_by_step]


class Function(Term):
    """Reward from a user function of the whole episode: a number for the team, or numbers by agent. It may be async."""

    call: ImportPath  # import path of the function, such as my_package.rewards:brevity

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


def unique_names(terms: Sequence[Term]) -> list[str]:
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
