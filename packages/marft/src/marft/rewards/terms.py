r"""What a reward is composed of: named terms, each with a weight and a clip, in the recipe's order.

::

    [[rewards]]
    name = "outcome"          # what the environment pays

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

from marft.common.faults import defined
from marft.common.types import Episode
from marft.config.given import ImportPath
from marft.config.patterns import Pattern, holds
from marft.config.plugins import Plugin, import_path
from marft.config.settings import Bounded, Felt, Names, did_you_mean
from marft.inference.endpoints.limits import MakeLimits

Roles = Names


@dataclass(frozen=True, slots=True)
class TermReward:
    """What one term gives for one environment step."""

    team: float = 0.0
    agents: Mapping[str, float] = field(default_factory=dict)


class Term(Plugin, ABC):
    """Base of all terms. What a term gives is clipped, then weighed.

    ``score`` runs on a thread of its own, where it may take as long as a call into the environment. A term that
    ``own_timeout`` awaits what it needs, on the event loop, and sees to it that this comes to an end.
    """

    own_timeout: ClassVar[bool] = False
    # what the term counts, after the clip; below 0 it is a price
    weight: Annotated[Bounded, Felt] = 1.0
    clip: Annotated[tuple[float, float] | None, Strict(False)] = None  # the lowest and the highest value that counts
    # it guides learning and grades nothing: algorithm.dynamic_sampling leaves it out
    shapes: bool = False

    @field_validator("weight")
    @classmethod
    def _counts(cls, weight: float) -> float:
        if weight == 0:
            raise PydanticCustomError("weight", "a term of weight 0 does nothing; remove the term")
        return weight

    @field_validator("clip")
    @classmethod
    def _is_not_reversed(cls, clip: tuple[float, float] | None) -> tuple[float, float] | None:
        if clip is not None and clip[0] >= clip[1]:
            raise PydanticCustomError("clip", "must be the lowest and then the highest value, such as [-1.0, 1.0]")
        return clip

    @abstractmethod
    def score(self, episode: Episode) -> Sequence[TermReward] | Awaitable[Sequence[TermReward]]:
        """One entry for each environment step of the episode."""

    def written(self) -> str:
        """Where it is written, ``rewards.py:12``, for messages."""
        return defined(type(self).score)

    @property
    def label(self) -> str:
        """Return a word that distinguishes the term from others of its kind; "" if there is none."""
        return ""

    def opened(self, answering: Sequence[str]) -> Term:
        """The term with the connections that it needs, for whoever plays episodes and closes it.

        Args:
            answering: roles of the agents whose text is the team's answer.

        Raises:
            ValueError: something that it needs is missing.
        """
        del answering
        return self

    def keep_to(self, name: str, limits: MakeLimits) -> None:
        """Ask an endpoint within limits that are not its own alone, for it was opened in one of several processes.

        Args:
            name: which no other term has.
        """
        del name, limits

    def counts(self) -> Mapping[str, float]:
        """What scoring has taken since the term was opened, by the name of a metric."""
        return {}

    def close(self) -> None:
        """Let go of the connections."""

    def weighed(self, value: float) -> float:
        low, high = self.clip or (value, value)
        return self.weight * min(max(value, low), high)


class Outcome(Term):
    """What the environment pays, to the team and to single agents."""

    def score(self, episode: Episode) -> list[TermReward]:
        """What each step paid."""
        return [TermReward(t.reward, t.agent_rewards) for t in episode.transitions]


class Trajectory(Term):
    """1 with the last step of an episode that solved its task. One whose environment does not say so fails."""

    def score(self, episode: Episode) -> list[TermReward]:
        """Nothing but at the end: 1 where the task is solved, else 0.

        Raises:
            ValueError: the environment does not say.
        """
        if episode.success is None:
            raise ValueError("the environment does not say whether the task was solved (Step.success)")
        return at_the_end(episode, float(episode.success))


class Progress(Term):
    """What a step adds to the best progress before it, where the environment declares any (``Declared.progress``); else
    how much more it pays than the best step before it."""

    def score(self, episode: Episode) -> list[TermReward]:
        """What each step adds to the best so far: nothing, where others are declared and it is not."""
        declared = [transition.declared.progress for transition in episode.transitions]
        paid = [transition.reward for transition in episode.transitions]
        best, earned = 0.0, []
        for reached in paid if all(share is None for share in declared) else declared:
            earned.append(TermReward(max(0.0, (best if reached is None else reached) - best)))
            best = max(best, best if reached is None else reached)
        return earned


class TrajectoryScore(Term):
    """The mean of the progress that is declared after each step, paid with the last one. An episode of which none is
    declared fails."""

    def score(self, episode: Episode) -> list[TermReward]:
        """Nothing but at the end: ``(1/T) Σ_t p_t``.

        Raises:
            ValueError: the environment declares none.
        """
        declared = [t.declared.progress for t in episode.transitions if t.declared.progress is not None]
        if not declared:
            raise ValueError("the environment does not declare how near its goal a step is (Step.info['progress'])")
        return at_the_end(episode, sum(declared) / len(declared))


class StepCost(Term):
    """−1 for every environment step."""

    shapes: bool = True  # it guides learning and grades nothing: algorithm.dynamic_sampling leaves it out

    def score(self, episode: Episode) -> list[TermReward]:
        """The same for every step."""
        return [TermReward(-1.0) for _ in episode.transitions]


class ToolErrors(Term):
    """−1 to an agent for every call of a tool that could not be read, or failed."""

    shapes: bool = True  # it guides learning and grades nothing: algorithm.dynamic_sampling leaves it out

    def score(self, episode: Episode) -> list[TermReward]:
        """Failed calls of each step, to whom made them."""
        given: list[dict[str, float]] = [{} for _ in episode.transitions]
        for action in episode.actions:
            errors = sum(call.error for call in action.calls)
            if errors and action.step < len(given):
                given[action.step][action.agent] = given[action.step].get(action.agent, 0.0) - errors
        return [TermReward(agents=costs) for costs in given]


class MessageTokens(Term):
    """−1 for every token that others read of an agent's messages, to the agent that wrote them."""

    shapes: bool = True  # it guides learning and grades nothing: algorithm.dynamic_sampling leaves it out

    def score(self, episode: Episode) -> list[TermReward]:
        """Tokens read in each step, to whoever wrote them."""
        owners = {action.id: action.agent for action in episode.actions}
        costs: list[dict[str, float]] = [{} for _ in episode.transitions]
        for action in episode.actions:
            for seen, tokens in zip(action.sees, action.message_tokens, strict=True):
                if action.step < len(costs):
                    costs[action.step][owners[seen]] = costs[action.step].get(owners[seen], 0.0) - tokens
        return [TermReward(agents=cost) for cost in costs]


class Format(Term):
    """1 to an agent for every action whose text holds ``pattern``; of ``agents``, or of all when empty."""

    shapes: bool = True  # it guides learning and grades nothing: algorithm.dynamic_sampling leaves it out
    pattern: Pattern  # a regular expression
    agents: Roles = ()  # roles; all when empty

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """What is wrong with it in a team of these roles."""
        yield from unknown_roles(self.agents, roles)

    def score(self, episode: Episode) -> list[TermReward]:
        """Texts of each step that hold the pattern, to whoever wrote them."""
        given: list[dict[str, float]] = [{} for _ in episode.transitions]
        for action in episode.actions:
            if action.step < len(given) and (not self.agents or action.agent in self.agents):
                here = given[action.step]
                here[action.agent] = here.get(action.agent, 0.0) + float(holds(self.pattern, action.own_text))
        return [TermReward(agents=rewards) for rewards in given]


class Function(Term):
    """What a function of yours says of the whole episode: a number for the team, or numbers by agent; ``call`` is its
    import path, ``"my_package.rewards:brevity"``. It may be async."""

    call: ImportPath  # import path: my_package.rewards:brevity

    @field_validator("call")
    @classmethod
    def _can_be_imported(cls, call: str, info: ValidationInfo) -> str:
        import_path(call, info.context)
        return call

    @property
    def label(self) -> str:
        """The name of the function."""
        return self.call.rpartition(":")[2]

    def written(self) -> str:
        """Where the function stands: file and line."""
        return defined(import_path(self.call))

    def score(self, episode: Episode) -> list[TermReward] | Awaitable[list[TermReward]]:
        """Ask the function about the whole episode; what it gives counts at the end. An async function is awaited."""
        said = import_path(self.call)(episode)
        return _awaited(episode, said) if inspect.isawaitable(said) else _given(episode, said)


async def _awaited(episode: Episode, said: Awaitable[Any]) -> list[TermReward]:
    return _given(episode, await said)


def _given(episode: Episode, said: Any) -> list[TermReward]:
    return at_the_end(episode, 0.0, said) if isinstance(said, Mapping) else at_the_end(episode, said)


def names_of(terms: Sequence[Term]) -> list[str]:
    """Return a unique name for each term of a recipe, for metrics and messages.

    The only term of its kind is called after its kind (``format``). Several of one kind have their labels added
    (``function_brevity``), and those that are still equal are numbered from the second on (``format_2``).
    """
    kinds, names = Counter(term.name for term in terms), list[str]()
    for term in terms:
        name = base = f"{term.name}_{term.label}" if kinds[term.name] > 1 and term.label else term.name
        taken = {*names, *(kinds.keys() - {term.name})}
        number = 1
        while name in taken:
            number += 1
            name = f"{base}_{number}"
        names.append(name)
    return names


def unknown_roles(agents: Iterable[str], roles: Sequence[str]) -> Iterable[str]:
    """What is wrong with a term for ``agents`` in a team of ``roles``."""
    for agent in agents:
        if agent not in roles:
            yield f"rewards: no agent is called {agent!r}{did_you_mean(agent, roles)}"


def at_the_end(episode: Episode, team: float, agents: Mapping[str, float] | None = None) -> list[TermReward]:
    """What the whole episode earns, with its last step."""
    nothing = [TermReward() for _ in episode.transitions[1:]]
    return [*nothing, TermReward(team, agents or {})] if episode.transitions else []
