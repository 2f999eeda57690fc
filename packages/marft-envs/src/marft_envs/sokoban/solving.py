"""The fewest moves from every state, found backwards: from the solved ones, by walking and pulling.

A move forwards is a move backwards, pulled boxes included, so that breadth first the first time that a state is found
is the fewest moves that solve it. What is found is bounded in states; what was found is exact.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from marft_envs.grids.maps import Cell
from marft_envs.grids.moves import WAYS, step
from marft_envs.grids.search import distances
from marft_envs.sokoban.rules import Room, Yard

MOST_STATES = 20_000


class Push(NamedTuple):
    """One push that can be walked to: where the player stands for it, which way, and how many moves are left to the
    end if it is the next push, the walk included."""

    stand: Cell
    way: str
    moves: int


@dataclass(frozen=True)
class Known:
    """The moves that states of a room are away from being solved. A state is a number: the cells with boxes as bits,
    times the number of cells, plus the player's cell.

    Args:
        places: number of each cell.
        found: by state, nearest first; those that are farther than the bound goes are left out.
    """

    places: Mapping[Cell, int]
    found: Mapping[int, int]

    def moves(self, player: Cell, boxes: Collection[Cell]) -> int | None:
        """Of one state; None where it is not known to have a solution."""
        return self.found.get(sum(1 << self.places[box] for box in boxes) * len(self.places) + self.places[player])

    def between(self, nearest: int, farthest: int) -> list[int]:
        """The states that are so many moves away."""
        return [state for state, moves in self.found.items() if nearest <= moves <= farthest]

    def state(self, number: int) -> tuple[Cell, frozenset[Cell]]:
        """The player and the boxes of a state."""
        boxes, player = divmod(number, len(self.places))
        cells = list(self.places)
        return cells[player], frozenset(cell for place, cell in enumerate(cells) if boxes >> place & 1)


@lru_cache(maxsize=64)
def known_of(room: Room) -> Known:
    """All states of a room from which it can be solved, up to a bound."""
    places = {cell: place for place, cell in enumerate(sorted(room.floor))}
    beside = [[places.get(step(cell, way), -1) for cell in places] for way in WAYS]  # up, down, left, right
    pairs = [(beside[1], beside[0]), (beside[0], beside[1]), (beside[3], beside[2]), (beside[2], beside[3])]
    count, solved = len(places), sum(1 << places[goal] for goal in room.goals)
    found = {solved * count + place: 0 for cell, place in places.items() if cell not in room.goals}
    waiting = list(found)
    for state in waiting:
        if len(found) >= MOST_STATES:
            break
        for before in _before(state, count, pairs):
            if before not in found:
                found[before] = found[state] + 1
                waiting.append(before)
    return Known(places, found)


def _before(state: int, count: int, pairs: Sequence[tuple[list[int], list[int]]]) -> Iterator[int]:
    """The states that one move leads from: the player comes from the other side, and a box ahead may have been pushed.

    Args:
        pairs: by way, each cell's neighbour the way that the player comes from, and the way that the move goes.
    """
    boxes, player = divmod(state, count)
    for behind, ahead in pairs:
        came = behind[player]
        if came < 0 or boxes >> came & 1:
            continue
        yield boxes * count + came
        pushed = ahead[player]
        if pushed >= 0 and boxes >> pushed & 1:
            yield (boxes ^ (1 << pushed) ^ (1 << player)) * count + came


def best_ways(yard: Yard) -> list[str]:
    """The ways in which a shortest solution begins; none where it is not known."""
    known = known_of(yard.room)
    here = known.moves(yard.player, yard.boxes)
    if not here:
        return []
    after = ((way, yard.moved(way)[0]) for way in yard.legal)
    return [way for way, y in after if known.moves(y.player, y.boxes) == here - 1]


def pushes(yard: Yard) -> list[Push]:
    """The pushes that can come next and leave the room solvable, the one with the fewest moves first."""
    known = known_of(yard.room)
    free = yard.room.floor - yard.boxes
    walks = distances(free, yard.player)
    found = list[Push]()
    for box in sorted(yard.boxes):
        for way, (row, column) in WAYS.items():
            stand, ahead = (box[0] - row, box[1] - column), step(box, way)
            if stand not in walks or ahead not in free:
                continue
            left = known.moves(box, yard.boxes - {box} | {ahead})
            found += [] if left is None else [Push(stand, way, walks[stand] + 1 + left)]
    return sorted(found, key=lambda push: push.moves)
