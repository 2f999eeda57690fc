"""Generator for solvable kitchens: scripted players with one-room views serve every order in time."""

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
LONGEST = 500  # maximum time steps of a scripted run; no kitchen needs as many
TRIES = 200  # maximum kitchens drawn for one task


@dataclass(frozen=True)
class Level:
    """Size and difficulty settings for a kitchen.

    Args:
        rooms: number of rooms.
        orders: number of ordered dishes.
        size: ingredients per dish.
        others: ingredients available but in no dish.
        narrow: probability that a room holds only one player.
        loops: doors beyond the minimum needed to connect the rooms.
        locked: number of locked doors.
        crates: number of doors behind a crate.
        slack: extra time until the deadline, as a fraction of the scripted run's time.
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
    """Generate a kitchen, its deadline in time steps, and the number of environment steps of a scripted run.

    Raises:
        ValueError: scripted players finished none of ``TRIES`` kitchens.
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
    """Return the time steps and environment steps of a scripted run in which each player sees only its own room.

    Both are 0 if the run fails or repeats a state.
    """
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
    """Return a canonical text for a kitchen, independent from the names given to rooms and ingredients.

    Ingredients are identified by their counts in each dish. Rooms are identified by their content and the rooms
    behind their doors, with Weisfeiler-Leman color refinement.
    """
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
    """Draw the players' start rooms; a narrow room gets at most one player while rooms remain."""
    free, starts = list(rooms), list[str]()
    for _ in range(players):
        room = random.choice(free or list(rooms))
        starts.append(room)
        if room not in wide and room in free:
            free.remove(room)
    return tuple(starts)


def _dishes(random: Random, level: Level) -> tuple[tuple[str, ...], ...]:
    """Draw distinct dishes."""
    found: list[tuple[str, ...]] = []
    while len(found) < level.orders:
        dish = tuple(sorted(random.choices(INGREDIENTS, k=level.size)))
        if dish not in found:
            found.append(dish)
    return tuple(found)
