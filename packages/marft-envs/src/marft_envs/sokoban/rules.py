"""Rules: rooms, positions, moves, rewards and dead ends.

The player pushes a box by walking into it, if the cell behind is free. This follows gym-sokoban (TinySokoban's
actions) and PettingLLMs' grid task (``SokobanGridEnvState``). The map characters and the published reward come from
PettingLLMs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from marft_envs.grids.maps import DIRECTIONS, Cell, adjacent_cell, find_cells, format_cell, format_cells

STEP_REWARD, ILLEGAL_REWARD, ON_GOAL_REWARD, OFF_GOAL_REWARD, SOLVED_REWARD = -0.01, -0.05, 1.0, -0.5, 10.0
UNPARSED_REWARD, MAX_MOVES, FAILURE_REWARD = -2.0, 200, -5.0
DISCOUNT, SHAPING_WEIGHT = 0.99, 0.1


@dataclass(frozen=True)
class RoomLayout:
    """Fixed parts of a room: ``#`` is a wall, ``.`` a goal, and every other cell is floor."""

    rows: tuple[str, ...]

    @cached_property
    def floor(self) -> frozenset[Cell]:
        """Cells without walls."""
        return find_cells(self.rows, " .")

    @cached_property
    def goals(self) -> frozenset[Cell]:
        """Goal cells."""
        return find_cells(self.rows, ".")

    @cached_property
    def live_cells(self) -> frozenset[Cell]:
        """Cells from which a single box could reach a goal, computed by pulling boxes away from the goals."""
        live_found, queue = set(self.goals), list(self.goals)
        while queue:
            box = queue.pop()
            for direction in DIRECTIONS:
                pulled = adjacent_cell(box, direction)
                if pulled in self.floor and adjacent_cell(pulled, direction) in self.floor and pulled not in live_found:
                    live_found.add(pulled)
                    queue.append(pulled)
        return frozenset(live_found)


@dataclass(frozen=True)
class SokobanState:
    """State: a room with its boxes and player.

    >>> yard = SokobanState.from_map(("#####", "#@$.#", "#####"))
    >>> yard.apply_move("right")[0].is_solved, yard.apply_move("up")[1]
    (True, 'up is blocked.')
    """

    room: RoomLayout
    player: Cell
    boxes: frozenset[Cell]

    @classmethod
    def from_map(cls, rows: Sequence[str]) -> SokobanState:
        """Parse a map: ``@`` is the player, ``$`` a box; ``+`` and ``*`` are the same on a goal."""
        fixed_rows = (row.translate(str.maketrans("@$+*", "  ..")) for row in rows)
        return cls(RoomLayout(tuple(fixed_rows)), next(iter(find_cells(rows, "@+"))), find_cells(rows, "$*"))

    @property
    def is_solved(self) -> bool:
        """True with all boxes on goals."""
        return self.boxes <= self.room.goals

    @property
    def progress(self) -> float:
        """Fraction of boxes on goals."""
        return len(self.boxes & self.room.goals) / len(self.boxes)

    @property
    def legal_moves(self) -> tuple[str, ...]:
        """Legal directions, pushes included."""
        return tuple(direction for direction in DIRECTIONS if not self.apply_move(direction)[1])

    def apply_move(self, direction: str) -> tuple[SokobanState, str]:
        """Return the state after a move, and "" or an error text; a wall or a blocked box stops the move."""
        target = adjacent_cell(self.player, direction)
        if target not in self.room.floor:
            return self, f"{direction} is blocked."
        if target not in self.boxes:
            return replace(self, player=target), ""
        cell_behind = adjacent_cell(target, direction)
        if cell_behind not in self.room.floor or cell_behind in self.boxes:
            return self, f"The box at {format_cell(target)} does not go {direction}."
        return replace(self, player=target, boxes=self.boxes - {target} | {cell_behind}), ""

    @property
    def dead_end_reason(self) -> str:
        """Reason why the room can no longer be solved, if visible; otherwise "".

        Three dead ends are detected:

        - a box on a cell from which it cannot reach any goal;
        - a 2 × 2 square of boxes and walls, in which no box can be pushed;
        - a player without a legal move.
        """
        dead_boxes = self.boxes - self.room.live_cells
        if dead_boxes:
            return f"The box at {format_cell(min(dead_boxes))} can never reach a goal."
        for stuck_boxes in self._blocked_squares():
            if not stuck_boxes <= self.room.goals:
                return f"Boxes at {format_cells(stuck_boxes)} can never be pushed again."
        return "" if self.legal_moves or self.is_solved else "No way is open any more."

    def _blocked_squares(self) -> Iterator[frozenset[Cell]]:
        """Yield the boxes in each 2 × 2 square that consists of walls and boxes only."""
        for r, c in sorted(self.boxes):
            for top, remaining in ((r - 1, c - 1), (r - 1, c), (r, c - 1), (r, c)):
                square = {(top, remaining), (top, remaining + 1), (top + 1, remaining), (top + 1, remaining + 1)}
                if all(cell in self.boxes or cell not in self.room.floor for cell in square):
                    yield self.boxes & square


def render_rows(state: SokobanState) -> Iterator[str]:
    """Yield the rows of the current map."""
    for r, row in enumerate(state.room.rows):
        yield "".join(_render_cell(state, (r, c), fixed) for c, fixed in enumerate(row))


def _render_cell(state: SokobanState, cell: Cell, fixed: str) -> str:
    goal = fixed == "."
    if cell == state.player:
        return "+" if goal else "@"
    if cell in state.boxes:
        return "*" if goal else "$"
    return fixed


def published_reward(before: SokobanState, after: SokobanState, legal: bool) -> float:
    """Return the published reward for one move.

    It is the sum of four terms:

    - a cost: −0.01 for a legal move, −0.05 for an illegal move;
    - 1 for a box pushed onto a goal, −0.5 for a box pushed off a goal;
    - 0.1 (0.99 Φ(s′) − Φ(s)), where −Φ is the sum over boxes of the Manhattan distance to the nearest goal;
    - 10 for the last box.
    """
    change = len(after.boxes & after.room.goals) - len(before.boxes & before.room.goals)
    reward = (STEP_REWARD if legal else ILLEGAL_REWARD) + SHAPING_WEIGHT * (
        DISCOUNT * potential(after) - potential(before)
    )
    reward += ON_GOAL_REWARD if change > 0 else OFF_GOAL_REWARD if change < 0 else 0.0
    return reward + (SOLVED_REWARD if after.is_solved else 0.0)


def potential(state: SokobanState) -> int:
    """Return Φ: the negative sum of each box's Manhattan distance to its nearest goal."""
    return -sum(min(abs(r - y) + abs(c - x) for y, x in state.room.goals) for r, c in state.boxes)
