"""Scripted policies for Sokoban.

A tool agent names the next push and its position. A planner walks there and pushes. A solver does both. Weak
players make mistakes: the tool agent names only the position of a box, and the planner moves at random.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from marft.envs.scripted_policy import PolicyInput
from marft_envs.grids.maps import format_cell, parse_cell
from marft_envs.grids.moves import adjacent_cell, describe_offset, parse_moves
from marft_envs.grids.search import first_directions
from marft_envs.grids.skill import plays_well
from marft_envs.sokoban.rules import SokobanState
from marft_envs.sokoban.solver import Push, best_directions, list_pushes

STATE_PATTERN = re.compile(r"At (\d+,\d+)\. Box(?:es)? ([\d,; ]+)\. Open: ([^.]*)\.")
MESSAGE_PATTERN = re.compile(r"Message from \w+:\n(.*)", re.DOTALL)
PUSH_PATTERN = re.compile(r"(here|(?:(?:up|down|left|right) \d+ ?){1,2}), then (up|down|left|right)")
STEP_PATTERN = re.compile(r"(\w+) (\d+)")
FAR_MOVES = 2  # moves above which a walk is a tempting mistake to skip
MANY_PUSHES = 2  # number of pushes above which comparing them is a tempting mistake to skip


@dataclass(frozen=True)
class SokobanScript:
    """Scripted policy for ``tool``, ``plan`` and ``solver``; further roles play as solvers.

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
            return _random_move(cue, state)
        advice = self._next_push(cue, state, known_pushes)
        next_moves = self._next_moves(cue, state, advice)
        return next_moves if cue.options or self.moves == "list" else f"{advice}, so the answer is {next_moves}."

    def _next_push(self, cue: PolicyInput, state: SokobanState, known_pushes: list[Push]) -> str:
        """Return the next push, or all moves for lists."""
        if self.moves == "list":
            return ", ".join(_solve(state)) or _random_move(cue, state)
        if not known_pushes:
            return f"Box at {format_cell(min(state.boxes))}."
        return f"{describe_offset(state.player, known_pushes[0].stand)}, then {known_pushes[0].direction}"

    def _follow_message(self, cue: PolicyInput, state: SokobanState) -> str:
        """Follow the message; without one, use a visible map, or else move at random."""
        message = MESSAGE_PATTERN.search(cue.last_message)
        advice = message[1] if message else ""
        if not message and "Goal" in cue.last_message:
            advice = self._next_push(cue, state, [] if self.moves == "list" else list_pushes(state))
        push = PUSH_PATTERN.search(advice)
        is_far = push is not None and len(walk_and_push(state, push)) > FAR_MOVES
        return (
            self._next_moves(cue, state, advice)
            if plays_well(cue, self.skill, has_mistake=is_far)
            else _random_move(cue, state)
        )

    def _next_moves(self, cue: PolicyInput, state: SokobanState, advice: str) -> str:
        """Return the next move toward a push, or the stated moves for lists."""
        push = PUSH_PATTERN.search(advice)
        if push:
            return (walk_and_push(state, push) or [_random_move(cue, state)])[0]
        moves = parse_moves(advice) if self.moves == "list" else None
        return ", ".join(moves) if moves else _random_move(cue, state)


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
    while not state.solved:
        best = best_directions(state)
        if not best:
            return []
        moves.append(best[0])
        state, _ = state.apply_move(best[0])
    return moves


def _random_move(cue: PolicyInput, state: SokobanState) -> str:
    """Return a random option, or a random legal direction."""
    return cue.random.choice(cue.options or state.legal_moves)
