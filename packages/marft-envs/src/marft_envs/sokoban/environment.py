"""Sokoban environment: generated rooms, views of each agent, step limits, and a scripted policy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.prompt_messages import split_messages
from marft.common.errors import UserError
from marft.common.types import Observation, Task
from marft.config.settings import Names, NonNegative
from marft.envs.scripted_policy import PolicyInput
from marft_envs.generated import GeneratedTask
from marft_envs.grids.environment import GridEnvironment, GridSession, TerminationRules
from marft_envs.grids.maps import (
    adjacent_cell,
    describe_offset,
    find_cells,
    first_directions,
    format_cell,
    format_cells,
    parse_cell,
    parse_moves,
)
from marft_envs.grids.script import plays_well, random_move
from marft_envs.sokoban.rules import (
    FAILURE_REWARD,
    MAX_MOVES,
    UNPARSED_REWARD,
    SokobanState,
    published_reward,
    render_rows,
)
from marft_envs.sokoban.solver import (
    Push,
    best_directions,
    draw_start,
    generate_room,
    list_pushes,
    symmetry_invariant_text,
)

STATE_PATTERN = re.compile(r"At (\d+,\d+)\. Box(?:es)? ([\d,; ]+)\. Open: ([^.]*)\.")
PUSH_PATTERN = re.compile(r"(here|(?:(?:up|down|left|right) \d+ ?){1,2}), then (up|down|left|right)")
STEP_PATTERN = re.compile(r"(\w+) (\d+)")
FAR_MOVES = 2  # moves above which a walk is a tempting mistake to skip
MANY_PUSHES = 2  # number of pushes above which comparing them is a tempting mistake to skip


@dataclass(frozen=True)
class SokobanScript:
    """Scripted policy for ``tool``, ``plan`` and ``solver``; further roles play as solvers.

    A tool agent names the next push and its position. A planner walks there and pushes. A solver does both. Weak
    players make mistakes: the tool agent names only the position of a box, and the planner moves at random.

    Args:
        skill: fraction of well-played turns.
        moves: "one" for one move per answer, "list" for a list.
    """

    skill: float
    moves: Literal["one", "list"]

    def __call__(self, cue: PolicyInput) -> str:
        """Return the agent's next text."""
        match = STATE_PATTERN.search(cue.last_message)
        if not match:
            return "left"
        boxes = frozenset(map(parse_cell, match[2].split("; ")))
        state = SokobanState(SokobanState.from_map(cue.task.data["map"]).room, parse_cell(match[1]), boxes)
        if cue.role == "plan":
            return self._follow_message(cue, state)
        known_pushes = [] if self.moves == "list" else list_pushes(state)
        is_good = plays_well(cue, self.skill, has_mistake=len(known_pushes) > MANY_PUSHES)
        if cue.role == "tool":
            return self._next_push(cue, state, known_pushes) if is_good else f"Box at {format_cell(min(boxes))}."
        if not is_good:
            return random_move(cue, state.legal_moves)
        hint = self._next_push(cue, state, known_pushes)
        next_moves = self._next_moves(cue, state, hint)
        return next_moves if cue.options or self.moves == "list" else f"{hint}, so the answer is {next_moves}."

    def _next_push(self, cue: PolicyInput, state: SokobanState, known_pushes: list[Push]) -> str:
        """Return the next push, or all moves for lists."""
        if self.moves == "list":
            return ", ".join(_solve(state)) or random_move(cue, state.legal_moves)
        if not known_pushes:
            return f"Box at {format_cell(min(state.boxes))}."
        return f"{describe_offset(state.player, known_pushes[0].stand)}, then {known_pushes[0].direction}"

    def _follow_message(self, cue: PolicyInput, state: SokobanState) -> str:
        """Follow the message; without one, use a visible map, or else move at random."""
        _, messages = split_messages(cue.last_message)
        hint = "\n\n".join(message.text for message in messages)
        if not messages and "Goal" in cue.last_message:
            hint = self._next_push(cue, state, [] if self.moves == "list" else list_pushes(state))
        push = PUSH_PATTERN.search(hint)
        is_far = push is not None and len(walk_and_push(state, push)) > FAR_MOVES
        return (
            self._next_moves(cue, state, hint)
            if plays_well(cue, self.skill, has_mistake=is_far)
            else random_move(cue, state.legal_moves)
        )

    def _next_moves(self, cue: PolicyInput, state: SokobanState, hint: str) -> str:
        """Return the next move toward a push, or the stated moves for lists."""
        push = PUSH_PATTERN.search(hint)
        if push:
            return (walk_and_push(state, push) or [random_move(cue, state.legal_moves)])[0]
        moves = parse_moves(hint) if self.moves == "list" else None
        return ", ".join(moves) if moves else random_move(cue, state.legal_moves)


def walk_and_push(state: SokobanState, push: re.Match[str]) -> list[str]:
    """Return the walk to a push and the push itself; empty if no path exists."""
    stand, moves = state.player, list[str]()
    for direction, count in STEP_PATTERN.findall(push[1]):
        for _ in range(int(count)):
            stand = adjacent_cell(stand, direction)
    while state.player != stand:
        directions = first_directions(state.room.floor - state.boxes, state.player, stand)
        if not directions:
            return []
        moves.append(directions[0])
        state, _ = state.apply_move(directions[0])
    return [*moves, push[2]]


def _solve(state: SokobanState) -> list[str]:
    """Return a shortest solution; empty if none is known."""
    moves = list[str]()
    while not state.is_solved:
        best = best_directions(state)
        if not best:
            return []
        moves.append(best[0])
        state, _ = state.apply_move(best[0])
    return moves


MAX_ATTEMPTS = 500  # maximum rooms drawn for one task
MAX_MEASURED_SIZE = 8  # maximum room size with measured pushes, because they are computed during play


class Sokoban(GridEnvironment):
    """Push boxes onto goals, with one move per step or in lists.

    Every room is solvable. An episode ends at a visible dead end.
    """

    stream: ClassVar[str] = "Sokoban"
    instrument: ClassVar[str] = "pushes_for"
    published_rules: ClassVar[TerminationRules] = TerminationRules(UNPARSED_REWARD, MAX_MOVES, FAILURE_REWARD)

    size: Annotated[int, Field(ge=4, le=20)] = Field(
        default=6, description="rows, and columns, of the room, including the outer walls"
    )
    boxes: Annotated[int, Field(ge=1, le=6)] = Field(default=1, description="number of boxes, and of goals")
    min_moves: Annotated[int, Field(ge=1, le=900)] = Field(
        default=3, description="minimum number of moves in a room's shortest solution"
    )
    pushes_for: Names = Field(
        default=(),
        description="roles that see the next pushes, their positions and the remaining moves (only with one box)",
    )
    reward: Literal["boxes", "success", "published"] = Field(
        default="boxes", description="kind of reward; see docs/worlds/sokoban.md"
    )
    move_cost: NonNegative = Field(
        default=0.0, description="cost of each move, subtracted from the reward (gym-sokoban: 0.1)"
    )

    @model_validator(mode="after")
    def _check_pushes(self) -> Sokoban:
        if self.pushes_for and (self.boxes > 1 or self.size > MAX_MEASURED_SIZE):
            raise PydanticCustomError(
                "pushes_for",
                "pushes are measured while one plays: in rooms with one box, of size {size} at most; leave it empty",
                {"size": MAX_MEASURED_SIZE},
            )
        return self

    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate a room with a shortest solution between ``min_moves`` and ``max_moves`` moves.

        Raises:
            UserError: no such room was found in ``MAX_ATTEMPTS`` draws.
        """
        for _ in range(MAX_ATTEMPTS):
            empty_room = generate_room(self.size, self.boxes, random)
            start_found = draw_start(empty_room, self.min_moves, self.max_moves, random) if empty_room else None
            if start_found:
                state, min_moves = start_found
                steps = 1 if self.moves == "list" else min_moves
                data = {
                    "map": list(render_rows(state)),
                    "fewest_moves": min_moves,
                    "fewest_steps": steps,
                    "boxes": self.boxes,
                }
                return GeneratedTask(symmetry_invariant_text(state), self._build_observation(state, "").text, data)
        raise UserError(
            f"environment {self.name!r}: of {MAX_ATTEMPTS} rooms of size {self.size} with {self.boxes} boxes none "
            f"takes {self.min_moves} to {self.max_moves or 'any number of'} moves; lower min_moves or boxes, or raise "
            "max_moves or size"
        )

    def start(self, task: Task, seed: int) -> GridSession[SokobanState]:  # noqa: ARG002  no randomness in an episode
        """Start an attempt at a room."""
        state = SokobanState.from_map(task.data["map"])
        return self.start_session(state, task.data["fewest_moves"], self._build_observation, self._move_reward)

    def script(self, skill: float = 1.0) -> SokobanScript:
        """Return a scripted policy for ``tool``, ``plan`` and ``solver``."""
        return SokobanScript(skill, self.moves)

    def _move_reward(self, before: SokobanState, after: SokobanState, legal: bool) -> float:
        return REWARD_FUNCTIONS[self.reward](before, after, legal) - self.move_cost

    def _build_observation(self, state: SokobanState, feedback: str) -> Observation:
        lines = [feedback] if feedback else []
        boxes = "Box" if self.boxes == 1 else "Boxes"
        lines += [
            f"At {format_cell(state.player)}. {boxes} {format_cells(state.boxes)}. Open: "
            f"{', '.join(state.legal_moves)}."
        ]
        return self.build_observation(lines, self._map_lines(state), self._push_lines(state), state.legal_moves)

    def _map_lines(self, state: SokobanState) -> Iterable[str]:
        """Yield the map lines: the grid or the walls, as set by ``view``, and the goals."""
        if self.view in ("grid", "both"):
            yield from render_rows(state)
        yield f"Goal{'' if self.boxes == 1 else 's'} {format_cells(state.room.goals)}."
        if self.view in ("list", "both"):
            yield f"Walls: {format_cells(find_cells(state.room.rows, '#'))}."

    def _push_lines(self, state: SokobanState) -> str:
        """Return the possible next pushes with their remaining moves."""
        if not self.pushes_for:
            return ""
        push_texts = (
            f"{describe_offset(state.player, push.stand)}, then {push.direction} is {push.moves}"
            for push in list_pushes(state)
        )
        return f"Pushes: {'; '.join(push_texts) or 'none'}."


REWARD_FUNCTIONS: dict[str, Callable[[SokobanState, SokobanState, bool], float]] = {
    "boxes": lambda before, after, _: after.progress - before.progress,
    "success": lambda _, after, __: float(after.is_solved),
    "published": published_reward,
}
