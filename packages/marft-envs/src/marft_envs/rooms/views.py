"""Views of a kitchen as short regular lines, their parser, and the parser for agents' answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from marft_envs.rooms.kitchen import (
    HATCH,
    PLATE,
    POT,
    PUT_IN_POT,
    SERVE,
    TAKE_SOUP,
    Kitchen,
    Player,
    door_between,
    items_by_door,
    soup_name,
)

MAX_MESSAGE = 100  # maximum characters of a message
# in views that list things: the way to a thing, or the action with it
GO_PREFIX, TAKE_PREFIX, HERE_TEXT = "go", "take", "here"
ACTION_ITEMS = {PUT_IN_POT: POT, TAKE_SOUP: POT, SERVE: HATCH}
FIRST_ITEMS = (POT, HATCH, PLATE)  # first lines of a view that lists things
PIECE_SEPARATOR = re.compile(r"[\n;]+")
# phrases in players' messages
READY_SUFFIX, TAKEN_SUFFIX, POT_PREFIX, HELP_REQUEST = " is ready", " is taken", "in the pot: ", "help with the crate"


class PlayerAction(NamedTuple):
    """A player's action and message."""

    action: str = ""
    message: str = ""


def format_orders(kitchen: Kitchen, deadline: int) -> str:
    """Return the open orders and the remaining time, for all players."""
    remaining = deadline - kitchen.time
    return (
        f"Orders: {', '.join(kitchen.open_orders) or 'none'}. {remaining} {'step' if remaining == 1 else 'steps'} left."
    )


def format_view_by_door(kitchen: Kitchen, player: Player) -> str:
    """Return a player's view: its room, its hands, signs at the doors, and the last messages."""
    room = player.room
    item_texts = [*kitchen.layout.sources.get(room, ()), *_room_items(kitchen, room), *_other_players(kitchen, player)]
    door_lines = [
        f"To the {_room_label(kitchen, neighbor)}{_obstacle_label(kitchen, room, neighbor)}: "
        f"{', '.join(items) or 'nothing'}."
        for neighbor, items in items_by_door(kitchen, room).items()
    ]
    room_line = f"Here: {', '.join(item_texts) or 'nothing'}."
    return "\n".join(
        [
            *_feedback_lines(player),
            _player_line(kitchen, player),
            room_line,
            *door_lines,
            *_message_lines(kitchen, player),
        ]
    )


def format_view_by_item(kitchen: Kitchen, player: Player) -> str:
    """Return a player's view with the way to each thing instead of the things behind each door.

    The player's own state comes last, so a model that reads from the top knows all things before it reads what is
    needed.
    """
    room = player.room
    door_items = items_by_door(kitchen, room)
    directions = {**_item_directions(kitchen, player), **dict.fromkeys(_room_items(kitchen, room), HERE_TEXT)}
    lines = []
    for item in sorted(directions, key=lambda item: (item.partition(" ")[0] not in FIRST_ITEMS, item)):
        name, _, detail = item.partition(" ")
        lines.append(f"{name}: {directions[item]}{f' {detail}' if detail else ''}")
    doors = ", ".join(
        f"{_room_label(kitchen, neighbor)}{_obstacle_label(kitchen, room, neighbor)}" for neighbor in door_items
    )
    companions = _other_players(kitchen, player)
    lines += [f"doors to: {doors}", *([f"with you: {', '.join(companions)}"] if companions else [])]
    return "\n".join(
        [*_feedback_lines(player), *lines, *_message_lines(kitchen, player), _player_line(kitchen, player)]
    )


def actions_by_item(kitchen: Kitchen, player: Player) -> dict[str, str]:
    """Return the action for each thing.

    The action goes through the door toward the thing or takes it. For the pot and the hatch it fills, empties or
    serves, if possible.
    """
    return _item_directions(kitchen, player) | {
        ACTION_ITEMS[action]: action for action in kitchen.possible_actions(player) if action in ACTION_ITEMS
    }


def parse_action(text: str) -> PlayerAction:
    """Parse the first action in a text, and the words after ``say``.

    >>> parse_action("Go kitchen.; say the soup is ready")
    PlayerAction(action='go kitchen', message='the soup is ready')
    """
    action = message = ""
    for piece in PIECE_SEPARATOR.split(text):
        words = " ".join(piece.split())
        if words.lower().startswith("say ") or words.lower() == "say":
            message = message or words[4:].strip("\"'")[:MAX_MESSAGE]
        else:
            action = action or words.rstrip(".!").lower()
    return PlayerAction(action or ("wait" if message else ""), message)


def parse_actions(text: str, names: Sequence[str]) -> dict[str, PlayerAction]:
    """Parse an agent's text for several players; each piece goes to the last named player.

    >>> parse_actions("cook: take leek; waiter: wait", ["cook", "waiter"])["cook"]
    PlayerAction(action='take leek', message='')
    """
    parts: dict[str, list[str]] = {name.lower(): [] for name in names}
    current = ""
    for piece in PIECE_SEPARATOR.split(text):
        name, colon, remainder = piece.partition(":")
        if colon and (player_name := name.strip().lower()) in parts:
            current, piece = player_name, remainder
        if current:
            parts[current].append(piece)
    return {name: parse_action(";".join(parts[name.lower()])) for name in names}


def _item_directions(kitchen: Kitchen, player: Player) -> dict[str, str]:
    """Return the way to each thing: the door toward it, or the action for taking it."""
    directions = {
        item: f"{GO_PREFIX} {neighbor}"
        for neighbor, items in items_by_door(kitchen, player.room).items()
        for item in items
    }
    return directions | {item: f"{TAKE_PREFIX} {item}" for item in kitchen.layout.sources.get(player.room, ())}


def _feedback_lines(player: Player) -> list[str]:
    return [player.feedback] if player.feedback else []


def _player_line(kitchen: Kitchen, player: Player) -> str:
    return f"You are in the {_room_label(kitchen, player.room)} and hold {player.holds or 'nothing'}."


def _message_lines(kitchen: Kitchen, player: Player) -> list[str]:
    message_lines = [
        f"{other.name} said: {other.message}" for other in kitchen.players if other is not player and other.message
    ]
    return [*message_lines, f"You said: {player.message}"] if player.message else message_lines


def _other_players(kitchen: Kitchen, player: Player) -> list[str]:
    return [other.name for other in kitchen.players_in(player.room) if other is not player]


def _room_label(kitchen: Kitchen, room: str) -> str:
    return f"narrow {room}" if room in kitchen.layout.narrow else room


def _obstacle_label(kitchen: Kitchen, room: str, neighbor: str) -> str:
    if door_between(room, neighbor) in kitchen.locked:
        return " (locked)"
    has_crate = kitchen.crates.get(room) == neighbor or kitchen.crates.get(neighbor) == room
    return " (behind a crate)" if has_crate else ""


def _room_items(kitchen: Kitchen, room: str) -> list[str]:
    layout, items = kitchen.layout, list[str]()
    if room == layout.pot:
        pot_text = ", ".join(kitchen.pot) or "empty"
        if len(kitchen.pot) == kitchen.size:
            pot_text = soup_name(kitchen.pot) if kitchen.has_soup else "cooking"
        items.append(f"pot ({pot_text})")
    if room == layout.hatch:
        items.append("hatch")
    if room in kitchen.shelves:
        items.append(f"{kitchen.shelves[room]} on the shelf")
    if room in kitchen.crates:
        items.append("crate")
    return items


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
