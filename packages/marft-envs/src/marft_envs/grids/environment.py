"""Environments in grids: shared settings, the views of each agent, and sessions.

An environment supplies a frozen state and its transition; this module supplies the rest. Agents other than the
answering one can earn a local reward: the reward that their own moves would have earned in its place. AT-GRPO's
grid tasks (Stronger-MAS, arXiv:2510.11062) reward the tool agent this way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.answers import graded_text
from marft.common.types import JointAction, Observation, Step
from marft.config.settings import Names, NonEmptyString, NonNegative, NonNegativeCount
from marft_envs.generated import GeneratedEnvironment, describe_unknown_roles
from marft_envs.grids.maps import parse_moves

MAX_SHOWN = 40  # maximum characters of an unparsable text in the feedback
DEFAULT_LIST_STEPS = 5  # default steps in an episode with lists of moves, as published


class GridState(Protocol):
    """Interface to the state of a grid puzzle."""

    @property
    def is_solved(self) -> bool:
        """True if the puzzle is solved."""

    @property
    def dead_end_reason(self) -> str:
        """Reason why the puzzle can no longer be solved, if visible; otherwise ""."""
        ...

    @property
    def progress(self) -> float:
        """Fraction of the goal reached, from 0 to 1."""
        ...

    @property
    def legal_moves(self) -> tuple[str, ...]:
        """Legal directions."""
        ...

    def apply_move(self, direction: str) -> tuple[Self, str]:
        """Return the state after a move, and an error text; an illegal move leaves the position unchanged."""
        ...


StateT = TypeVar("StateT", bound=GridState)


class MoveResult(NamedTuple, Generic[StateT]):
    """Result of an answer.

    Args:
        state: state after the moves.
        feedback: feedback for the agents.
        reward: total reward of the moves.
        move_count: number of moves, including illegal moves.
        illegal_count: number of illegal moves; 1 for an unparsable answer.
    """

    state: StateT
    feedback: str
    reward: float
    move_count: int
    illegal_count: int


class TerminationRules(NamedTuple):
    """Rules for unparsable answers, and for the limit on moves.

    Args:
        unparsed_reward: reward of an answer without readable moves.
        max_moves: maximum moves in an episode; 0 means no limit.
        failure_reward: reward added at the limit if the puzzle is still unsolved.
    """

    unparsed_reward: float = 0.0
    max_moves: int = 0
    failure_reward: float = 0.0

    def limit_reached(self, moves: int) -> bool:
        """Return True if a number of moves reaches the limit; always False without a limit."""
        return bool(self.max_moves) and moves >= self.max_moves


@dataclass(frozen=True)
class GridRules(Generic[StateT]):
    """Rules of play.

    Args:
        moves: "one" for one move per step, "list" for a list.
        max_steps: maximum steps in an episode.
        observation_fn: function of the state and the last step's feedback that returns the observation.
        reward_fn: function of the states before and after a move, and its legality, that returns the reward.
        local_weight: weight of the local reward: the reward that another agent's own moves would have earned. 0 turns
            it off.
        termination: rules for unparsable answers and too many moves.
    """

    moves: Literal["one", "list"]
    max_steps: int
    observation_fn: Callable[[StateT, str], Observation]
    reward_fn: Callable[[StateT, StateT, bool], float]
    local_weight: float = 0.0
    termination: TerminationRules = TerminationRules()

    def apply_answer(self, state: StateT, text: str, earlier_moves: int) -> MoveResult[StateT]:
        """Apply the moves in a text.

        A list ends when the puzzle is solved or lost, or at the limit on moves. It continues after an illegal move.

        Args:
            state: current state.
            text: the agent's text.
            earlier_moves: number of earlier moves in the episode.
        """
        directions = parse_moves(text)
        if directions is None or (self.moves == "one" and len(directions) > 1):
            expected_form = "one move" if self.moves == "one" else "a list of moves"
            return MoveResult(
                state, f"No move: say {expected_form}, not {_quote_text(text)}", self.termination.unparsed_reward, 0, 1
            )
        reward, number, problems = 0.0, 0, list[str]()
        for number, direction in enumerate(directions, 1):
            after, problem = state.apply_move(direction)
            reward += self.reward_fn(state, after, not problem)
            problems += [problem] if problem else []
            state = after
            if state.is_solved or state.dead_end_reason:
                break
            if self.termination.limit_reached(earlier_moves + number):
                reward += self.termination.failure_reward
                break
        return MoveResult(state, " ".join(dict.fromkeys(problems)), reward, number, len(problems))


class GridSession(Generic[StateT]):
    """One attempt at a puzzle."""

    def __init__(self, start: StateT, rules: GridRules[StateT]) -> None:
        self.state, self.rules = start, rules
        self.steps = self.moves = self.illegal = 0

    async def reset(self) -> Observation:
        """Return the first observation."""
        return self.rules.observation_fn(self.state, "")

    async def step(self, actions: JointAction) -> Step:
        """Apply the moves in the answer."""
        result = self.rules.apply_answer(self.state, graded_text(actions.answer), self.moves)
        local = self._local_rewards(actions)
        self.state, self.steps = result.state, self.steps + 1
        self.moves, self.illegal = self.moves + result.move_count, self.illegal + result.illegal_count
        solved, dead_end = result.state.is_solved, result.state.dead_end_reason
        over = (
            solved
            or bool(dead_end)
            or self.steps == self.rules.max_steps
            or self.rules.termination.limit_reached(self.moves)
        )
        observation = (
            Observation(" ".join(filter(None, (result.feedback, dead_end))))
            if over
            else self.rules.observation_fn(*result[:2])
        )
        return Step(
            observation,
            result.reward,
            terminated=over,
            agent_rewards=local,
            success=solved,
            info={"progress": result.state.progress, "measures": {"illegal_moves": float(self.illegal)}},
        )

    async def close(self) -> None:
        """No-op: no resources are held."""

    def _local_rewards(self, actions: JointAction) -> dict[str, float]:
        """Return the weighted local reward for each non-answering agent's last text."""
        if not self.rules.local_weight or actions.answer is None:
            return {}
        texts = {
            action.agent: graded_text(action) for action in actions.actions if action.agent != actions.answer.agent
        }
        results = {role: self.rules.apply_answer(self.state, text, self.moves) for role, text in texts.items()}
        return {role: self.rules.local_weight * result.reward for role, result in results.items()}


def _quote_text(text: str) -> str:
    words = " ".join(text.split())
    return f"'{words[:MAX_SHOWN]}{'…' if len(words) > MAX_SHOWN else ''}'." if words else "nothing."


class GridEnvironment(GeneratedEnvironment):
    """Base class for grid environments with moves, one per step or in lists.

    The moves are read from the answer. The texts of other agents only inform the answering agent. With ``map_for``,
    or a setting of the subclass, only some roles see the map or an instrument's measurements and must pass them on.
    """

    instrument: ClassVar[str]  # key of the roles with access to an instrument's measurements
    published_rules: ClassVar[TerminationRules]  # rules for the published reward

    min_moves: Annotated[int, Field(ge=1, le=900)] = Field(
        default=1, description="minimum number of moves in a task's shortest solution"
    )
    max_moves: NonNegativeCount = Field(
        default=0, description="maximum number of moves in a task's shortest solution; 0: no limit"
    )
    moves: Literal["one", "list"] = Field(default="list", description="moves per step: one, or a list")
    max_steps: NonNegativeCount = Field(
        default=0,
        description="maximum steps in an episode; 0: 5 with lists, otherwise twice the moves of the shortest solution",
    )
    actions: Literal["text", "choices"] = Field(
        default="text",
        description='form of an answer; choices: the mover chooses a legal direction (organization "turns")',
    )
    mover: NonEmptyString = Field(default="plan", description='role that chooses, for actions = "choices"')
    view: Literal["grid", "list", "both", "near"] = Field(
        default="grid", description="form of the map: grid of rows, list of walls, or both; near: no map"
    )
    map_for: Names = Field(default=(), description="roles that see the map and the goals; []: every role")
    local_reward: NonNegative = Field(
        default=0.0,
        description=(
            "weight of the local reward of each other agent: the reward that the agent's own moves would have earned"
        ),
    )

    @model_validator(mode="after")
    def _check_settings(self) -> GridEnvironment:
        if self.max_moves and self.max_moves < self.min_moves:
            raise PydanticCustomError(
                "max_moves",
                "max_moves is less than min_moves ({min_moves}): no task is so; raise it",
                {"min_moves": self.min_moves},
            )
        if self.actions == "choices" and self.moves == "list":
            raise PydanticCustomError("actions", "choices are single moves; set moves = 'one', or actions = 'text'")
        return self

    @property
    def reward_range(self) -> tuple[float, float]:  # type: ignore[override]
        """Reward range; unbounded for the published reward, because each move is rewarded."""
        return (-math.inf, math.inf) if getattr(self, "reward", "") == "published" else (-1.0, 1.0)

    @property
    def instrument_roles(self) -> Sequence[str]:
        """Roles with access to an instrument's measurements."""
        names: Sequence[str] = getattr(self, self.instrument)
        return names

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error for each setting with an unknown role."""
        mover = (self.mover,) if self.actions == "choices" else ()
        named = {"map_for": self.map_for, "mover": mover, self.instrument: self.instrument_roles}
        return describe_unknown_roles(named, roles)

    @property
    def offers_options(self) -> bool:  # type: ignore[override]
        """True if the mover chooses between options."""
        return self.actions == "choices"

    def step_limit(self, min_moves: int) -> int:
        """Return the maximum steps for a task with a shortest solution of ``min_moves`` moves."""
        return self.max_steps or (DEFAULT_LIST_STEPS if self.moves == "list" else 2 * min_moves)

    @property
    def termination(self) -> TerminationRules:
        """Rules for unparsable answers, and for the limit on moves."""
        return self.published_rules if getattr(self, "reward", "") == "published" else TerminationRules()

    def start_session(
        self,
        state: StateT,
        min_moves: int,
        observation_fn: Callable[[StateT, str], Observation],
        reward_fn: Callable[[StateT, StateT, bool], float],
    ) -> GridSession[StateT]:
        """Start an attempt at a task with a shortest solution of ``min_moves`` moves."""
        steps, weight = self.step_limit(min_moves), self.local_reward
        return GridSession(state, GridRules(self.moves, steps, observation_fn, reward_fn, weight, self.termination))

    def build_observation(
        self, common_lines: Iterable[str], map_lines: Iterable[str], measurements: str, legal: tuple[str, ...]
    ) -> Observation:
        """Build the observation.

        All roles see ``common_lines``. Roles in ``map_for``, or all roles if it is empty, see ``map_lines``. Roles in
        ``instrument_roles`` see ``measurements``.
        """
        map_text = "\n".join(map_lines)
        views = dict.fromkeys(self.map_for, map_text)
        for role in self.instrument_roles:
            views[role] = "\n".join(filter(None, (views.get(role, ""), measurements)))
        options = {self.mover: legal} if self.actions == "choices" else {}
        return Observation("\n".join([*common_lines, *([] if self.map_for else [map_text])]), views, options=options)
