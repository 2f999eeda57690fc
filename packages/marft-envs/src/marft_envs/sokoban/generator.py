"""Generator for Sokoban rooms: a random walk carves the floor, and boxes are pulled away from goals.

Both steps follow gym-sokoban, so every room is solvable. In contrast to gym-sokoban, all states up to a bound are
enumerated, and a state is drawn by its number of moves.
"""

from __future__ import annotations

from random import Random

from marft_envs.grids.maps import canonical_text
from marft_envs.grids.moves import DIRECTIONS, adjacent_cell
from marft_envs.sokoban.rules import Room, SokobanState, render_rows
from marft_envs.sokoban.solver import solvable_states

TURN_PROBABILITY = 0.35  # probability that the walk turns at a step


def generate_room(size: int, boxes: int, random: Random) -> Room | None:
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
    return Room(tuple(text[row : row + size] for row in range(0, size * size, size)))


def draw_start(room: Room, nearest: int, farthest: int, random: Random) -> tuple[SokobanState, int] | None:
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


def canonical_content(state: SokobanState) -> str:
    """Return one canonical text for a state and its shifts, rotations and reflections."""
    rows = list(render_rows(state))
    kept_rows = [row for row in rows if row.strip("#")]
    columns = [column for column in zip(*kept_rows, strict=True) if set(column) != {"#"}]
    return canonical_text(["".join(row) for row in zip(*columns, strict=True)])
