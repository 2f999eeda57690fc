"""Sessions for grid environments, with one move or a list of moves per step.

An environment supplies a frozen state and its transition; this module supplies the rest. Agents other than the
answering one can earn a local reward: the reward that their own moves would have earned in its place. AT-GRPO's
grid tasks (Stronger-MAS, arXiv:2510.11062) reward the tool agent this way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, Protocol, Self, TypeVar

from marft.agents.answers import text_said
from marft.common.types import JointAction, Observation, Step
from marft_envs.grids.moves import moves_in

SHOWN = 40  # maximum characters of an unparsable text in the feedback


class Puzzle(Protocol):
    """Interface to the state of a grid puzzle."""

    @property
    def solved(self) -> bool:
        """True if the puzzle is solved."""

    @property
    def lost(self) -> str:
        """Reason why the puzzle can no longer be solved, if visible; otherwise ""."""
        ...

    @property
    def progress(self) -> float:
        """Fraction of the goal reached, from 0 to 1."""
        ...

    @property
    def legal(self) -> tuple[str, ...]:
        """Legal directions."""
        ...

    def moved(self, way: str) -> tuple[Self, str]:
        """Return the state after a move, and an error text; an illegal move leaves the position unchanged."""
        ...


P = TypeVar("P", bound=Puzzle)


class Taken(NamedTuple, Generic[P]):
    """Result of an answer.

    Args:
        state: state after the moves.
        told: feedback for the agents.
        reward: total reward of the moves.
        moves: number of moves, including illegal moves.
        illegal: number of illegal moves; 1 for an unparsable answer.
    """

    state: P
    told: str
    reward: float
    moves: int
    illegal: int


class Ends(NamedTuple):
    """Rules for unparsable answers, and for the limit on moves.

    Args:
        unread: reward of an answer without readable moves.
        most_moves: maximum moves in an episode; 0 means no limit.
        failure: reward added at the limit if the puzzle is still unsolved.
    """

    unread: float = 0.0
    most_moves: int = 0
    failure: float = 0.0

    def reached(self, moves: int) -> bool:
        """Return True if a number of moves reaches the limit; always False without a limit."""
        return bool(self.most_moves) and moves >= self.most_moves


@dataclass(frozen=True)
class Play(Generic[P]):
    """Rules of play.

    Args:
        moves: "one" for one move per step, "list" for a list.
        steps: maximum steps in an episode.
        show: function of the state and the last step's feedback that returns the observation.
        pay: function of the states before and after a move, and its legality, that returns the reward.
        local: weight of the local reward: the reward that another agent's own moves would have earned. 0 turns it off.
        ends: rules for unparsable answers and too many moves.
    """

    moves: Literal["one", "list"]
    steps: int
    show: Callable[[P, str], Observation]
    pay: Callable[[P, P, bool], float]
    local: float = 0.0
    ends: Ends = Ends()

    def take(self, state: P, text: str, made: int) -> Taken[P]:
        """Apply the moves in a text.

        A list ends when the puzzle is solved or lost, or at the limit on moves. It continues after an illegal move.

        Args:
            state: current state.
            text: the agent's text.
            made: number of earlier moves in the episode.
        """
        ways = moves_in(text)
        if ways is None or (self.moves == "one" and len(ways) > 1):
            wanted = "one move" if self.moves == "one" else "a list of moves"
            return Taken(state, f"No move: say {wanted}, not {_short(text)}", self.ends.unread, 0, 1)
        reward, number, problems = 0.0, 0, list[str]()
        for number, way in enumerate(ways, 1):
            after, problem = state.moved(way)
            reward += self.pay(state, after, not problem)
            problems += [problem] if problem else []
            state = after
            if state.solved or state.lost:
                break
            if self.ends.reached(made + number):
                reward += self.ends.failure
                break
        return Taken(state, " ".join(dict.fromkeys(problems)), reward, number, len(problems))


class MovesSession(Generic[P]):
    """One attempt at a puzzle."""

    def __init__(self, start: P, play: Play[P]) -> None:
        self.state, self.play = start, play
        self.steps = self.moves = self.illegal = 0

    async def reset(self) -> Observation:
        """Return the first observation."""
        return self.play.show(self.state, "")

    async def step(self, actions: JointAction) -> Step:
        """Apply the moves in the answer."""
        taken = self.play.take(self.state, text_said(actions.answer), self.moves)
        local = self._local(actions)
        self.state, self.steps = taken.state, self.steps + 1
        self.moves, self.illegal = self.moves + taken.moves, self.illegal + taken.illegal
        solved, lost = taken.state.solved, taken.state.lost
        over = solved or bool(lost) or self.steps == self.play.steps or self.play.ends.reached(self.moves)
        shown = Observation(" ".join(filter(None, (taken.told, lost)))) if over else self.play.show(*taken[:2])
        return Step(
            shown, taken.reward, terminated=over, agent_rewards=local, success=solved,
            info={"progress": taken.state.progress, "measures": {"illegal_moves": float(self.illegal)}},
        )  # fmt: skip

    async def close(self) -> None:
        """No-op: no resources are held."""

    def _local(self, actions: JointAction) -> dict[str, float]:
        """Return the weighted local reward for each non-answering agent's last text."""
        if not self.play.local or actions.answer is None:
            return {}
        words = {action.agent: text_said(action) for action in actions.actions if action.agent != actions.answer.agent}
        taken = {role: self.play.take(self.state, text, self.moves) for role, text in words.items()}
        return {role: self.play.local * one.reward for role, one in taken.items()}


def _short(text: str) -> str:
    words = " ".join(text.split())
    return f"'{words[:SHOWN]}{'…' if len(words) > SHOWN else ''}'." if words else "nothing."
