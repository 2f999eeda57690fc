"""What a player is shown of a kitchen, and what is read off its answers: short and regular lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from marft.envs.rooms.layout import HATCH, PLATE, POT, door, soup
from marft.envs.rooms.state import Kitchen, Player, signs

LONGEST_WORDS = 100  # characters of what is said at once
GO, TAKE, HERE = "go", "take", "here"  # what is listed by thing: the way there, or what to do with it
FIRST = (POT, HATCH, PLATE)  # of what is listed by thing
PIECES = re.compile(r"[\n;]+")
READY, TAKEN, IN_POT, HELP = " is ready", " is taken", "in the pot: ", "help with the crate"  # what players call out


class Answer(NamedTuple):
    """What a player wants to do, and to say with it."""

    act: str = ""
    said: str = ""


def orders(kitchen: Kitchen, deadline: int) -> str:
    """What everybody is shown."""
    left = deadline - kitchen.time
    return f"Orders: {', '.join(kitchen.open) or 'none'}. {left} {'step' if left == 1 else 'steps'} left."


def view(kitchen: Kitchen, player: Player, by_thing: bool = False) -> str:
    """What a player sees: its room, its hands, signs at the doors, and what was said last.

    Args:
        by_thing: a line for each thing says how to get it, in place of one for each door with all behind it.
    """
    lines = [player.told] if player.told else []
    lines.append(f"You are in the {_named(kitchen, player.room)} and hold {player.holds or 'nothing'}.")
    lines += _by_thing(kitchen, player) if by_thing else _by_door(kitchen, player)
    lines += [f"{other.name} said: {other.said}" for other in kitchen.players if other is not player and other.said]
    if player.said:
        lines.append(f"You said: {player.said}")
    return "\n".join(lines)


def answer_of(text: str) -> Answer:
    """The first act of a text, and the words after ``say``.

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
    """The same where one agent speaks for several players: each piece goes to whoever was
    named last.

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


def _by_door(kitchen: Kitchen, player: Player) -> Iterator[str]:
    room = player.room
    there = [*kitchen.layout.sources.get(room, ()), *_furniture(kitchen, room), *_company(kitchen, player)]
    yield f"Here: {', '.join(there) or 'nothing'}."
    for beside, things in signs(kitchen, room).items():
        yield f"To the {_named(kitchen, beside)}{_shut(kitchen, room, beside)}: {', '.join(things) or 'nothing'}."


def _by_thing(kitchen: Kitchen, player: Player) -> Iterator[str]:
    room, layout = player.room, kitchen.layout
    behind = signs(kitchen, room)
    places = {thing: f"{GO} {beside}" for beside, things in behind.items() for thing in things}
    places |= {thing: f"{TAKE} {thing}" for thing in layout.sources.get(room, ())}
    places |= dict.fromkeys(_furniture(kitchen, room), HERE)
    for thing in sorted(places, key=lambda thing: (thing.partition(" ")[0] not in FIRST, thing)):
        name, _, inside = thing.partition(" ")
        yield f"{name}: {places[thing]}{f' {inside}' if inside else ''}"
    yield f"doors to: {', '.join(f'{_named(kitchen, beside)}{_shut(kitchen, room, beside)}' for beside in behind)}"
    if company := _company(kitchen, player):
        yield f"with you: {', '.join(company)}"


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
