"""The fewest moves from every state, found backwards: from the solved ones, by walking and pulling.

A move forwards is a move backwards, pulled boxes included, so that breadth first the first time that a state is found
is the fewest moves that solve it. What is found is bounded in states; what was found is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from marft.envs.grids.maps import Cell
from marft.envs.grids.moves import WAYS, step
from marft.envs.grids.search import distances
from marft.envs.sokoban.rules import Room, Yard

MOST_STATES = 20_000
State = tuple[Cell, frozenset[Cell]]  # the player, the boxes


class Push(NamedTuple):
    """One push that can be walked to: where the player stands for it, which way, and how many moves are left to the
    end if it is the next push, the walk included."""

    stand: Cell
    way: str
    moves: int


@lru_cache(maxsize=64)
def fewest_moves(room: Room) -> Mapping[State, int]:
    """The moves that states are away from being solved; those that are farther than the bound goes are left out."""
    found: dict[State, int] = {(cell, room.goals): 0 for cell in room.floor - room.goals}
    waiting = list(found)
    back = {way: (-row, -column) for way, (row, column) in WAYS.items()}
    for player, boxes in waiting:
        if len(found) >= MOST_STATES:
            break
        moves = found[player, boxes] + 1
        for way, (row, column) in back.items():
            there = player[0] + row, player[1] + column
            if there not in room.floor or there in boxes:
                continue
            pulled = step(player, way)
            before = [(there, boxes)]
            before += [(there, boxes - {pulled} | {player})] if pulled in boxes else []
            for state in before:
                if state not in found:
                    found[state] = moves
                    waiting.append(state)
    return found


def best_ways(yard: Yard) -> list[str]:
    """The ways in which a shortest solution begins; none where it is not known."""
    known = fewest_moves(yard.room)
    here = known.get((yard.player, yard.boxes))
    after = ((way, yard.moved(way)[0]) for way in yard.legal)
    return [] if here is None else [way for way, y in after if known.get((y.player, y.boxes), here) < here]


def pushes(yard: Yard) -> list[Push]:
    """The pushes that can come next and leave the room solvable, in the order of boxes and ways."""
    known = fewest_moves(yard.room)
    walks = distances(yard.room.floor - yard.boxes, yard.player)
    found = list[Push]()
    for box in sorted(yard.boxes):
        for way, (row, column) in WAYS.items():
            stand, behind = (box[0] - row, box[1] - column), step(box, way)
            left = known.get((box, yard.boxes - {box} | {behind}))
            if stand in walks and behind in yard.room.floor - yard.boxes and left is not None:
                found.append(Push(stand, way, walks[stand] + 1 + left))
    return found
