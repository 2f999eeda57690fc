"""Generator for Sokoban rooms: a random walk carves the floor, and boxes are pulled away from goals.

Both steps follow gym-sokoban, so every room is solvable. In contrast to gym-sokoban, all states up to a bound are
enumerated, and a state is drawn by its number of moves.
"""

from __future__ import annotations

from random import Random

from marft_envs.grids.maps import canonical
from marft_envs.grids.moves import WAYS, step
from marft_envs.sokoban.rules import Room, Yard, drawn
from marft_envs.sokoban.solving import known_of

TURNS = 0.35  # probability that the walk turns at a step


def room(size: int, boxes: int, random: Random) -> Room | None:
    """Generate a room with goals; None if the floor is too small for the boxes and the player."""
    floor, way = set(), random.choice(list(WAYS))
    here = random.randint(1, size - 2), random.randint(1, size - 2)
    for _ in range(5 * size):
        way = random.choice(list(WAYS)) if random.random() < TURNS else way
        row, column = step(here, way)
        here = min(max(row, 1), size - 2), min(max(column, 1), size - 2)
        beside = step(here, random.choice(list(WAYS)))
        floor |= {cell for cell in (here, beside) if all(1 <= place <= size - 2 for place in cell)}
    if len(floor) < 2 * boxes + 1:
        return None
    goals = set(random.sample(sorted(floor), boxes))
    cells = ((r, c) for r in range(size) for c in range(size))
    text = "".join("." if cell in goals else " " if cell in floor else "#" for cell in cells)
    return Room(tuple(text[row : row + size] for row in range(0, size * size, size)))


def start(room: Room, nearest: int, farthest: int, random: Random) -> tuple[Yard, int] | None:
    """Draw a state without boxes on goals, and return it with the length of its shortest solution in moves.

    None means that the room has no such state.

    Args:
        room: the room.
        nearest: minimum moves.
        farthest: maximum moves; 0 means no limit.
        random: random generator.
    """
    known = known_of(room)
    goals, count = sum(1 << known.places[goal] for goal in room.goals), len(known.places)
    wanted = [state for state in known.between(nearest, farthest or len(known.found)) if not state // count & goals]
    if not wanted:
        return None
    number = random.choice(wanted)
    return Yard(room, *known.state(number)), known.found[number]


def content(yard: Yard) -> str:
    """Return one canonical text for a state and its shifts, rotations and reflections."""
    rows = list(drawn(yard))
    kept = [row for row in rows if row.strip("#")]
    columns = [column for column in zip(*kept, strict=True) if set(column) != {"#"}]
    return canonical(["".join(row) for row in zip(*columns, strict=True)])
