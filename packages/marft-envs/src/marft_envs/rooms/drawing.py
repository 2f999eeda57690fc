"""Drawing a kitchen that can be run: whoever sees one room at a time has served everything in it once, in time."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from marft_envs.rooms.layout import Layout, door
from marft_envs.rooms.script import cooks, serves
from marft_envs.rooms.session import Rules, Shift
from marft_envs.rooms.sight import sight

ROOMS = ("attic", "cellar", "garden", "hall", "kitchen", "larder", "pantry", "porch", "studio", "yard")
INGREDIENTS = ("bean", "corn", "leek", "onion", "pea", "pepper", "rice", "tomato")
LONGEST = 500  # moments, which no kitchen takes
TRIES = 200  # kitchens until one can


@dataclass(frozen=True)
class Level:
    """How large and how hard a kitchen is.

    Args:
        size: ingredients of a dish; ``others``: of those that are there and in no dish.
        narrow: how likely a room is to hold one player alone; ``loops``: how many doors are more than needed.
        locked, crates: how many doors are locked, and how many stand behind a crate.
        slack: what the deadline allows for, in shares of what the time was that it was done in.
    """

    rooms: int
    orders: int
    size: int
    others: int
    narrow: float
    loops: int
    locked: int
    crates: int
    slack: float


def draw_kitchen(random: Random, level: Level, rules: Rules) -> tuple[Layout, int, int]:
    """A kitchen, its deadline, and in how many steps it can be done.

    Raises:
        ValueError: none of very many could be run.
    """
    for _ in range(TRIES):
        layout = _layout(random, level, len(rules.players))
        time, steps = taken(layout, rules)
        if time:
            return layout, math.ceil(time * (1 + level.slack)), steps
    raise ValueError(
        f"environment: none of {TRIES} kitchens could be run with rooms = {level.rooms}, narrow = {level.narrow:g}, "
        f"locked = {level.locked} and crates = {level.crates}; make fewer rooms narrow, or shut fewer doors"
    )


def taken(layout: Layout, rules: Rules) -> tuple[int, int]:
    """The time and the steps that players need who each see their own room alone; 0 where they get stuck, and do the
    same again."""
    shift = Shift(layout, LONGEST, replace(rules, steered_by=""))
    shown, seen, steps = shift.begin(), set[str](), 0
    while (now := shift.kitchen.moment()) not in seen:
        seen.add(now)
        acting = {role: sight(shown.seen_by(role)) for role in shown.turn}
        lines = {role: (cooks if role == rules.players[0] else serves)(view) for role, view in acting.items()}
        step = shift.take({role: line.answer for role, line in lines.items()})
        steps += 1
        if step.terminated:
            return (shift.kitchen.time, steps) if step.success else (0, 0)
        shown = step.observation
    return 0, 0


def content_of(layout: Layout) -> str:
    """What makes a kitchen the one that it is, whatever its rooms and ingredients are called: ingredients are told
    apart by how often each is in which dish, rooms by what is in them and behind their doors, as far as it goes
    (Weisfeiler and Leman's colours)."""
    often = {thing: tuple(order.count(thing) for order in layout.orders) for order in layout.orders for thing in order}
    kinds = sorted(set(often.values()), reverse=True)
    names = {"plate": "plate", **{thing: f"i{kinds.index(counts)}" for thing, counts in often.items()}}
    starts = Counter(layout.starts)
    colours = {
        room: repr((
            sorted(names.get(thing, "other") for thing in layout.sources.get(room, ())),
            room == layout.pot, room == layout.hatch, room in layout.narrow, starts[room], room in layout.keys,
        ))
        for room in layout.rooms
    }  # fmt: skip
    for _ in layout.rooms:
        colours = {
            room: _short(
                repr((colours[room], sorted((_kind(layout, room, b), colours[b]) for b in layout.beside[room])))
            )
            for room in layout.rooms
        }
    orders = [sorted(names[thing] for thing in order) for order in layout.orders]
    return f"{orders} {' '.join(sorted(colours.values()))}"


def _short(colour: str) -> str:
    return hashlib.blake2b(colour.encode(), digest_size=8).hexdigest()


def _kind(layout: Layout, room: str, beside: str) -> str:
    if door(room, beside) in layout.locked:
        return "locked"
    return "crate here" if layout.crates.get(room) == beside else "crate there" * (layout.crates.get(beside) == room)


def _layout(random: Random, level: Level, players: int) -> Layout:
    rooms = tuple(random.sample(ROOMS, level.rooms))
    doors = [door(rooms[index], rooms[random.randrange(index)]) for index in range(1, len(rooms))]
    others = [
        pair for a in range(len(rooms)) for b in range(a) if (pair := door(rooms[a], rooms[b])) not in doors
    ]  # fmt: skip
    doors += random.sample(others, min(level.loops, len(others)))
    narrow = tuple(room for room in rooms if random.random() < level.narrow)
    wide = [room for room in rooms if room not in narrow]
    dishes = _dishes(random, level)
    pot = random.choice(rooms)
    hatch, plates = (random.choice([room for room in rooms if room != pot]) for _ in range(2))
    sources: dict[str, tuple[str, ...]] = dict.fromkeys(rooms, ())
    wanted = sorted({thing for dish in dishes for thing in dish})
    unwanted = [thing for thing in INGREDIENTS if thing not in wanted]
    for thing in ("plate", *wanted, *random.sample(unwanted, min(level.others, len(unwanted)))):
        room = plates if thing == "plate" else random.choice([room for room in rooms if room != pot])
        sources[room] = (*sources[room], thing)
    shut = random.sample(doors, min(level.locked + level.crates, len(doors)))
    crates = {random.choice(pair): pair for pair in shut[level.locked :]}
    return Layout(
        rooms, tuple(sorted(doors)), narrow, {room: things for room, things in sources.items() if things}, pot, hatch,
        _starts(random, rooms, wide, players), dishes, tuple(sorted(shut[: level.locked])),
        tuple(random.choice(rooms) for _ in shut[: level.locked]),
        {room: b if room == a else a for room, (a, b) in crates.items()},
    )  # fmt: skip


def _starts(random: Random, rooms: Sequence[str], wide: Sequence[str], players: int) -> tuple[str, ...]:
    """Where players begin: in wide rooms, or one alone in a narrow one."""
    free, starts = list(rooms), list[str]()
    for _ in range(players):
        room = random.choice(free or list(rooms))
        starts.append(room)
        if room not in wide and room in free:
            free.remove(room)
    return tuple(starts)


def _dishes(random: Random, level: Level) -> tuple[tuple[str, ...], ...]:
    """Dishes that differ."""
    found: list[tuple[str, ...]] = []
    while len(found) < level.orders:
        dish = tuple(sorted(random.choices(INGREDIENTS, k=level.size)))
        if dish not in found:
            found.append(dish)
    return tuple(found)
