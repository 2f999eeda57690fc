"""A kitchen: its layout, fixed during an episode, and its state, with players, objects and the effects of actions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

POT, HATCH, PLATE, KEY, CRATE = "pot", "hatch", "plate", "key", "crate"
Door = tuple[str, str]  # the two rooms, in alphabetical order


def door_between(a: str, b: str) -> Door:
    """Return the door between two rooms.

    >>> door_between("pantry", "attic")
    ('attic', 'pantry')
    """
    return (a, b) if a < b else (b, a)


def soup_name(ingredients: Sequence[str]) -> str:
    """Return a soup's name from its ingredients.

    >>> soup_name(["onion", "leek"])
    'leek onion soup'
    """
    return " ".join([*sorted(ingredients), "soup"])


@dataclass(frozen=True)
class KitchenLayout:
    """A kitchen.

    Args:
        rooms: names of the rooms.
        doors: the doors.
        narrow: rooms for one player only.
        sources: by room, things in unlimited supply: ingredients and plates.
        pot: room with the pot.
        hatch: room with the hatch, where dishes are served.
        starts: start room of each player.
        orders: ingredients of each dish; all dishes differ.
        locked: doors that need a key.
        keys: rooms in which keys lie.
        crates: by room with a crate, the room behind the crate.
    """

    rooms: tuple[str, ...]
    doors: tuple[Door, ...]
    narrow: tuple[str, ...]
    sources: Mapping[str, tuple[str, ...]]
    pot: str
    hatch: str
    starts: tuple[str, ...]
    orders: tuple[tuple[str, ...], ...]
    locked: tuple[Door, ...] = ()
    keys: tuple[str, ...] = ()
    crates: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def dishes(self) -> tuple[str, ...]:
        """Names of the ordered dishes."""
        return tuple(soup_name(order) for order in self.orders)

    @cached_property
    def neighbors(self) -> Mapping[str, tuple[str, ...]]:
        """Adjacent rooms, by room."""
        return {room: tuple(b if a == room else a for a, b in self.doors if room in (a, b)) for room in self.rooms}

    @cached_property
    def next_rooms(self) -> Mapping[tuple[str, str], str]:
        """Next room on a shortest path, by pair of rooms."""
        next_by_pair: dict[tuple[str, str], str] = {}
        for goal in self.rooms:
            queue = deque([goal])
            while queue:
                current = queue.popleft()
                for room in self.neighbors[current]:
                    if room != goal and (room, goal) not in next_by_pair:
                        next_by_pair[room, goal] = current
                        queue.append(room)
        return next_by_pair

    def to_dict(self) -> dict[str, object]:
        """Return the layout in plain values."""
        return {key: _to_plain(value) for key, value in asdict(self).items()}


def layout_from_dict(data: Mapping[str, Any]) -> KitchenLayout:
    """Rebuild the layout from a task's data."""
    tables: dict[str, Any] = {key: tuple(data[key]) for key in ("rooms", "narrow", "starts", "keys")}
    tables |= {key: tuple((a, b) for a, b in data[key]) for key in ("doors", "locked")}
    return KitchenLayout(
        **tables,
        pot=data["pot"],
        hatch=data["hatch"],
        crates=dict(data["crates"]),
        sources={room: tuple(items) for room, items in data["sources"].items()},
        orders=tuple(tuple(order) for order in data["orders"]),
    )


def _to_plain(value: object) -> object:
    if isinstance(value, tuple | list):
        return [_to_plain(item) for item in value]
    return {key: _to_plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value


WAIT, LIFT, SERVE, DROP, PUT_ON_SHELF, PUT_IN_POT = "wait", "lift", "serve", "drop", "put shelf", "put pot"
TAKE_SOUP = "take soup"
MAX_SHOWN = 40  # maximum characters of an invalid action in the feedback


@dataclass
class Player:
    """A player.

    Args:
        name: the player's name.
        room: the player's room.
        holds: thing in the player's hands; "" for nothing.
        free_at: time step from which the player can act again.
        feedback: feedback on the player's last action; "" if it succeeded without notice.
        message: the player's last message.
    """

    name: str
    room: str
    holds: str = ""
    free_at: int = 0
    feedback: str = ""
    message: str = ""


@dataclass
class Kitchen:
    """Mutable state of a kitchen.

    Actions are applied one after another. A player gets feedback if its action was impossible.

    Args:
        layout: the layout.
        players: the players.
        walk: time steps to go through a door.
        boil: time steps to cook a full pot.
        time: current time step.
        pot: ingredients in the pot.
    """

    layout: KitchenLayout
    players: Sequence[Player]
    walk: int = 1
    boil: int = 0
    time: int = 0
    pot: list[str] = field(default_factory=list)
    ready_at: int = 0  # time step from which a full pot is soup
    shelves: dict[str, str] = field(default_factory=dict)
    open_orders: list[str] = field(default_factory=list)  # dishes still to be served
    locked: set[Door] = field(default_factory=set)
    crates: dict[str, str] = field(default_factory=dict)
    lifters: set[str] = field(default_factory=set)  # players lifting in this time step
    used_doors: set[Door] = field(default_factory=set)  # doors used in this time step
    conflicts: int = 0  # actions made impossible by another player
    invalid_actions: int = 0  # impossible or invalid actions

    @classmethod
    def from_layout(cls, layout: KitchenLayout, names: Sequence[str], walk: int = 1, boil: int = 0) -> Kitchen:
        """Create the initial state."""
        return cls(
            layout,
            [Player(name, room) for name, room in zip(names, layout.starts, strict=True)],
            walk,
            boil,
            open_orders=list(layout.dishes),
            locked=set(layout.locked),
            crates=dict(layout.crates),
            shelves=dict.fromkeys(layout.keys, KEY),
        )

    @property
    def size(self) -> int:
        """Ingredients per dish."""
        return len(self.layout.orders[0])

    @property
    def has_soup(self) -> bool:
        """True if the pot contains soup."""
        return len(self.pot) == self.size and self.time >= self.ready_at

    def players_in(self, room: str) -> list[Player]:
        """Return the players in a room."""
        return [player for player in self.players if player.room == room]

    def state_key(self) -> str:
        """Return a key for the state, without the remaining time."""
        players = [
            (player.room, player.holds, player.free_at - self.time, player.feedback, player.message)
            for player in self.players
        ]
        time_offsets = self.time % len(self.players), max(0, self.ready_at - self.time)
        return repr(
            (
                players,
                time_offsets,
                self.pot,
                self.shelves,
                self.open_orders,
                sorted(self.locked),
                self.crates,
                self.lifters,
            )
        )

    def progress(self) -> float:
        """Return the completed fraction, by work done.

        For each dish it counts the ingredients in the pot, the soup on a plate, and the service.
        """
        parts_per_dish = self.size + 2
        parts_done = parts_per_dish * (len(self.layout.dishes) - len(self.open_orders))
        items_carried = {player.holds for player in self.players} | set(self.shelves.values())
        parts_done += (parts_per_dish - 1) * sum(dish in items_carried for dish in self.open_orders)
        if any(self._can_become(dish) for dish in self.open_orders if dish not in items_carried):
            parts_done += len(self.pot)
        return parts_done / (parts_per_dish * len(self.layout.dishes))

    def _can_become(self, dish: str) -> bool:
        """Return True if the pot's content can become a dish."""
        needed = dish.split()[:-1]
        return all(needed.count(ingredient) >= self.pot.count(ingredient) for ingredient in self.pot)

    def possible_actions(self, player: Player) -> Iterator[str]:
        """Yield a player's possible actions from its own view, which does not show players in adjacent rooms."""
        room_name, layout = player.room, self.layout
        if player.holds:
            if player.holds == PLATE and room_name == layout.pot and self.has_soup:
                yield TAKE_SOUP
            if room_name == layout.pot and self._fits_pot(player.holds):
                yield PUT_IN_POT
            if room_name == layout.hatch and player.holds.endswith("soup"):
                yield SERVE
            if room_name not in self.shelves:
                yield PUT_ON_SHELF
            if player.holds != KEY:
                yield DROP
        else:
            yield from (f"take {item}" for item in layout.sources.get(room_name, ()))
            if room_name in self.shelves and self.shelves[room_name] not in layout.sources.get(room_name, ()):
                yield f"take {self.shelves[room_name]}"
        for room in layout.neighbors[room_name]:
            if door_between(room_name, room) in self.locked:
                if player.holds == KEY:
                    yield f"open {room}"
            elif self.crates.get(room_name) != room and self.crates.get(room) != room_name:
                yield f"go {room}"
        if room_name in self.crates:
            yield LIFT
        yield WAIT

    def _fits_pot(self, item: str) -> bool:
        """Return True if a thing can go into the pot now."""
        return item not in (PLATE, KEY) and not item.endswith("soup") and len(self.pot) < self.size

    def start_time_step(self) -> None:
        """Start a time step: free every door and stop every lift."""
        self.used_doors.clear()
        self.lifters.clear()

    def apply_action(self, player: Player, action: str, offered_actions: Sequence[str]) -> bool:
        """Apply a player's action and return True if it served an ordered dish.

        Args:
            player: the player.
            action: the action.
            offered_actions: actions possible at the time of the player's decision.
        """
        player.feedback, player.free_at = "", self.time + (self.walk if action.startswith("go ") else 1)
        if action not in offered_actions:
            self.invalid_actions += 1
            player.feedback = f"You cannot {action[:MAX_SHOWN]}." if action else "That was no action."
            player.free_at = self.time + 1
        elif action not in set(self.possible_actions(player)):  # another player acted first
            self._block_player(player, f"Too late to {action}.")
        elif action == SERVE:
            return self._serve_dish(player)
        else:
            self._execute(player, *action.partition(" ")[::2])
        return False

    def _execute(self, player: Player, verb: str, target: str) -> None:
        room_name = player.room
        if verb == "go":
            self._move(player, target)
        elif verb == "take":
            self._take_item(player, target)
        elif verb == "open":
            self.locked.discard(door_between(room_name, target))
            player.holds = ""
        elif verb == LIFT:
            self.lifters.add(player.name)
            if sum(other.name in self.lifters for other in self.players_in(room_name)) > 1:
                del self.crates[room_name]
        elif verb == "put":
            if target == POT:
                self.pot.append(player.holds)
                self.ready_at = self.time + 1 + self.boil
            else:
                self.shelves[room_name] = player.holds
            player.holds = ""
        elif verb == DROP:
            player.holds = ""

    def _move(self, player: Player, room: str) -> None:
        used_door = door_between(player.room, room)
        if used_door in self.used_doors:
            self._block_player(player, f"The door to the {room} was in use.")
        elif room in self.layout.narrow and self.players_in(room):
            self._block_player(player, f"The {room} was full.")
        else:
            self.used_doors.add(used_door)
            player.room = room

    def _take_item(self, player: Player, item: str) -> None:
        if item == "soup":
            player.holds = soup_name(self.pot)
            self.pot.clear()
        elif item in self.layout.sources.get(player.room, ()):
            player.holds = item
        else:
            player.holds = self.shelves.pop(player.room)

    def _serve_dish(self, player: Player) -> bool:
        dish, player.holds = player.holds, ""
        served = dish in self.open_orders
        if served:
            self.open_orders.remove(dish)
        player.feedback = "Served." if served else f"Nobody ordered {dish}."
        self.invalid_actions += not served
        return served

    def _block_player(self, player: Player, feedback: str) -> None:
        self.conflicts += 1
        player.feedback, player.free_at = feedback, self.time + 1


def items_by_door(kitchen: Kitchen, room: str) -> dict[str, list[str]]:
    """Return, for each door of a room, the things behind it on a shortest path.

    Keys and crates are included while they exist.
    """
    layout = kitchen.layout
    places: dict[str, list[str]] = {POT: [layout.pot], HATCH: [layout.hatch]}
    for source, items in layout.sources.items():
        for item in items:
            places.setdefault(item, []).append(source)
    places[KEY] = [place for place, item in kitchen.shelves.items() if item == KEY]
    places[CRATE] = list(kitchen.crates)
    items_found: dict[str, list[str]] = {neighbor: [] for neighbor in layout.neighbors[room]}
    for item, rooms in places.items():
        if rooms and room not in rooms:
            items_found[layout.next_rooms[room, _nearest_room(layout, room, rooms)]].append(item)
    return items_found


def _nearest_room(layout: KitchenLayout, room: str, rooms: Sequence[str]) -> str:
    def distance_to(goal: str) -> int:
        """Return the number of doors on a shortest path to a room."""
        current, steps = room, 0
        while current != goal:
            current, steps = layout.next_rooms[current, goal], steps + 1
        return steps

    return min(rooms, key=distance_to)
