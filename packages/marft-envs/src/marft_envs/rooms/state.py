"""State of a kitchen during an episode: players, objects, and the effects of actions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from marft_envs.rooms.layout import CRATE, HATCH, KEY, PLATE, POT, Door, Layout, door, soup

WAIT, LIFT, SERVE, DROP, SHELVE, FILL = "wait", "lift", "serve", "drop", "put shelf", "put pot"
TAKE_SOUP = "take soup"
SHOWN = 40  # maximum characters of an invalid action in the feedback


@dataclass
class Player:
    """A player.

    Args:
        name: the player's name.
        room: the player's room.
        holds: thing in the player's hands; "" for nothing.
        free: time step from which the player can act again.
        told: feedback on the player's last action; "" if it succeeded without notice.
        said: the player's last message.
    """

    name: str
    room: str
    holds: str = ""
    free: int = 0
    told: str = ""
    said: str = ""


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

    layout: Layout
    players: Sequence[Player]
    walk: int = 1
    boil: int = 0
    time: int = 0
    pot: list[str] = field(default_factory=list)
    ready: int = 0  # time step from which a full pot is soup
    shelves: dict[str, str] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)  # dishes still to be served
    locked: set[Door] = field(default_factory=set)
    crates: dict[str, str] = field(default_factory=dict)
    lifting: set[str] = field(default_factory=set)  # players lifting in this time step
    used: set[Door] = field(default_factory=set)  # doors used in this time step
    conflicts: int = 0  # actions made impossible by another player
    mistakes: int = 0  # impossible or invalid actions

    @classmethod
    def opened(cls, layout: Layout, names: Sequence[str], walk: int = 1, boil: int = 0) -> Kitchen:
        """Create the initial state."""
        return cls(
            layout, [Player(name, room) for name, room in zip(names, layout.starts, strict=True)], walk, boil,
            open=list(layout.dishes), locked=set(layout.locked), crates=dict(layout.crates),
            shelves=dict.fromkeys(layout.keys, KEY),
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Ingredients per dish."""
        return len(self.layout.orders[0])

    @property
    def cooked(self) -> bool:
        """True if the pot contains soup."""
        return len(self.pot) == self.size and self.time >= self.ready

    def within(self, room: str) -> list[Player]:
        """Return the players in a room."""
        return [player for player in self.players if player.room == room]

    def moment(self) -> str:
        """Return a key for the state, without the remaining time."""
        players = [
            (player.room, player.holds, player.free - self.time, player.told, player.said) for player in self.players
        ]
        late = self.time % len(self.players), max(0, self.ready - self.time)
        return repr((players, late, self.pot, self.shelves, self.open, sorted(self.locked), self.crates, self.lifting))

    def progress(self) -> float:
        """Return the completed fraction, by work done.

        For each dish it counts the ingredients in the pot, the soup on a plate, and the service.
        """
        each = self.size + 2
        done = each * (len(self.layout.dishes) - len(self.open))
        carried = {player.holds for player in self.players} | set(self.shelves.values())
        done += (each - 1) * sum(dish in carried for dish in self.open)
        if any(self._becomes(dish) for dish in self.open if dish not in carried):
            done += len(self.pot)
        return done / (each * len(self.layout.dishes))

    def _becomes(self, dish: str) -> bool:
        """Return True if the pot's content can become a dish."""
        left = dish.split()[:-1]
        return all(left.count(one) >= self.pot.count(one) for one in self.pot)

    def possible(self, player: Player) -> Iterator[str]:
        """Yield a player's possible actions from its own view, which does not show players in adjacent rooms."""
        here, layout = player.room, self.layout
        if player.holds:
            if player.holds == PLATE and here == layout.pot and self.cooked:
                yield TAKE_SOUP
            if here == layout.pot and self._fits(player.holds):
                yield FILL
            if here == layout.hatch and player.holds.endswith("soup"):
                yield SERVE
            if here not in self.shelves:
                yield SHELVE
            if player.holds != KEY:
                yield DROP
        else:
            yield from (f"take {thing}" for thing in layout.sources.get(here, ()))
            if here in self.shelves and self.shelves[here] not in layout.sources.get(here, ()):
                yield f"take {self.shelves[here]}"
        for room in layout.beside[here]:
            if door(here, room) in self.locked:
                if player.holds == KEY:
                    yield f"open {room}"
            elif self.crates.get(here) != room and self.crates.get(room) != here:
                yield f"go {room}"
        if here in self.crates:
            yield LIFT
        yield WAIT

    def _fits(self, thing: str) -> bool:
        """Return True if a thing can go into the pot now."""
        return thing not in (PLATE, KEY) and not thing.endswith("soup") and len(self.pot) < self.size

    def begin(self) -> None:
        """Start a time step: free every door and stop every lift."""
        self.used.clear()
        self.lifting.clear()

    def carry_out(self, player: Player, act: str, seen: Sequence[str]) -> bool:
        """Apply a player's action and return True if it served an ordered dish.

        Args:
            player: the player.
            act: the action.
            seen: actions possible at the time of the player's decision.
        """
        player.told, player.free = "", self.time + (self.walk if act.startswith("go ") else 1)
        if act not in seen:
            self.mistakes += 1
            player.told = f"You cannot {act[:SHOWN]}." if act else "That was no action."
            player.free = self.time + 1
        elif act not in set(self.possible(player)):  # another player acted first
            self._blocked(player, f"Too late to {act}.")
        elif act == SERVE:
            return self._serve(player)
        else:
            self._do(player, *act.partition(" ")[::2])
        return False

    def _do(self, player: Player, verb: str, what: str) -> None:
        here = player.room
        if verb == "go":
            self._go(player, what)
        elif verb == "take":
            self._take(player, what)
        elif verb == "open":
            self.locked.discard(door(here, what))
            player.holds = ""
        elif verb == LIFT:
            self.lifting.add(player.name)
            if sum(other.name in self.lifting for other in self.within(here)) > 1:
                del self.crates[here]
        elif verb == "put":
            if what == POT:
                self.pot.append(player.holds)
                self.ready = self.time + 1 + self.boil
            else:
                self.shelves[here] = player.holds
            player.holds = ""
        elif verb == DROP:
            player.holds = ""

    def _go(self, player: Player, room: str) -> None:
        way = door(player.room, room)
        if way in self.used:
            self._blocked(player, f"The door to the {room} was in use.")
        elif room in self.layout.narrow and self.within(room):
            self._blocked(player, f"The {room} was full.")
        else:
            self.used.add(way)
            player.room = room

    def _take(self, player: Player, thing: str) -> None:
        if thing == "soup":
            player.holds = soup(self.pot)
            self.pot.clear()
        elif thing in self.layout.sources.get(player.room, ()):
            player.holds = thing
        else:
            player.holds = self.shelves.pop(player.room)

    def _serve(self, player: Player) -> bool:
        dish, player.holds = player.holds, ""
        served = dish in self.open
        if served:
            self.open.remove(dish)
        player.told = "Served." if served else f"Nobody ordered {dish}."
        self.mistakes += not served
        return served

    def _blocked(self, player: Player, why: str) -> None:
        self.conflicts += 1
        player.told, player.free = why, self.time + 1


def signs(kitchen: Kitchen, room: str) -> dict[str, list[str]]:
    """Return, for each door of a room, the things behind it on a shortest path.

    Keys and crates are included while they exist.
    """
    layout = kitchen.layout
    places: dict[str, list[str]] = {POT: [layout.pot], HATCH: [layout.hatch]}
    for source, things in layout.sources.items():
        for thing in things:
            places.setdefault(thing, []).append(source)
    places[KEY] = [place for place, thing in kitchen.shelves.items() if thing == KEY]
    places[CRATE] = list(kitchen.crates)
    found: dict[str, list[str]] = {beside: [] for beside in layout.beside[room]}
    for thing, rooms in places.items():
        if rooms and room not in rooms:
            found[layout.ways[room, _nearest(layout, room, rooms)]].append(thing)
    return found


def _nearest(layout: Layout, room: str, rooms: Sequence[str]) -> str:
    def far(goal: str) -> int:
        """Return the number of doors on a shortest path to a room."""
        at, steps = room, 0
        while at != goal:
            at, steps = layout.ways[at, goal], steps + 1
        return steps

    return min(rooms, key=far)
