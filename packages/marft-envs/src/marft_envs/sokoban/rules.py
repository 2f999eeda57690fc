"""The rules: a room, where its boxes and its player are, what a move makes of that, what it pays, and dead ends.

Walking into a box pushes it, where the cell behind is free: so in gym-sokoban (TinySokoban's actions) and in the grid
task of PettingLLMs (``SokobanGridEnvState``), whose characters of a map and numbers of the published reward these are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from marft_envs.grids.maps import Cell, find, listed, named
from marft_envs.grids.moves import WAYS, step

STEP, ILLEGAL, ON_GOAL, OFF_GOAL, WON = -0.01, -0.05, 1.0, -0.5, 10.0
UNREAD, MOST_MOVES, FAILURE = -2.0, 200, -5.0
DISCOUNT, SHAPING = 0.99, 0.1


@dataclass(frozen=True)
class Room:
    """What of a room never moves: ``#`` is a wall, ``.`` a goal, all else floor."""

    rows: tuple[str, ...]

    @cached_property
    def floor(self) -> frozenset[Cell]:
        return find(self.rows, " .")

    @cached_property
    def goals(self) -> frozenset[Cell]:
        return find(self.rows, ".")

    @cached_property
    def live(self) -> frozenset[Cell]:
        """The cells from which a box alone in the room could be pushed to some goal: found by pulling it from there."""
        live, waiting = set(self.goals), list(self.goals)
        while waiting:
            box = waiting.pop()
            for way in WAYS:
                pulled = step(box, way)
                if pulled in self.floor and step(pulled, way) in self.floor and pulled not in live:
                    live.add(pulled)
                    waiting.append(pulled)
        return frozenset(live)


@dataclass(frozen=True)
class Yard:
    """A room with its boxes and its player.

    >>> yard = Yard.of(("#####", "#@$.#", "#####"))
    >>> yard.moved("right")[0].solved, yard.moved("up")[1]
    (True, 'up is blocked.')
    """

    room: Room
    player: Cell
    boxes: frozenset[Cell]

    @classmethod
    def of(cls, rows: Sequence[str]) -> Yard:
        """The state that a map shows: ``@`` the player, ``$`` a box; ``+`` and ``*`` the same on goals."""
        fixed = (row.translate(str.maketrans("@$+*", "  ..")) for row in rows)
        return cls(Room(tuple(fixed)), next(iter(find(rows, "@+"))), find(rows, "$*"))

    @property
    def solved(self) -> bool:
        return self.boxes <= self.room.goals

    @property
    def progress(self) -> float:
        """Share of the boxes that are on goals."""
        return len(self.boxes & self.room.goals) / len(self.boxes)

    @property
    def legal(self) -> tuple[str, ...]:
        """The ways that are open, pushes included."""
        return tuple(way for way in WAYS if not self.moved(way)[1])

    def moved(self, way: str) -> tuple[Yard, str]:
        """One move on, with the box in the way, or as it was, since there is a wall or the box cannot go on."""
        there = step(self.player, way)
        if there not in self.room.floor:
            return self, f"{way} is blocked."
        if there not in self.boxes:
            return replace(self, player=there), ""
        behind = step(there, way)
        if behind not in self.room.floor or behind in self.boxes:
            return self, f"The box at {named(there)} does not go {way}."
        return replace(self, player=there, boxes=self.boxes - {there} | {behind}), ""

    @property
    def lost(self) -> str:
        """Why it cannot be solved any more: a box where none ever comes to a goal from, boxes and walls in a square of
        four, where none of them can be pushed, or a player who cannot move."""
        dead = self.boxes - self.room.live
        if dead:
            return f"The box at {named(min(dead))} can never reach a goal."
        for stuck in self._squares():
            if not stuck <= self.room.goals:
                return f"Boxes at {listed(stuck)} can never be pushed again."
        return "" if self.legal or self.solved else "No way is open any more."

    def _squares(self) -> Iterator[frozenset[Cell]]:
        """The boxes in squares of four cells that are all walls or boxes."""
        for r, c in sorted(self.boxes):
            for top, left in ((r - 1, c - 1), (r - 1, c), (r, c - 1), (r, c)):
                square = {(top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)}
                if all(cell in self.boxes or cell not in self.room.floor for cell in square):
                    yield self.boxes & square


def drawn(yard: Yard) -> Iterator[str]:
    """The map as it is now."""
    for r, row in enumerate(yard.room.rows):
        yield "".join(_shown(yard, (r, c), fixed) for c, fixed in enumerate(row))


def _shown(yard: Yard, cell: Cell, fixed: str) -> str:
    goal = fixed == "."
    if cell == yard.player:
        return "+" if goal else "@"
    if cell in yard.boxes:
        return "*" if goal else "$"
    return fixed


def published(before: Yard, after: Yard, legal: bool) -> float:
    """The published reward of one move: a cost, 1 for a box that comes onto a goal and −0.5 for one that leaves it,
    0.1 (0.99 Φ(s′) − Φ(s)) with Φ the negative sum over boxes of the Manhattan distance to the nearest goal, and 10
    for the last box."""
    change = len(after.boxes & after.room.goals) - len(before.boxes & before.room.goals)
    reward = (STEP if legal else ILLEGAL) + SHAPING * (DISCOUNT * potential(after) - potential(before))
    reward += ON_GOAL if change > 0 else OFF_GOAL if change < 0 else 0.0
    return reward + (WON if after.solved else 0.0)


def potential(yard: Yard) -> int:
    """Minus the rows and columns between each box and the goal nearest to it."""
    return -sum(min(abs(r - y) + abs(c - x) for y, x in yard.room.goals) for r, c in yard.boxes)
