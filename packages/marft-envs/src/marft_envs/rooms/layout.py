"""A kitchen as it was drawn: its rooms, what is where, what was ordered. Nothing of it changes while it is played."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

POT, HATCH, PLATE, KEY, CRATE = "pot", "hatch", "plate", "key", "crate"
Door = tuple[str, str]  # the rooms that it joins, in the order of their names


def door(a: str, b: str) -> Door:
    """The door between two rooms.

    >>> door("pantry", "attic")
    ('attic', 'pantry')
    """
    return (a, b) if a < b else (b, a)


def soup(ingredients: Sequence[str]) -> str:
    """What a pot with these ingredients comes to.

    >>> soup(["onion", "leek"])
    'leek onion soup'
    """
    return " ".join([*sorted(ingredients), "soup"])


@dataclass(frozen=True)
class Layout:
    """A kitchen.

    Args:
        sources: by room, the things of which there is no end: ingredients and plates.
        starts: the room of each player.
        orders: the ingredients of each dish; no two of them are alike.
        locked: doors that a key opens, and ``keys`` the rooms that a key lies in.
        crates: by room, the room that is behind the crate that stands there.
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
        """The names of what was ordered."""
        return tuple(soup(order) for order in self.orders)

    @cached_property
    def beside(self) -> Mapping[str, tuple[str, ...]]:
        """The rooms next to each."""
        return {
            room: tuple(b if a == room else a for a, b in self.doors if room in (a, b)) for room in self.rooms
        }  # fmt: skip

    @cached_property
    def ways(self) -> Mapping[tuple[str, str], str]:
        """The next room on the shortest way from one to another."""
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
        """In plain values."""
        return {key: _plain(value) for key, value in asdict(self).items()}


def layout_of(data: Mapping[str, Any]) -> Layout:
    """The kitchen in a task's data."""
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
