"""Views of a kitchen as short regular lines, and the parser for agents' answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from marft_envs.rooms.layout import HATCH, PLATE, POT, door_between, soup_name
from marft_envs.rooms.state import PUT_IN_POT, SERVE, TAKE_SOUP, Kitchen, Player, items_by_door

MAX_MESSAGE = 100  # maximum characters of a message
GO_PREFIX, TAKE_PREFIX, HERE_TEXT = (
    "go",
    "take",
    "here",
)  # in views that list things: the way to a thing, or the action with it
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


def format_view(kitchen: Kitchen, player: Player) -> str:
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


def format_item_view(kitchen: Kitchen, player: Player) -> str:
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
