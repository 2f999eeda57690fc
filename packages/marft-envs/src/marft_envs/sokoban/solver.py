"""Solver and generator for Sokoban rooms.

Shortest solutions for all states of a room come from a backward search from the solved states. Each forward move has
an inverse: a walk, or a walk that pulls a box. The first visit of a breadth-first search gives the minimum number of
moves. The number of states is bounded; the results within the bound are exact.

In the generator a random walk carves the floor, and boxes are pulled away from goals. Both steps follow gym-sokoban, so
every room is solvable. In contrast to gym-sokoban, all states up to a bound are enumerated, and a state is drawn by its
number of moves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import NamedTuple

from marft_envs.grids.maps import DIRECTIONS, Cell, adjacent_cell, canonical_text, compute_distances
from marft_envs.sokoban.rules import RoomLayout, SokobanState, render_rows

MAX_STATES = 20_000


class Push(NamedTuple):
    """A reachable push.

    Args:
        stand: cell from which the player pushes.
        direction: direction of the push.
        moves: moves to the solution if this push is next, including the walk to it.
    """

    stand: Cell
    direction: str
    moves: int


@dataclass(frozen=True)
class SolvableStates:
    """Solvable states in a room, with their shortest solutions.

    A state is a number: the bit set of cells with boxes, times the number of cells, plus the index of the player's
    cell.

    Args:
        cell_indices: index of each cell.
        moves_by_state: moves to the solution by state, smallest first; states beyond the bound are left out.
    """

    cell_indices: Mapping[Cell, int]
    moves_by_state: Mapping[int, int]

    def moves_to_solution(self, player: Cell, boxes: Collection[Cell]) -> int | None:
        """Return the moves to the solution from a state; None if no solution is known."""
        return self.moves_by_state.get(
            sum(1 << self.cell_indices[box] for box in boxes) * len(self.cell_indices) + self.cell_indices[player]
        )

    def states_between(self, nearest: int, farthest: int) -> list[int]:
        """Return the states with a solution length from ``nearest`` to ``farthest`` moves."""
        return [state for state, moves in self.moves_by_state.items() if nearest <= moves <= farthest]

    def decode_state(self, number: int) -> tuple[Cell, frozenset[Cell]]:
        """Decode a state into the player's cell and the boxes."""
        boxes, player = divmod(number, len(self.cell_indices))
        cells = list(self.cell_indices)
        return cells[player], frozenset(cell for place, cell in enumerate(cells) if boxes >> place & 1)


@lru_cache(maxsize=64)
def solvable_states(room: RoomLayout) -> SolvableStates:
    """Return the solvable states in a room, up to ``MAX_STATES``."""
    cell_indices = {cell: place for place, cell in enumerate(sorted(room.floor))}
    neighbors = [
        [cell_indices.get(adjacent_cell(cell, direction), -1) for cell in cell_indices] for direction in DIRECTIONS
    ]  # up, down, left, right
    pairs = [
        (neighbors[1], neighbors[0]),
        (neighbors[0], neighbors[1]),
        (neighbors[3], neighbors[2]),
        (neighbors[2], neighbors[3]),
    ]
    count, solved = len(cell_indices), sum(1 << cell_indices[goal] for goal in room.goals)
    moves_by_state = {solved * count + place: 0 for cell, place in cell_indices.items() if cell not in room.goals}
    queue = list(moves_by_state)
    for state in queue:
        if len(moves_by_state) >= MAX_STATES:
            break
        for predecessor in _predecessors(state, count, pairs):
            if predecessor not in moves_by_state:
                moves_by_state[predecessor] = moves_by_state[state] + 1
                queue.append(predecessor)
    return SolvableStates(cell_indices, moves_by_state)


def _predecessors(state: int, count: int, pairs: Sequence[tuple[list[int], list[int]]]) -> Iterator[int]:
    """Yield the predecessors of a state: the player comes from the opposite cell, with or without a box pushed ahead.

    Args:
        state: the state.
        count: number of cells.
        pairs: for each direction, the neighbors of every cell behind and ahead of the move; −1 for none.
    """
    boxes, player = divmod(state, count)
    for behind, ahead in pairs:
        previous = behind[player]
        if previous < 0 or boxes >> previous & 1:
            continue
        yield boxes * count + previous
        box_cell = ahead[player]
        if box_cell >= 0 and boxes >> box_cell & 1:
            yield (boxes ^ (1 << box_cell) ^ (1 << player)) * count + previous


def best_directions(state: SokobanState) -> list[str]:
    """Return the first directions of the shortest solutions; empty if none is known."""
    solvable = solvable_states(state.room)
    current_moves = solvable.moves_to_solution(state.player, state.boxes)
    if not current_moves:
        return []
    next_states = ((direction, state.apply_move(direction)[0]) for direction in state.legal_moves)
    return [
        direction for direction, y in next_states if solvable.moves_to_solution(y.player, y.boxes) == current_moves - 1
    ]


def list_pushes(state: SokobanState) -> list[Push]:
    """Return the possible next pushes that keep the room solvable, fewest remaining moves first."""
    solvable = solvable_states(state.room)
    free_cells = state.room.floor - state.boxes
    walk_lengths = compute_distances(free_cells, state.player)
    pushes_found = list[Push]()
    for box in sorted(state.boxes):
        for direction, (row, column) in DIRECTIONS.items():
            stand, ahead = (box[0] - row, box[1] - column), adjacent_cell(box, direction)
            if stand not in walk_lengths or ahead not in free_cells:
                continue
            remaining = solvable.moves_to_solution(box, state.boxes - {box} | {ahead})
            pushes_found += [] if remaining is None else [Push(stand, direction, walk_lengths[stand] + 1 + remaining)]
    return sorted(pushes_found, key=lambda push: push.moves)


TURN_PROBABILITY = 0.35  # probability that the walk turns at a step


def generate_room(size: int, boxes: int, random: Random) -> RoomLayout | None:
    """Generate a room with goals; None if the floor is too small for the boxes and the player."""
    floor, direction = set(), random.choice(list(DIRECTIONS))
    current = random.randint(1, size - 2), random.randint(1, size - 2)
    for _ in range(5 * size):
        direction = random.choice(list(DIRECTIONS)) if random.random() < TURN_PROBABILITY else direction
        row, column = adjacent_cell(current, direction)
        current = min(max(row, 1), size - 2), min(max(column, 1), size - 2)
        neighbor = adjacent_cell(current, random.choice(list(DIRECTIONS)))
        floor |= {cell for cell in (current, neighbor) if all(1 <= coordinate <= size - 2 for coordinate in cell)}
    if len(floor) < 2 * boxes + 1:
        return None
    goals = set(random.sample(sorted(floor), boxes))
    cells = ((r, c) for r in range(size) for c in range(size))
    text = "".join("." if cell in goals else " " if cell in floor else "#" for cell in cells)
    return RoomLayout(tuple(text[row : row + size] for row in range(0, size * size, size)))


def draw_start(room: RoomLayout, nearest: int, farthest: int, random: Random) -> tuple[SokobanState, int] | None:
    """Draw a state without boxes on goals, and return it with the length of its shortest solution in moves.

    None means that the room has no such state.

    Args:
        room: the room.
        nearest: minimum moves.
        farthest: maximum moves; 0 means no limit.
        random: random generator.
    """
    solvable = solvable_states(room)
    goals, count = sum(1 << solvable.cell_indices[goal] for goal in room.goals), len(solvable.cell_indices)
    fitting = [
        state
        for state in solvable.states_between(nearest, farthest or len(solvable.moves_by_state))
        if not state // count & goals
    ]
    if not fitting:
        return None
    number = random.choice(fitting)
    return SokobanState(room, *solvable.decode_state(number)), solvable.moves_by_state[number]


def symmetry_invariant_text(state: SokobanState) -> str:
    """Return one canonical text for a state and its shifts, rotations and reflections."""
    rows = list(render_rows(state))
    kept_rows = [row for row in rows if row.strip("#")]
    columns = [column for column in zip(*kept_rows, strict=True) if set(column) != {"#"}]
    return canonical_text(["".join(row) for row in zip(*columns, strict=True)])
