"""Scripted policy for kitchens: the first player fetches and cooks, and the others bring plates and serve.

Players use their views and the last messages: "leek soup is ready", "leek soup is taken".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from marft.envs.scripted_policy import PolicyInput
from marft_envs.rooms.layout import CRATE, HATCH, KEY, PLATE, POT
from marft_envs.rooms.state import DROP, LIFT, PUT_IN_POT, PUT_ON_SHELF, SERVE, TAKE_SOUP, WAIT
from marft_envs.rooms.view_parser import ORDER_LINE, ParsedView, parse_view
from marft_envs.rooms.views import HELP_REQUEST, POT_PREFIX, READY_SUFFIX, TAKEN_SUFFIX, PlayerAction


class ScriptedAction(NamedTuple):
    """An action with its message.

    Args:
        action: the action.
        message: message to the other players; "" for none.
        target: thing that the action is for; "" for none.
    """

    action: str
    message: str = ""
    target: str = ""

    @property
    def player_action(self) -> PlayerAction:
        """The action and its message, without ``target``."""
        return PlayerAction(self.action, self.message)


def cook_action(view: ParsedView) -> ScriptedAction:
    """Return the cook's action: bring the next dish's ingredients to the pot and report its content."""
    report = ""
    if view.pot and view.pot.endswith("soup"):
        report = view.pot + READY_SUFFIX
    elif view.pot and view.pot != "empty":
        report = POT_PREFIX + view.pot
    last_report = report or view.own_message
    missing = _missing_ingredients(view, last_report)
    pot_is_free = view.pot is not None and view.pot != "cooking" and not view.pot.endswith("soup")
    if HELP_REQUEST in view.other_messages and (help_action := _help_lift(view)):
        action = help_action
    elif view.holds and view.holds != KEY:
        action = _bring_item(view, last_report, missing, pot_is_free)
    elif view.pot == "cooking":
        action = WAIT
    elif missing:
        action = _fetch_item(view, missing[0])
    else:
        action = _leave_room(view)
    return _make_action(view, action, report)


def waiter_action(view: ParsedView) -> ScriptedAction:
    """Return a waiter's action: hold a plate ready, take a soup reported as ready, and serve it."""
    report = view.holds + TAKEN_SUFFIX if view.holds.endswith("soup") else ""
    ready = [
        dish
        for dish in view.dishes
        if dish + READY_SUFFIX in view.other_messages and dish + TAKEN_SUFFIX not in view.other_messages
    ]
    if HELP_REQUEST in view.other_messages and (help_action := _help_lift(view)):
        action = help_action
    elif view.holds.endswith("soup"):
        action = f"{HATCH}: {SERVE}" if HATCH in view.room_items else _go_toward(view, HATCH)
        action = action if view.holds in view.dishes else DROP
    elif view.holds == PLATE:
        if view.pot and view.pot.endswith("soup"):
            action = f"{POT}: {TAKE_SOUP}"
        elif ready:
            action = _go_toward(view, POT)
        else:
            action = _wait_near_pot(view)
    else:
        action = DROP if view.holds and view.holds != KEY else _fetch_item(view, PLATE)
    return _make_action(view, action, report)


class RoomsScript:
    """Scripted policy for all players.

    Args:
        names: names of the players, cook first.
        controller: role that controls all players; "" if each role controls its own player.
        skill: fraction of well-played turns.
        by_item: True if views list things; the policy then names the thing it wants instead of an action.
    """

    def __init__(self, names: Sequence[str], controller: str = "", skill: float = 1.0, by_item: bool = False) -> None:
        self.names, self.controller, self.skill, self.by_item = names, controller, skill, by_item

    def __call__(self, cue: PolicyInput) -> str:
        """Return the agent's text."""
        view_text = _last_view_text(cue)
        if cue.role != self.controller:
            return self._respond(cue, self._choose_action(parse_view(view_text), cue.role, cue.random))
        names_in_turn = [name for name in self.names if f"\n{name}: " in f"\n{view_text}"]
        lines = {
            name: self._choose_action(parse_view(view_text, name, self.names), name, cue.random)
            for name in names_in_turn
        }
        if cue.options:
            return self._respond(cue, lines[names_in_turn[0]])
        return "\n".join(f"{name}: {self._format_action(line)}" for name, line in lines.items())

    def _choose_action(self, view: ParsedView, name: str, random: Random) -> ScriptedAction:
        best = (cook_action if name == self.names[0] else waiter_action)(view)
        return best if random.random() < self.skill else _draw_weak_action(view, best, random)

    def _respond(self, cue: PolicyInput, scripted: ScriptedAction) -> str:
        if cue.options:
            return scripted.action if scripted.action in cue.options else cue.random.choice(cue.options)
        return self._format_action(scripted)

    def _format_action(self, scripted: ScriptedAction) -> str:
        action = scripted.target if self.by_item and scripted.target else scripted.action
        return f"{action}; say {scripted.message}" if scripted.message else action


def _last_view_text(cue: PolicyInput) -> str:
    """Return the agent's last view; messages from others may follow the view."""
    return next(
        str(message["content"]) for message in reversed(cue.messages) if ORDER_LINE.search(str(message["content"]))
    )


def _draw_weak_action(view: ParsedView, best: ScriptedAction, random: Random) -> ScriptedAction:
    """Return a weak player's action: withhold the message, go through a random door, or wait."""
    moves = [f"go {door.room}" for door in view.doors if not door.obstacle]
    if best.message and random.random() < 0.6:
        return best._replace(message="")
    return ScriptedAction(random.choice(moves)) if moves and random.random() < 0.5 else ScriptedAction(WAIT)


def _make_action(view: ParsedView, action: str, message: str) -> ScriptedAction:
    """Split a prefix ``thing: `` off an action, and add a message only if it is new."""
    target, _, action = action.rpartition(": ")
    message = HELP_REQUEST if action == LIFT else message
    return ScriptedAction(action, "" if message == view.own_message else message, target)


def _missing_ingredients(view: ParsedView, last_report: str) -> list[str]:
    """Return the ingredients still missing in the next dish, to the cook's knowledge.

    The next dish is the one after the last dish that the cook reported as ready.
    """
    dishes = list(view.dishes)
    ready = last_report.removesuffix(READY_SUFFIX)
    if last_report.endswith(READY_SUFFIX) and ready in dishes:
        dishes = dishes[dishes.index(ready) + 1 :]
    if not dishes:
        return []
    in_pot = Counter(last_report.removeprefix(POT_PREFIX).split(", ") if last_report.startswith(POT_PREFIX) else [])
    return list((Counter(dishes[0].split()[:-1]) - in_pot).elements())


def _bring_item(view: ParsedView, last_report: str, missing: Sequence[str], pot_is_free: bool) -> str:
    """Return the cook's action with full hands."""
    if view.holds.endswith("soup") and view.holds in view.dishes:
        return f"{HATCH}: {SERVE}" if HATCH in view.room_items else _go_toward(view, HATCH)
    if view.holds not in missing:
        return DROP
    if pot_is_free:
        return f"{POT}: {PUT_IN_POT}"
    if view.pot is not None:  # a soup, in this room
        return _leave_room(view)
    waiting_dish = last_report.removesuffix(READY_SUFFIX)
    pot_is_busy = (
        last_report.endswith(READY_SUFFIX)
        and waiting_dish in view.dishes
        and waiting_dish + TAKEN_SUFFIX not in view.other_messages
    )
    door = view.door_toward(POT)
    return WAIT if pot_is_busy and door and door.narrow else _go_toward(view, POT)


def _fetch_item(view: ParsedView, item: str) -> str:
    if item not in view.room_items:
        return _go_toward(view, item)
    return PUT_ON_SHELF if view.holds else f"{item}: take {item}"


def _wait_near_pot(view: ParsedView) -> str:
    """Return an action that waits near the pot without blocking the way."""
    if view.pot is not None:
        return _leave_room(view)
    door = view.door_toward(POT)
    return WAIT if door and door.narrow else _go_toward(view, POT)


def _leave_room(view: ParsedView) -> str:
    """Return an action that leaves a narrow room, toward wide rooms with many things behind them."""
    open_doors = [door for door in view.doors if not door.obstacle]
    if not view.narrow or not open_doors:
        return WAIT
    return f"go {max(open_doors, key=lambda door: (not door.narrow, len(door.items))).room}"


def _help_lift(view: ParsedView) -> str:
    """Return an action toward the crate; "" if no crate is left."""
    if CRATE in view.room_items:
        return LIFT
    return _go_toward(view, CRATE) if view.door_toward(CRATE) else ""


def _go_toward(view: ParsedView, item: str) -> str:
    """Return an action toward a thing: go through the door, or remove its obstacle."""
    door = view.door_toward(item)
    if not door:
        return WAIT
    if door.obstacle == "behind a crate":
        return LIFT if CRATE in view.room_items else WAIT
    if door.obstacle != "locked":
        return f"{item}: go {door.room}"
    if view.holds == KEY:
        return f"open {door.room}"
    if f"{KEY} on the shelf" in view.room_items:
        return DROP if view.holds else f"take {KEY}"
    key_door = view.door_toward(KEY)
    return f"go {key_door.room}" if key_door and not key_door.obstacle else WAIT
