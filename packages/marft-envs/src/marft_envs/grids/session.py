"""Sessions that are played in moves: one a step, or a list of them.

The rules of a world are a frozen state and what a move makes of it; all else is here. What an agent other than the one
that answers has said can be paid by itself, as what it would have earned in that one's place: in AT-GRPO's grid tasks
(Stronger-MAS, arXiv:2510.11062) the tool agent earns what its own list of actions would have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, Protocol, Self, TypeVar

from marft.agents.answers import text_said
from marft.common.types import JointAction, Observation, Step
from marft_envs.grids.moves import moves_in

SHOWN = 40  # characters of what could not be read


class Puzzle(Protocol):
    """A state of a world that is played in moves."""

    @property
    def solved(self) -> bool: ...

    @property
    def lost(self) -> str:
        """Why it cannot be solved any more, in words; "" where nobody can see that."""
        ...

    @property
    def progress(self) -> float:
        """Share of the goal that is reached, from 0 to 1."""
        ...

    @property
    def legal(self) -> tuple[str, ...]:
        """The ways that are open."""
        ...

    def moved(self, way: str) -> tuple[Self, str]:
        """The state after a move, and what was wrong with it; then the state is as it was."""
        ...


P = TypeVar("P", bound=Puzzle)


class Taken(NamedTuple, Generic[P]):
    """What an answer came to: the state after it, what is told of it, its reward, its moves, and how many were
    illegal."""

    state: P
    told: str
    reward: float
    moves: int
    illegal: int


class Ends(NamedTuple):
    """What a world makes of answers that say no moves, and of too many moves.

    Args:
        unread: reward of an answer in which no moves can be read.
        most_moves: of an episode; it is over after them. 0: any number.
        failure: added to the reward of the last of them, where that leaves the puzzle unsolved.
    """

    unread: float = 0.0
    most_moves: int = 0
    failure: float = 0.0

    def reached(self, moves: int) -> bool:
        """Return whether this number of moves reaches the limit; never, if there is no limit."""
        return bool(self.most_moves) and moves >= self.most_moves


@dataclass(frozen=True)
class Play(Generic[P]):
    """How a world is played.

    Args:
        steps: of an episode, at most.
        show: from the state, and what is told of the last step, to what is observed.
        pay: from the states before and after a move, and whether it was legal, to its reward.
        local: weight of what another agent's words would have earned, as a reward of its own.
    """

    moves: Literal["one", "list"]
    steps: int
    show: Callable[[P, str], Observation]
    pay: Callable[[P, P, bool], float]
    local: float = 0.0
    ends: Ends = Ends()

    def take(self, state: P, text: str, made: int) -> Taken[P]:
        """What an answer comes to. A list ends where the puzzle is solved or lost; after an illegal move it goes on.

        Args:
            made: moves before it.
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
        return self.play.show(self.state, "")

    async def step(self, actions: JointAction) -> Step:
        """Take the answer's moves."""
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

    async def close(self) -> None: ...

    def _local(self, actions: JointAction) -> dict[str, float]:
        """What the last words of each other agent would have earned."""
        if not self.play.local or actions.answer is None:
            return {}
        words = {action.agent: text_said(action) for action in actions.actions if action.agent != actions.answer.agent}
        taken = {role: self.play.take(self.state, text, self.moves) for role, text in words.items()}
        return {role: self.play.local * one.reward for role, one in taken.items()}


def _short(text: str) -> str:
    words = " ".join(text.split())
    return f"'{words[:SHOWN]}{'…' if len(words) > SHOWN else ''}'." if words else "nothing."
