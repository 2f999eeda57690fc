"""Rules: rooms, positions, moves, rewards and dead ends.

The player pushes a box by walking into it, if the cell behind is free. This follows gym-sokoban (TinySokoban's
actions) and PettingLLMs' grid task (``SokobanGridEnvState``). The map characters and the published reward come from
PettingLLMs.
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
    """Fixed parts of a room: ``#`` is a wall, ``.`` a goal, and every other cell is floor."""

    rows: tuple[str, ...]

    @cached_property
    def floor(self) -> frozenset[Cell]:
        """Cells without walls."""
        return find(self.rows, " .")

    @cached_property
    def goals(self) -> frozenset[Cell]:
        """Goal cells."""
        return find(self.rows, ".")

    @cached_property
    def live(self) -> frozenset[Cell]:
        """Cells from which a single box could reach a goal, computed by pulling boxes away from the goals."""
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
    """State: a room with its boxes and player.

    >>> yard = Yard.of(("#####", "#@$.#", "#####"))
    >>> yard.moved("right")[0].solved, yard.moved("up")[1]
    (True, 'up is blocked.')
    """

    room: Room
    player: Cell
    boxes: frozenset[Cell]

    @classmethod
    def of(cls, rows: Sequence[str]) -> Yard:
        """Parse a map: ``@`` is the player, ``$`` a box; ``+`` and ``*`` are the same on a goal."""
        fixed = (row.translate(str.maketrans("@$+*", "  ..")) for row in rows)
        return cls(Room(tuple(fixed)), next(iter(find(rows, "@+"))), find(rows, "$*"))

    @property
    def solved(self) -> bool:
        """True with all boxes on goals."""
        return self.boxes <= self.room.goals

    @property
    def progress(self) -> float:
        """Fraction of boxes on goals."""
        return len(self.boxes & self.room.goals) / len(self.boxes)

    @property
    def legal(self) -> tuple[str, ...]:
        """Legal directions, pushes included."""
        return tuple(way for way in WAYS if not self.moved(way)[1])

    def moved(self, way: str) -> tuple[Yard, str]:
        """Return the state after a move, and "" or an error text; a wall or a blocked box stops the move."""
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
        """Reason why the room can no longer be solved, if visible; otherwise "".

        Three dead ends are detected:

        - a box on a cell from which it cannot reach any goal;
        - a 2 × 2 square of boxes and walls, in which no box can be pushed;
        - a player without a legal move.
        """
        dead = self.boxes - self.room.live
        if dead:
            return f"The box at {named(min(dead))} can never reach a goal."
        for stuck in self._squares():
            if not stuck <= self.room.goals:
                return f"Boxes at {listed(stuck)} can never be pushed again."
        return "" if self.legal or self.solved else "No way is open any more."

    def _squares(self) -> Iterator[frozenset[Cell]]:
        """Yield the boxes in each 2 × 2 square that consists of walls and boxes only."""
        for r, c in sorted(self.boxes):
            for top, left in ((r - 1, c - 1), (r - 1, c), (r, c - 1), (r, c)):
                square = {(top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)}
                if all(cell in self.boxes or cell not in self.room.floor for cell in square):
                    yield self.boxes & square


def drawn(yard: Yard) -> Iterator[str]:
    """Yield the rows of the current map."""
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
    """Return the published reward for one move.

    It is the sum of four terms:

    - a cost: −0.01 for a legal move, −0.05 for an illegal move;
    - 1 for a box pushed onto a goal, −0.5 for a box pushed off a goal;
    - 0.1 (0.99 Φ(s′) − Φ(s)), where −Φ is the sum over boxes of the Manhattan distance to the nearest goal;
    - 10 for the last box.
    """
    change = len(after.boxes & after.room.goals) - len(before.boxes & before.room.goals)
    reward = (STEP if legal else ILLEGAL) + SHAPING * (DISCOUNT * potential(after) - potential(before))
    reward += ON_GOAL if change > 0 else OFF_GOAL if change < 0 else 0.0
    return reward + (WON if after.solved else 0.0)


def potential(yard: Yard) -> int:
    """Return Φ: the negative sum of each box's Manhattan distance to its nearest goal."""
    return -sum(min(abs(r - y) + abs(c - x) for y, x in yard.room.goals) for r, c in yard.boxes)
