"""Parser for a player's view: the inverse of ``words``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marft_envs.rooms.views import GO_PREFIX, HERE_TEXT, TAKE_PREFIX

PLAYER_LINE = re.compile(r"You are in the (narrow )?(\w+) and hold ([\w ]+)\.")
ITEM_LINE = re.compile(r"^Here: (.*)\.$", re.MULTILINE)
DOOR_LINE = re.compile(r"^To the (?:narrow )?(\w+)( \(locked\)| \(behind a crate\))?: (.*)\.$", re.MULTILINE)
NARROW_DOOR = re.compile(r"^To the narrow (\w+)", re.MULTILINE)
ITEM_DIRECTION = re.compile(
    rf"^(\w+): (?:{GO_PREFIX} (\w+)|{TAKE_PREFIX} \w+|{HERE_TEXT}( \(.*\)| on the shelf)?)$", re.MULTILINE
)  # lines of a view that lists things
DOOR_LIST = re.compile(r"^doors to: (.*)$", re.MULTILINE)
DOOR_ENTRY = re.compile(r"(narrow )?(\w+)(?: \((locked|behind a crate)\))?")
MESSAGE_LINE = re.compile(r"^(\w+) said: (.*)$", re.MULTILINE)
ORDER_LINE = re.compile(r"Orders: (.*?)\. \d+ steps? left")


@dataclass(frozen=True)
class DoorView:
    """A door, with the room behind it and the things in its direction."""

    room: str
    narrow: bool
    obstacle: str  # "locked", "behind a crate", or ""
    items: tuple[str, ...]


@dataclass(frozen=True)
class ParsedView:
    """Content of a player's view.

    Args:
        room: the player's room.
        narrow: True if the room holds one player only.
        holds: thing in the player's hands; "" for nothing.
        room_items: things in the room.
        doors: doors of the room.
        dishes: dishes still to be served.
        messages: last message by name; ``You`` is the player itself.
    """

    room: str
    narrow: bool
    holds: str
    room_items: tuple[str, ...]
    doors: tuple[DoorView, ...]
    dishes: tuple[str, ...]
    messages: Mapping[str, str]

    @property
    def own_message(self) -> str:
        """The player's own last message."""
        return self.messages.get("You", "")

    @property
    def other_messages(self) -> list[str]:
        """Last messages from other players."""
        return [words for name, words in self.messages.items() if name != "You"]

    @property
    def pot(self) -> str | None:
        """The pot's content; None if hidden."""
        return next((item[5:-1] for item in self.room_items if item.startswith("pot (")), None)

    def door_toward(self, item: str) -> DoorView | None:
        """Return the door toward a thing, or None."""
        return next((door for door in self.doors if item in door.items), None)


def parse_view(view_text: str, name: str = "", names: Sequence[str] = ()) -> ParsedView:
    """Parse a view.

    Args:
        view_text: text of the view.
        name: name of the player, if the text holds the views of several players.
        names: names of these players.
    """
    dishes = ORDER_LINE.search(view_text)
    if names:
        parts = re.split(rf"^({'|'.join(map(re.escape, names))}): ", view_text, flags=re.MULTILINE)
        view_text = parts[parts.index(name) + 1]
    player_match = PLAYER_LINE.search(view_text)
    assert player_match, f"no view of a kitchen: {view_text}"
    room_items, doors = _parse_doors(view_text) if ITEM_LINE.search(view_text) else _parse_items(view_text)
    return ParsedView(
        player_match[2],
        bool(player_match[1]),
        "" if player_match[3] == "nothing" else player_match[3],
        room_items,
        doors,
        _split_items(dishes[1]) if dishes else (),
        dict(MESSAGE_LINE.findall(view_text)),
    )


def _parse_doors(view_text: str) -> tuple[tuple[str, ...], tuple[DoorView, ...]]:
    """Parse the things in the room, and the doors with the things behind each."""
    narrow_rooms, item_lists = NARROW_DOOR.findall(view_text), ITEM_LINE.findall(view_text)
    doors = [
        DoorView(room, room in narrow_rooms, obstacle.strip(" ()"), _split_items(listed))
        for room, obstacle, listed in DOOR_LINE.findall(view_text)
    ]
    return _split_items(item_lists[0]), tuple(doors)


def _parse_items(view_text: str) -> tuple[tuple[str, ...], tuple[DoorView, ...]]:
    """Parse the same from a view with a line for each thing."""
    places = ITEM_DIRECTION.findall(view_text)
    room_items = tuple(name + suffix for name, room, suffix in places if not room)
    listed = DOOR_LIST.findall(view_text)[0]
    doors = [
        DoorView(room, bool(narrow), obstacle, tuple(name for name, room_behind, _ in places if room_behind == room))
        for narrow, room, obstacle in DOOR_ENTRY.findall(listed)
    ]
    return room_items, tuple(doors)


def _split_items(listed: str) -> tuple[str, ...]:
    """Split a list of things at commas outside brackets."""
    items = re.split(r", (?![^(]*\))", listed)
    return () if listed in ("nothing", "none") else tuple(items)
