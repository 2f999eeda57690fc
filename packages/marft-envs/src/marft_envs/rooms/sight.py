"""What can be read off a player's view: the other way round than ``words``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marft_envs.rooms.words import GO, HERE, TAKE

STANDING = re.compile(r"You are in the (narrow )?(\w+) and hold ([\w ]+)\.")
THERE = re.compile(r"^Here: (.*)\.$", re.MULTILINE)
SIGN = re.compile(r"^To the (?:narrow )?(\w+)( \(locked\)| \(behind a crate\))?: (.*)\.$", re.MULTILINE)
NARROW = re.compile(r"^To the narrow (\w+)", re.MULTILINE)
PLACE = re.compile(
    rf"^(\w+): (?:{GO} (\w+)|{TAKE} \w+|{HERE}( \(.*\)| on the shelf)?)$", re.MULTILINE
)  # where views go by thing
DOORS = re.compile(r"^doors to: (.*)$", re.MULTILINE)
DOOR = re.compile(r"(narrow )?(\w+)(?: \((locked|behind a crate)\))?")
SAID = re.compile(r"^(\w+) said: (.*)$", re.MULTILINE)
ORDERS = re.compile(r"Orders: (.*?)\. \d+ steps? left")


@dataclass(frozen=True)
class Way:
    """A door of the room that a player is in: where it leads, and the things behind it."""

    room: str
    narrow: bool
    shut: str  # "locked", "behind a crate", or ""
    things: tuple[str, ...]


@dataclass(frozen=True)
class Sight:
    """What a player reads.

    Args:
        holds: "" is nothing.
        dishes: that are still to be served.
        said: what was said last, by name; ``You`` is itself.
    """

    room: str
    narrow: bool
    holds: str
    here: tuple[str, ...]
    ways: tuple[Way, ...]
    dishes: tuple[str, ...]
    said: Mapping[str, str]

    @property
    def own(self) -> str:
        """What it has said last itself."""
        return self.said.get("You", "")

    @property
    def others(self) -> list[str]:
        """What others have said last."""
        return [words for name, words in self.said.items() if name != "You"]

    @property
    def pot(self) -> str | None:
        """What is in the pot, where it can be seen."""
        return next((thing[5:-1] for thing in self.here if thing.startswith("pot (")), None)

    def way(self, thing: str) -> Way | None:
        """The door to something."""
        return next((way for way in self.ways if thing in way.things), None)


def sight(shown: str, name: str = "", names: Sequence[str] = ()) -> Sight:
    """What a view says.

    Args:
        name: of the player, where the views of several ``names`` are in one text.
    """
    dishes = ORDERS.search(shown)
    if names:
        parts = re.split(rf"^({'|'.join(map(re.escape, names))}): ", shown, flags=re.MULTILINE)
        shown = parts[parts.index(name) + 1]
    standing = STANDING.search(shown)
    assert standing, f"no view of a kitchen: {shown}"
    here, ways = _by_door(shown) if THERE.search(shown) else _by_thing(shown)
    return Sight(
        standing[2], bool(standing[1]), "" if standing[3] == "nothing" else standing[3], here, ways,
        _things(dishes[1]) if dishes else (), dict(SAID.findall(shown)),
    )  # fmt: skip


def _by_door(shown: str) -> tuple[tuple[str, ...], tuple[Way, ...]]:
    """What is here, and the doors with what is behind them."""
    narrow, there = NARROW.findall(shown), THERE.findall(shown)
    ways = [Way(room, room in narrow, shut.strip(" ()"), _things(listed)) for room, shut, listed in SIGN.findall(shown)]
    return _things(there[0]), tuple(ways)


def _by_thing(shown: str) -> tuple[tuple[str, ...], tuple[Way, ...]]:
    """The same, where a line for each thing says where it is."""
    places = PLACE.findall(shown)
    here = tuple(name + more for name, room, more in places if not room)
    listed = DOORS.findall(shown)[0]
    ways = [
        Way(room, bool(narrow), shut, tuple(name for name, behind, _ in places if behind == room))
        for narrow, room, shut in DOOR.findall(listed)
    ]
    return here, tuple(ways)


def _things(listed: str) -> tuple[str, ...]:
    """The things of a list, whose brackets may hold commas of their own."""
    things = re.split(r", (?![^(]*\))", listed)
    return () if listed in ("nothing", "none") else tuple(things)
