"""Layout of a kitchen: rooms, objects and orders; fixed during an episode."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

POT, HATCH, PLATE, KEY, CRATE = "pot", "hatch", "plate", "key", "crate"
Door = tuple[str, str]  # the two rooms, in alphabetical order


def door_between(a: str, b: str) -> Door:
    """Return the door between two rooms.

    >>> door_between("pantry", "attic")
    ('attic', 'pantry')
    """
    return (a, b) if a < b else (b, a)


def soup_name(ingredients: Sequence[str]) -> str:
    """Return a soup's name from its ingredients.

    >>> soup_name(["onion", "leek"])
    'leek onion soup'
    """
    return " ".join([*sorted(ingredients), "soup"])


@dataclass(frozen=True)
class KitchenLayout:
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
        return tuple(soup_name(order) for order in self.orders)

    @cached_property
    def neighbors(self) -> Mapping[str, tuple[str, ...]]:
        """Adjacent rooms, by room."""
        return {room: tuple(b if a == room else a for a, b in self.doors if room in (a, b)) for room in self.rooms}

    @cached_property
    def next_rooms(self) -> Mapping[tuple[str, str], str]:
        """Next room on a shortest path, by pair of rooms."""
        next_by_pair: dict[tuple[str, str], str] = {}
        for goal in self.rooms:
            queue = deque([goal])
            while queue:
                current = queue.popleft()
                for room in self.neighbors[current]:
                    if room != goal and (room, goal) not in next_by_pair:
                        next_by_pair[room, goal] = current
                        queue.append(room)
        return next_by_pair

    def to_dict(self) -> dict[str, Any]:
        """Return the layout in plain values."""
        return {key: _to_plain(value) for key, value in asdict(self).items()}


def layout_from_dict(data: Mapping[str, Any]) -> KitchenLayout:
    """Rebuild the layout from a task's data."""
    tables: dict[str, Any] = {key: tuple(data[key]) for key in ("rooms", "narrow", "starts", "keys")}
    tables |= {key: tuple((a, b) for a, b in data[key]) for key in ("doors", "locked")}
    return KitchenLayout(
        **tables,
        pot=data["pot"],
        hatch=data["hatch"],
        crates=dict(data["crates"]),
        sources={room: tuple(items) for room, items in data["sources"].items()},
        orders=tuple(tuple(order) for order in data["orders"]),
    )


def _to_plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_to_plain(item) for item in value]
    return {key: _to_plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value
