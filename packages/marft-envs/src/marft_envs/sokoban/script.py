"""Scripted policies for Sokoban.

A tool agent names the next push and its position. A planner walks there and pushes. A solver does both. Weak
players make mistakes: the tool agent names only the position of a box, and the planner moves at random.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from marft.envs.scripts import Cue
from marft_envs.grids.maps import cell_in, named
from marft_envs.grids.moves import moves_in, offset, step
from marft_envs.grids.search import first_ways
from marft_envs.grids.slips import works
from marft_envs.sokoban.rules import Yard
from marft_envs.sokoban.solving import Push, best_ways, pushes

STATE = re.compile(r"At (\d+,\d+)\. Box(?:es)? ([\d,; ]+)\. Open: ([^.]*)\.")
MESSAGE = re.compile(r"Message from \w+:\n(.*)", re.DOTALL)
PUSH = re.compile(r"(here|(?:(?:up|down|left|right) \d+ ?){1,2}), then (up|down|left|right)")
PART = re.compile(r"(\w+) (\d+)")
FAR = 2  # moves above which a walk is a tempting mistake to skip
MANY = 2  # number of pushes above which comparing them is a tempting mistake to skip


@dataclass(frozen=True)
class SokobanScript:
    """Scripted policy for ``tool``, ``plan`` and ``solver``; further roles play as solvers.

    Args:
        skill: fraction of well-played turns.
        moves: "one" for one move per answer, "list" for a list.
    """

    skill: float
    moves: Literal["one", "list"]

    def __call__(self, cue: Cue) -> str:
        """Return the agent's next text."""
        found = STATE.search(cue.shown)
        if not found:
            return "left"
        boxes = frozenset(map(cell_in, found[2].split("; ")))
        yard = Yard(Yard.of(cue.task.data["map"]).room, cell_in(found[1]), boxes)
        if cue.role == "plan":
            return self._planned(cue, yard)
        known = [] if self.moves == "list" else pushes(yard)
        well = works(cue, self.skill, tempted=len(known) > MANY)
        if cue.role == "tool":
            return self._told(cue, yard, known) if well else f"Box at {named(min(boxes))}."
        if not well:
            return _anywhere(cue, yard)
        told = self._told(cue, yard, known)
        planned = self._followed(cue, yard, told)
        return planned if cue.options or self.moves == "list" else f"{told}, so the answer is {planned}."

    def _told(self, cue: Cue, yard: Yard, known: list[Push]) -> str:
        """Return the next push, or all moves for lists."""
        if self.moves == "list":
            return ", ".join(_solution(yard)) or _anywhere(cue, yard)
        if not known:
            return f"Box at {named(min(yard.boxes))}."
        return f"{offset(yard.player, known[0].stand)}, then {known[0].way}"

    def _planned(self, cue: Cue, yard: Yard) -> str:
        """Follow the message; without one, use a visible map, or else move at random."""
        message = MESSAGE.search(cue.shown)
        told = message[1] if message else ""
        if not message and "Goal" in cue.shown:
            told = self._told(cue, yard, [] if self.moves == "list" else pushes(yard))
        push = PUSH.search(told)
        far = push is not None and len(walk_to(yard, push)) > FAR
        return self._followed(cue, yard, told) if works(cue, self.skill, tempted=far) else _anywhere(cue, yard)

    def _followed(self, cue: Cue, yard: Yard, told: str) -> str:
        """Return the next move toward a push, or the stated moves for lists."""
        push = PUSH.search(told)
        if push:
            return (walk_to(yard, push) or [_anywhere(cue, yard)])[0]
        moves = moves_in(told) if self.moves == "list" else None
        return ", ".join(moves) if moves else _anywhere(cue, yard)


def walk_to(yard: Yard, push: re.Match[str]) -> list[str]:
    """Return the walk to a push and the push itself; empty if no path exists."""
    stand, moves = yard.player, list[str]()
    for way, count in PART.findall(push[1]):
        for _ in range(int(count)):
            stand = step(stand, way)
    while yard.player != stand:
        ways = first_ways(yard.room.floor - yard.boxes, yard.player, stand)
        if not ways:
            return []
        moves.append(ways[0])
        yard, _ = yard.moved(ways[0])
    return [*moves, push[2]]


def _solution(yard: Yard) -> list[str]:
    """Return a shortest solution; empty if none is known."""
    moves = list[str]()
    while not yard.solved:
        best = best_ways(yard)
        if not best:
            return []
        moves.append(best[0])
        yard, _ = yard.moved(best[0])
    return moves


def _anywhere(cue: Cue, yard: Yard) -> str:
    """Return a random option, or a random legal direction."""
    return cue.random.choice(cue.options or yard.legal)
