"""A kitchen while it is played: who is where with what, and what an act does to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from marft_envs.rooms.layout import CRATE, HATCH, KEY, PLATE, POT, Door, Layout, door, soup

WAIT, LIFT, SERVE, DROP, SHELVE, FILL = "wait", "lift", "serve", "drop", "put shelf", "put pot"
TAKE_SOUP = "take soup"
SHOWN = 40  # characters of an act that is none


@dataclass
class Player:
    """One body.

    Args:
        free: the time from which on it can act again.
        told: how its last act came out, where that is not plain.
    """

    name: str
    room: str
    holds: str = ""
    free: int = 0
    told: str = ""
    said: str = ""


@dataclass
class Kitchen:
    """What changes. Acts are carried out one after the other; each is told whether that was possible.

    Args:
        walk: how long it takes to go through a door, and ``boil`` a full pot to become soup.
    """

    layout: Layout
    players: Sequence[Player]
    walk: int = 1
    boil: int = 0
    time: int = 0
    pot: list[str] = field(default_factory=list)
    ready: int = 0  # the time from which on a full pot is soup
    shelves: dict[str, str] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)  # dishes that are still to be served
    locked: set[Door] = field(default_factory=set)
    crates: dict[str, str] = field(default_factory=dict)
    lifting: set[str] = field(default_factory=set)  # who lifts now
    used: set[Door] = field(default_factory=set)  # doors that somebody went through now
    conflicts: int = 0  # acts that somebody else has made impossible
    mistakes: int = 0  # acts that were not possible, or none

    @classmethod
    def opened(cls, layout: Layout, names: Sequence[str], walk: int = 1, boil: int = 0) -> Kitchen:
        """As it is in the beginning."""
        return cls(
            layout, [Player(name, room) for name, room in zip(names, layout.starts, strict=True)], walk, boil,
            open=list(layout.dishes), locked=set(layout.locked), crates=dict(layout.crates),
            shelves=dict.fromkeys(layout.keys, KEY),
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Ingredients of a dish."""
        return len(self.layout.orders[0])

    @property
    def cooked(self) -> bool:
        """Whether there is soup in the pot."""
        return len(self.pot) == self.size and self.time >= self.ready

    def within(self, room: str) -> list[Player]:
        """Who is in a room."""
        return [player for player in self.players if player.room == room]

    def moment(self) -> str:
        """All that what comes next hangs on, but for how much time is left."""
        players = [
            (player.room, player.holds, player.free - self.time, player.told, player.said) for player in self.players
        ]
        late = self.time % len(self.players), max(0, self.ready - self.time)
        return repr((players, late, self.pot, self.shelves, self.open, sorted(self.locked), self.crates, self.lifting))

    def progress(self) -> float:
        """Share of the work that is done: of each dish its ingredients in the pot, the soup on a plate, the service."""
        each = self.size + 2
        done = each * (len(self.layout.dishes) - len(self.open))
        carried = {player.holds for player in self.players} | set(self.shelves.values())
        done += (each - 1) * sum(dish in carried for dish in self.open)
        if any(self._becomes(dish) for dish in self.open if dish not in carried):
            done += len(self.pot)
        return done / (each * len(self.layout.dishes))

    def _becomes(self, dish: str) -> bool:
        """Whether what is in the pot may become a dish."""
        left = dish.split()[:-1]
        return all(left.count(one) >= self.pot.count(one) for one in self.pot)

    def possible(self, player: Player) -> Iterator[str]:
        """What a player can do as far as it can see: who is in the next room, it cannot."""
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
        """Whether something can go into the pot now."""
        return thing not in (PLATE, KEY) and not thing.endswith("soup") and len(self.pot) < self.size

    def begin(self) -> None:
        """A new moment: nobody is in a door, or lifts, any more."""
        self.used.clear()
        self.lifting.clear()

    def carry_out(self, player: Player, act: str, seen: Sequence[str]) -> bool:
        """Let a player do something → whether a dish that was ordered has been served.

        Args:
            seen: what was possible when it decided.
        """
        player.told, player.free = "", self.time + (self.walk if act.startswith("go ") else 1)
        if act not in seen:
            self.mistakes += 1
            player.told = f"You cannot {act[:SHOWN]}." if act else "That was no action."
            player.free = self.time + 1
        elif act not in set(self.possible(player)):  # somebody else came first
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
    """By door of a room, the things that are behind it on the shortest way; keys and crates while they are there."""
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
        at, steps = room, 0
        while at != goal:
            at, steps = layout.ways[at, goal], steps + 1
        return steps

    return min(rooms, key=far)
