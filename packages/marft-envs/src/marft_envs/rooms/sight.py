"""Parser for a player's view: the inverse of ``words``."""

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
)  # lines of a view that lists things
DOORS = re.compile(r"^doors to: (.*)$", re.MULTILINE)
DOOR = re.compile(r"(narrow )?(\w+)(?: \((locked|behind a crate)\))?")
SAID = re.compile(r"^(\w+) said: (.*)$", re.MULTILINE)
ORDERS = re.compile(r"Orders: (.*?)\. \d+ steps? left")


@dataclass(frozen=True)
class Way:
    """A door, with the room behind it and the things in its direction."""

    room: str
    narrow: bool
    shut: str  # "locked", "behind a crate", or ""
    things: tuple[str, ...]


@dataclass(frozen=True)
class Sight:
    """Content of a player's view.

    Args:
        room: the player's room.
        narrow: True if the room holds one player only.
        holds: thing in the player's hands; "" for nothing.
        here: things in the room.
        ways: doors of the room.
        dishes: dishes still to be served.
        said: last message by name; ``You`` is the player itself.
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
        """The player's own last message."""
        return self.said.get("You", "")

    @property
    def others(self) -> list[str]:
        """Last messages from other players."""
        return [words for name, words in self.said.items() if name != "You"]

    @property
    def pot(self) -> str | None:
        """The pot's content; None if hidden."""
        return next((thing[5:-1] for thing in self.here if thing.startswith("pot (")), None)

    def way(self, thing: str) -> Way | None:
        """Return the door toward a thing, or None."""
        return next((way for way in self.ways if thing in way.things), None)


def sight(shown: str, name: str = "", names: Sequence[str] = ()) -> Sight:
    """Parse a view.

    Args:
        shown: text of the view.
        name: name of the player, if the text holds the views of several players.
        names: names of these players.
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
    """Parse the things in the room, and the doors with the things behind each."""
    narrow, there = NARROW.findall(shown), THERE.findall(shown)
    ways = [Way(room, room in narrow, shut.strip(" ()"), _things(listed)) for room, shut, listed in SIGN.findall(shown)]
    return _things(there[0]), tuple(ways)


def _by_thing(shown: str) -> tuple[tuple[str, ...], tuple[Way, ...]]:
    """Parse the same from a view with a line for each thing."""
    places = PLACE.findall(shown)
    here = tuple(name + more for name, room, more in places if not room)
    listed = DOORS.findall(shown)[0]
    ways = [
        Way(room, bool(narrow), shut, tuple(name for name, behind, _ in places if behind == room))
        for narrow, room, shut in DOOR.findall(listed)
    ]
    return here, tuple(ways)


def _things(listed: str) -> tuple[str, ...]:
    """Split a list of things at commas outside brackets."""
    things = re.split(r", (?![^(]*\))", listed)
    return () if listed in ("nothing", "none") else tuple(things)
