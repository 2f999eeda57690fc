"""Layout of a kitchen: rooms, objects and orders; fixed during an episode."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

POT, HATCH, PLATE, KEY, CRATE = "pot", "hatch", "plate", "key", "crate"
Door = tuple[str, str]  # the two rooms, in alphabetical order


def door(a: str, b: str) -> Door:
    """Return the door between two rooms.

    >>> door("pantry", "attic")
    ('attic', 'pantry')
    """
    return (a, b) if a < b else (b, a)


def soup(ingredients: Sequence[str]) -> str:
    """Return a soup's name from its ingredients.

    >>> soup(["onion", "leek"])
    'leek onion soup'
    """
    return " ".join([*sorted(ingredients), "soup"])


@dataclass(frozen=True)
class Layout:
    """A kitchen.

    Args:
        rooms: names of the rooms.
        doors: the doors.
        narrow: rooms for one player only.
        sources: by room, things in unlimited supply: ingredients and plates.
        pot: room with the pot.
        hatch: room with the hatch, where dishes are served.
        starts: start room of each player.
        orders: ingredients of each dish; all dishes differ.
        locked: doors that need a key.
        keys: rooms in which keys lie.
        crates: by room with a crate, the room behind the crate.
    """

    rooms: tuple[str, ...]
    doors: tuple[Door, ...]
    narrow: tuple[str, ...]
    sources: Mapping[str, tuple[str, ...]]
    pot: str
    hatch: str
    starts: tuple[str, ...]
    orders: tuple[tuple[str, ...], ...]
    locked: tuple[Door, ...] = ()
    keys: tuple[str, ...] = ()
    crates: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def dishes(self) -> tuple[str, ...]:
        """Names of the ordered dishes."""
        return tuple(soup(order) for order in self.orders)

    @cached_property
    def beside(self) -> Mapping[str, tuple[str, ...]]:
        """Adjacent rooms, by room."""
        return {
            room: tuple(b if a == room else a for a, b in self.doors if room in (a, b)) for room in self.rooms
        }  # fmt: skip

    @cached_property
    def ways(self) -> Mapping[tuple[str, str], str]:
        """Next room on a shortest path, by pair of rooms."""
        found: dict[tuple[str, str], str] = {}
        for goal in self.rooms:
            waiting = deque([goal])
            while waiting:
                at = waiting.popleft()
                for room in self.beside[at]:
                    if room != goal and (room, goal) not in found:
                        found[room, goal] = at
                        waiting.append(room)
        return found

    def plain(self) -> dict[str, Any]:
        """Return the layout in plain values."""
        return {key: _plain(value) for key, value in asdict(self).items()}


def layout_of(data: Mapping[str, Any]) -> Layout:
    """Rebuild the layout from a task's data."""
    tables: dict[str, Any] = {key: tuple(data[key]) for key in ("rooms", "narrow", "starts", "keys")}
    tables |= {key: tuple((a, b) for a, b in data[key]) for key in ("doors", "locked")}
    return Layout(
        **tables, pot=data["pot"], hatch=data["hatch"], crates=dict(data["crates"]),
        sources={room: tuple(things) for room, things in data["sources"].items()},
        orders=tuple(tuple(order) for order in data["orders"]),
    )  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return {key: _plain(each) for key, each in value.items()} if isinstance(value, Mapping) else value
