"""Views of a kitchen as short regular lines, and the parser for agents' answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from marft_envs.rooms.layout import HATCH, PLATE, POT, door, soup
from marft_envs.rooms.state import FILL, SERVE, TAKE_SOUP, Kitchen, Player, signs

LONGEST_WORDS = 100  # maximum characters of a message
GO, TAKE, HERE = "go", "take", "here"  # in views that list things: the way to a thing, or the action with it
USES = {FILL: POT, TAKE_SOUP: POT, SERVE: HATCH}
FIRST = (POT, HATCH, PLATE)  # first lines of a view that lists things
PIECES = re.compile(r"[\n;]+")
# phrases in players' messages
READY, TAKEN, IN_POT, HELP = " is ready", " is taken", "in the pot: ", "help with the crate"


class Answer(NamedTuple):
    """A player's action and message."""

    act: str = ""
    said: str = ""


def orders(kitchen: Kitchen, deadline: int) -> str:
    """Return the open orders and the remaining time, for all players."""
    left = deadline - kitchen.time
    return f"Orders: {', '.join(kitchen.open) or 'none'}. {left} {'step' if left == 1 else 'steps'} left."


def view(kitchen: Kitchen, player: Player) -> str:
    """Return a player's view: its room, its hands, signs at the doors, and the last messages."""
    room = player.room
    there = [*kitchen.layout.sources.get(room, ()), *_furniture(kitchen, room), *_company(kitchen, player)]
    signed = [
        f"To the {_named(kitchen, beside)}{_shut(kitchen, room, beside)}: {', '.join(things) or 'nothing'}."
        for beside, things in signs(kitchen, room).items()
    ]
    here = f"Here: {', '.join(there) or 'nothing'}."
    return "\n".join([*_told(player), _standing(kitchen, player), here, *signed, *_heard(kitchen, player)])


def view_by_thing(kitchen: Kitchen, player: Player) -> str:
    """Return a player's view with the way to each thing instead of the things behind each door.

    The player's own state comes last, so a model that reads from the top knows all things before it reads what is
    needed.
    """
    room = player.room
    behind = signs(kitchen, room)
    places = {**_ways(kitchen, player), **dict.fromkeys(_furniture(kitchen, room), HERE)}
    lines = []
    for thing in sorted(places, key=lambda thing: (thing.partition(" ")[0] not in FIRST, thing)):
        name, _, inside = thing.partition(" ")
        lines.append(f"{name}: {places[thing]}{f' {inside}' if inside else ''}")
    doors = ", ".join(f"{_named(kitchen, beside)}{_shut(kitchen, room, beside)}" for beside in behind)
    company = _company(kitchen, player)
    lines += [f"doors to: {doors}", *([f"with you: {', '.join(company)}"] if company else [])]
    return "\n".join([*_told(player), *lines, *_heard(kitchen, player), _standing(kitchen, player)])


def acts_by_thing(kitchen: Kitchen, player: Player) -> dict[str, str]:
    """Return the action for each thing.

    The action goes through the door toward the thing or takes it. For the pot and the hatch it fills, empties or
    serves, if possible.
    """
    return _ways(kitchen, player) | {USES[act]: act for act in kitchen.possible(player) if act in USES}


def answer_of(text: str) -> Answer:
    """Parse the first action in a text, and the words after ``say``.

    >>> answer_of("Go kitchen.; say the soup is ready")
    Answer(act='go kitchen', said='the soup is ready')
    """
    act = said = ""
    for piece in PIECES.split(text):
        words = " ".join(piece.split())
        if words.lower().startswith("say ") or words.lower() == "say":
            said = said or words[4:].strip("\"'")[:LONGEST_WORDS]
        else:
            act = act or words.rstrip(".!").lower()
    return Answer(act or ("wait" if said else ""), said)


def answers_of(text: str, names: Sequence[str]) -> dict[str, Answer]:
    """Parse an agent's text for several players; each piece goes to the last named player.

    >>> answers_of("cook: take leek; waiter: wait", ["cook", "waiter"])["cook"]
    Answer(act='take leek', said='')
    """
    parts: dict[str, list[str]] = {name.lower(): [] for name in names}
    at = ""
    for piece in PIECES.split(text):
        name, colon, rest = piece.partition(":")
        if colon and (named := name.strip().lower()) in parts:
            at, piece = named, rest
        if at:
            parts[at].append(piece)
    return {name: answer_of(";".join(parts[name.lower()])) for name in names}


def _ways(kitchen: Kitchen, player: Player) -> dict[str, str]:
    """Return the way to each thing: the door toward it, or the action for taking it."""
    found = {thing: f"{GO} {beside}" for beside, things in signs(kitchen, player.room).items() for thing in things}
    return found | {thing: f"{TAKE} {thing}" for thing in kitchen.layout.sources.get(player.room, ())}


def _told(player: Player) -> list[str]:
    return [player.told] if player.told else []


def _standing(kitchen: Kitchen, player: Player) -> str:
    return f"You are in the {_named(kitchen, player.room)} and hold {player.holds or 'nothing'}."


def _heard(kitchen: Kitchen, player: Player) -> list[str]:
    said = [f"{other.name} said: {other.said}" for other in kitchen.players if other is not player and other.said]
    return [*said, f"You said: {player.said}"] if player.said else said


def _company(kitchen: Kitchen, player: Player) -> list[str]:
    return [other.name for other in kitchen.within(player.room) if other is not player]


def _named(kitchen: Kitchen, room: str) -> str:
    return f"narrow {room}" if room in kitchen.layout.narrow else room


def _shut(kitchen: Kitchen, room: str, beside: str) -> str:
    if door(room, beside) in kitchen.locked:
        return " (locked)"
    behind = kitchen.crates.get(room) == beside or kitchen.crates.get(beside) == room
    return " (behind a crate)" if behind else ""


def _furniture(kitchen: Kitchen, room: str) -> list[str]:
    layout, found = kitchen.layout, list[str]()
    if room == layout.pot:
        held = ", ".join(kitchen.pot) or "empty"
        if len(kitchen.pot) == kitchen.size:
            held = soup(kitchen.pot) if kitchen.cooked else "cooking"
        found.append(f"pot ({held})")
    if room == layout.hatch:
        found.append("hatch")
    if room in kitchen.shelves:
        found.append(f"{kitchen.shelves[room]} on the shelf")
    if room in kitchen.crates:
        found.append("crate")
    return found
