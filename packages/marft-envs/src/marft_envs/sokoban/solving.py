"""Shortest solutions for all states of a room, by backward search from the solved states.

Each forward move has an inverse: a walk, or a walk that pulls a box. The first visit of a breadth-first search
gives the minimum number of moves. The number of states is bounded; the results within the bound are exact.
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
    """A reachable push.

    Args:
        stand: cell from which the player pushes.
        way: direction of the push.
        moves: moves to the solution if this push is next, including the walk to it.
    """

    stand: Cell
    way: str
    moves: int


@dataclass(frozen=True)
class Known:
    """Solvable states in a room, with their shortest solutions.

    A state is a number: the bit set of cells with boxes, times the number of cells, plus the index of the player's
    cell.

    Args:
        places: index of each cell.
        found: moves to the solution by state, smallest first; states beyond the bound are left out.
    """

    places: Mapping[Cell, int]
    found: Mapping[int, int]

    def moves(self, player: Cell, boxes: Collection[Cell]) -> int | None:
        """Return the moves to the solution from a state; None if no solution is known."""
        return self.found.get(sum(1 << self.places[box] for box in boxes) * len(self.places) + self.places[player])

    def between(self, nearest: int, farthest: int) -> list[int]:
        """Return the states with a solution length from ``nearest`` to ``farthest`` moves."""
        return [state for state, moves in self.found.items() if nearest <= moves <= farthest]

    def state(self, number: int) -> tuple[Cell, frozenset[Cell]]:
        """Decode a state into the player's cell and the boxes."""
        boxes, player = divmod(number, len(self.places))
        cells = list(self.places)
        return cells[player], frozenset(cell for place, cell in enumerate(cells) if boxes >> place & 1)


@lru_cache(maxsize=64)
def known_of(room: Room) -> Known:
    """Return the solvable states in a room, up to ``MOST_STATES``."""
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
    """Yield the predecessors of a state: the player comes from the opposite cell, with or without a box pushed ahead.

    Args:
        state: the state.
        count: number of cells.
        pairs: for each direction, the neighbors of every cell behind and ahead of the move; −1 for none.
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
    """Return the first directions of the shortest solutions; empty if none is known."""
    known = known_of(yard.room)
    here = known.moves(yard.player, yard.boxes)
    if not here:
        return []
    after = ((way, yard.moved(way)[0]) for way in yard.legal)
    return [way for way, y in after if known.moves(y.player, y.boxes) == here - 1]


def pushes(yard: Yard) -> list[Push]:
    """Return the possible next pushes that keep the room solvable, fewest remaining moves first."""
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
