"""Scripted policy for kitchens: the first player fetches and cooks, and the others bring plates and serve.

Players use their views and the last messages: "leek soup is ready", "leek soup is taken".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from marft.envs.scripts import Cue
from marft_envs.rooms.layout import CRATE, HATCH, KEY, PLATE, POT
from marft_envs.rooms.sight import ORDERS, Sight, sight
from marft_envs.rooms.state import DROP, FILL, LIFT, SERVE, SHELVE, TAKE_SOUP, WAIT
from marft_envs.rooms.words import HELP, IN_POT, READY, TAKEN, Answer


class Line(NamedTuple):
    """An action with its message.

    Args:
        act: the action.
        said: message to the other players; "" for none.
        wanted: thing that the action is for; "" for none.
    """

    act: str
    said: str = ""
    wanted: str = ""

    @property
    def answer(self) -> Answer:
        """The action and its message, without ``wanted``."""
        return Answer(self.act, self.said)


def cooks(seen: Sight) -> Line:
    """Return the cook's action: bring the next dish's ingredients to the pot and report its content."""
    words = ""
    if seen.pot and seen.pot.endswith("soup"):
        words = seen.pot + READY
    elif seen.pot and seen.pot != "empty":
        words = IN_POT + seen.pot
    said = words or seen.own
    missing = _missing(seen, said)
    free = seen.pot is not None and seen.pot != "cooking" and not seen.pot.endswith("soup")
    if HELP in seen.others and (helped := _help(seen)):
        act = helped
    elif seen.holds and seen.holds != KEY:
        act = _bring(seen, said, missing, free)
    elif seen.pot == "cooking":
        act = WAIT
    elif missing:
        act = _fetch(seen, missing[0])
    else:
        act = _leave(seen)
    return _spoken(seen, act, words)


def serves(seen: Sight) -> Line:
    """Return a waiter's action: hold a plate ready, take a soup reported as ready, and serve it."""
    words = seen.holds + TAKEN if seen.holds.endswith("soup") else ""
    ready = [dish for dish in seen.dishes if dish + READY in seen.others and dish + TAKEN not in seen.others]
    if HELP in seen.others and (helped := _help(seen)):
        act = helped
    elif seen.holds.endswith("soup"):
        act = f"{HATCH}: {SERVE}" if HATCH in seen.here else _go(seen, HATCH)
        act = act if seen.holds in seen.dishes else DROP
    elif seen.holds == PLATE:
        if seen.pot and seen.pot.endswith("soup"):
            act = f"{POT}: {TAKE_SOUP}"
        elif ready:
            act = _go(seen, POT)
        else:
            act = _stand_by(seen)
    else:
        act = DROP if seen.holds and seen.holds != KEY else _fetch(seen, PLATE)
    return _spoken(seen, act, words)


class Script:
    """Scripted policy for all players.

    Args:
        names: names of the players, cook first.
        steered_by: role that controls all players; "" if each role controls its own player.
        skill: fraction of well-played turns.
        by_thing: True if views list things; the policy then names the thing it wants instead of an action.
    """

    def __init__(self, names: Sequence[str], steered_by: str = "", skill: float = 1.0, by_thing: bool = False) -> None:
        self.names, self.steered_by, self.skill, self.by_thing = names, steered_by, skill, by_thing

    def __call__(self, cue: Cue) -> str:
        """Return the agent's text."""
        shown = _last_view(cue)
        if cue.role != self.steered_by:
            return self._said(cue, self._line(sight(shown), cue.role, cue.random))
        acting = [name for name in self.names if f"\n{name}: " in f"\n{shown}"]
        lines = {name: self._line(sight(shown, name, self.names), name, cue.random) for name in acting}
        if cue.options:
            return self._said(cue, lines[acting[0]])
        return "\n".join(f"{name}: {self._text(line)}" for name, line in lines.items())

    def _line(self, seen: Sight, name: str, random: Random) -> Line:
        best = (cooks if name == self.names[0] else serves)(seen)
        return best if random.random() < self.skill else _habit(seen, best, random)

    def _said(self, cue: Cue, line: Line) -> str:
        if cue.options:
            return line.act if line.act in cue.options else cue.random.choice(cue.options)
        return self._text(line)

    def _text(self, line: Line) -> str:
        act = line.wanted if self.by_thing and line.wanted else line.act
        return f"{act}; say {line.said}" if line.said else act


def _last_view(cue: Cue) -> str:
    """Return the agent's last view; messages from others may follow the view."""
    return next(
        str(message["content"]) for message in reversed(cue.chat) if ORDERS.search(str(message["content"]))
    )  # fmt: skip


def _habit(seen: Sight, best: Line, random: Random) -> Line:
    """Return a weak player's action: withhold the message, go through a random door, or wait."""
    strays = [f"go {way.room}" for way in seen.ways if not way.shut]
    if best.said and random.random() < 0.6:
        return best._replace(said="")
    return Line(random.choice(strays)) if strays and random.random() < 0.5 else Line(WAIT)


def _spoken(seen: Sight, act: str, words: str) -> Line:
    """Split a prefix ``thing: `` off an action, and add a message only if it is new."""
    wanted, _, act = act.rpartition(": ")
    words = HELP if act == LIFT else words
    return Line(act, "" if words == seen.own else words, wanted)


def _missing(seen: Sight, said: str) -> list[str]:
    """Return the ingredients still missing in the next dish, to the cook's knowledge.

    The next dish is the one after the last dish that the cook reported as ready.
    """
    dishes = list(seen.dishes)
    ready = said.removesuffix(READY)
    if said.endswith(READY) and ready in dishes:
        dishes = dishes[dishes.index(ready) + 1 :]
    if not dishes:
        return []
    inside = Counter(said.removeprefix(IN_POT).split(", ") if said.startswith(IN_POT) else [])
    return list((Counter(dishes[0].split()[:-1]) - inside).elements())


def _bring(seen: Sight, said: str, missing: Sequence[str], free: bool) -> str:
    """Return the cook's action with full hands."""
    if seen.holds.endswith("soup") and seen.holds in seen.dishes:
        return f"{HATCH}: {SERVE}" if HATCH in seen.here else _go(seen, HATCH)
    if seen.holds not in missing:
        return DROP
    if free:
        return f"{POT}: {FILL}"
    if seen.pot is not None:  # a soup, in this room
        return _leave(seen)
    waits = said.removesuffix(READY)
    busy = said.endswith(READY) and waits in seen.dishes and waits + TAKEN not in seen.others
    way = seen.way(POT)
    return WAIT if busy and way and way.narrow else _go(seen, POT)


def _fetch(seen: Sight, thing: str) -> str:
    if thing not in seen.here:
        return _go(seen, thing)
    return SHELVE if seen.holds else f"{thing}: take {thing}"


def _stand_by(seen: Sight) -> str:
    """Return an action that waits near the pot without blocking the way."""
    if seen.pot is not None:
        return _leave(seen)
    way = seen.way(POT)
    return WAIT if way and way.narrow else _go(seen, POT)


def _leave(seen: Sight) -> str:
    """Return an action that leaves a narrow room, toward wide rooms with many things behind them."""
    out = [way for way in seen.ways if not way.shut]
    if not seen.narrow or not out:
        return WAIT
    return f"go {max(out, key=lambda way: (not way.narrow, len(way.things))).room}"


def _help(seen: Sight) -> str:
    """Return an action toward the crate; "" if no crate is left."""
    if CRATE in seen.here:
        return LIFT
    return _go(seen, CRATE) if seen.way(CRATE) else ""


def _go(seen: Sight, thing: str) -> str:
    """Return an action toward a thing: go through the door, or remove its obstacle."""
    way = seen.way(thing)
    if not way:
        return WAIT
    if way.shut == "behind a crate":
        return LIFT if CRATE in seen.here else WAIT
    if way.shut != "locked":
        return f"{thing}: go {way.room}"
    if seen.holds == KEY:
        return f"open {way.room}"
    if f"{KEY} on the shelf" in seen.here:
        return DROP if seen.holds else f"take {KEY}"
    key = seen.way(KEY)
    return f"go {key.room}" if key and not key.shut else WAIT
