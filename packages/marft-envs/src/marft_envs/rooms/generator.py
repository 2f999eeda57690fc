"""Generator for solvable kitchens: scripted players with one-room views serve every order in time."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from marft_envs.rooms.layout import KitchenLayout, door_between
from marft_envs.rooms.script import cook_action, waiter_action
from marft_envs.rooms.session import RoomsRules, RoomsSession
from marft_envs.rooms.view_parser import parse_view

ROOMS = ("attic", "cellar", "garden", "hall", "kitchen", "larder", "pantry", "porch", "studio", "yard")
INGREDIENTS = ("bean", "corn", "leek", "onion", "pea", "pepper", "rice", "tomato")
MAX_RUN_TIME = 500  # maximum time steps of a scripted run; no kitchen needs as many
MAX_TRIES = 200  # maximum kitchens drawn for one task


@dataclass(frozen=True)
class KitchenLevel:
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


def draw_kitchen(random: Random, level: KitchenLevel, rules: RoomsRules) -> tuple[KitchenLayout, int, int]:
    """Generate a kitchen, its deadline in time steps, and the number of environment steps of a scripted run.

    Raises:
        ValueError: scripted players finished none of ``MAX_TRIES`` kitchens.
    """
    for _ in range(MAX_TRIES):
        layout = _draw_layout(random, level, len(rules.players))
        time, steps = simulate_run(layout, rules)
        if time:
            return layout, math.ceil(time * (1 + level.slack)), steps
    raise ValueError(
        f"environment: none of {MAX_TRIES} kitchens could be run with rooms = {level.rooms}, narrow = "
        f"{level.narrow:g}, locked = {level.locked} and crates = {level.crates}; make fewer rooms narrow, or shut "
        "fewer doors"
    )


def simulate_run(layout: KitchenLayout, rules: RoomsRules) -> tuple[int, int]:
    """Return the time steps and environment steps of a scripted run in which each player sees only its own room.

    Both are 0 if the run fails or repeats a state.
    """
    session = RoomsSession(layout, MAX_RUN_TIME, replace(rules, controller=""))
    observation, states_seen, steps = session.reset_sync(), set[str](), 0
    while (state_key := session.kitchen.state_key()) not in states_seen:
        states_seen.add(state_key)
        views = {role: parse_view(observation.for_role(role)) for role in observation.turn}
        lines = {
            role: (cook_action if role == rules.players[0] else waiter_action)(view) for role, view in views.items()
        }
        step = session.step_sync({role: line.player_action for role, line in lines.items()})
        steps += 1
        if step.terminated:
            return (session.kitchen.time, steps) if step.success else (0, 0)
        observation = step.observation
    return 0, 0


def canonical_content(layout: KitchenLayout) -> str:
    """Return a canonical text for a kitchen, independent from the names given to rooms and ingredients.

    Ingredients are identified by their counts in each dish. Rooms are identified by their content and the rooms
    behind their doors, with Weisfeiler-Leman color refinement.
    """
    counts_by_item = {
        item: tuple(order.count(item) for order in layout.orders) for order in layout.orders for item in order
    }
    kinds = sorted(set(counts_by_item.values()), reverse=True)
    names = {"plate": "plate", **{item: f"i{kinds.index(counts)}" for item, counts in counts_by_item.items()}}
    starts = Counter(layout.starts)
    colors = {
        room: repr(
            (
                sorted(names.get(item, "other") for item in layout.sources.get(room, ())),
                room == layout.pot,
                room == layout.hatch,
                room in layout.narrow,
                starts[room],
                room in layout.keys,
            )
        )
        for room in layout.rooms
    }
    for _ in layout.rooms:
        colors = {
            room: _digest(
                repr((colors[room], sorted((_door_kind(layout, room, b), colors[b]) for b in layout.neighbors[room])))
            )
            for room in layout.rooms
        }
    orders = [sorted(names[item] for item in order) for order in layout.orders]
    return f"{orders} {' '.join(sorted(colors.values()))}"


def _digest(color: str) -> str:
    return hashlib.blake2b(color.encode(), digest_size=8).hexdigest()


def _door_kind(layout: KitchenLayout, room: str, neighbor: str) -> str:
    if door_between(room, neighbor) in layout.locked:
        return "locked"
    return (
        "crate here" if layout.crates.get(room) == neighbor else "crate there" * (layout.crates.get(neighbor) == room)
    )


def _draw_layout(random: Random, level: KitchenLevel, players: int) -> KitchenLayout:
    rooms = tuple(random.sample(ROOMS, level.rooms))
    doors = [door_between(rooms[index], rooms[random.randrange(index)]) for index in range(1, len(rooms))]
    other_doors = [
        pair for a in range(len(rooms)) for b in range(a) if (pair := door_between(rooms[a], rooms[b])) not in doors
    ]
    doors += random.sample(other_doors, min(level.loops, len(other_doors)))
    narrow = tuple(room for room in rooms if random.random() < level.narrow)
    wide_rooms = [room for room in rooms if room not in narrow]
    dishes = _draw_dishes(random, level)
    pot = random.choice(rooms)
    hatch, plates = (random.choice([room for room in rooms if room != pot]) for _ in range(2))
    sources: dict[str, tuple[str, ...]] = dict.fromkeys(rooms, ())
    needed_items = sorted({item for dish in dishes for item in dish})
    extra_items = [item for item in INGREDIENTS if item not in needed_items]
    for item in ("plate", *needed_items, *random.sample(extra_items, min(level.others, len(extra_items)))):
        room = plates if item == "plate" else random.choice([room for room in rooms if room != pot])
        sources[room] = (*sources[room], item)
    closed_doors = random.sample(doors, min(level.locked + level.crates, len(doors)))
    crates = {random.choice(pair): pair for pair in closed_doors[level.locked :]}
    return KitchenLayout(
        rooms,
        tuple(sorted(doors)),
        narrow,
        {room: items for room, items in sources.items() if items},
        pot,
        hatch,
        _draw_starts(random, rooms, wide_rooms, players),
        dishes,
        tuple(sorted(closed_doors[: level.locked])),
        tuple(random.choice(rooms) for _ in closed_doors[: level.locked]),
        {room: b if room == a else a for room, (a, b) in crates.items()},
    )


def _draw_starts(random: Random, rooms: Sequence[str], wide_rooms: Sequence[str], players: int) -> tuple[str, ...]:
    """Draw the players' start rooms; a narrow room gets at most one player while rooms remain."""
    free_rooms, starts = list(rooms), list[str]()
    for _ in range(players):
        room = random.choice(free_rooms or list(rooms))
        starts.append(room)
        if room not in wide_rooms and room in free_rooms:
            free_rooms.remove(room)
    return tuple(starts)


def _draw_dishes(random: Random, level: KitchenLevel) -> tuple[tuple[str, ...], ...]:
    """Draw distinct dishes."""
    dishes: list[tuple[str, ...]] = []
    while len(dishes) < level.orders:
        dish = tuple(sorted(random.choices(INGREDIENTS, k=level.size)))
        if dish not in dishes:
            dishes.append(dish)
    return tuple(dishes)
