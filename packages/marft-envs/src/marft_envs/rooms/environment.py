"""Plugin ``rooms``: solvable generated kitchens with several rooms, and a scripted policy.

Every kitchen is served in time by scripted players with one-room views. The first player fetches and cooks, and the
others bring plates and serve. Players use their views and the last messages: "leek soup is ready", "leek soup is
taken".
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.common.errors import UserError
from marft.common.types import Task
from marft.config.settings import Fraction, Names
from marft.envs.scripted_policy import PolicyInput
from marft_envs.generated import GeneratedEnvironment, GeneratedTask, describe_unknown_roles
from marft_envs.rooms.kitchen import (
    CRATE,
    DROP,
    HATCH,
    KEY,
    LIFT,
    PLATE,
    POT,
    PUT_IN_POT,
    PUT_ON_SHELF,
    SERVE,
    TAKE_SOUP,
    WAIT,
    KitchenLayout,
    door_between,
    layout_from_dict,
)
from marft_envs.rooms.session import RoomsSession
from marft_envs.rooms.views import (
    HELP_REQUEST,
    ORDER_LINE,
    POT_PREFIX,
    READY_SUFFIX,
    TAKEN_SUFFIX,
    ParsedView,
    PlayerAction,
    parse_view,
)


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


ROOMS = ("attic", "cellar", "garden", "hall", "kitchen", "larder", "pantry", "porch", "studio", "yard")
INGREDIENTS = ("bean", "corn", "leek", "onion", "pea", "pepper", "rice", "tomato")
MAX_RUN_TIME = 500  # maximum time steps of a scripted run; no kitchen needs as many
MAX_ATTEMPTS = 200  # maximum kitchens drawn for one task


def draw_kitchen(random: Random, settings: Rooms) -> tuple[KitchenLayout, int, int]:
    """Generate a kitchen, its deadline in time steps, and the number of environment steps of a scripted run.

    Raises:
        UserError: scripted players finished none of ``MAX_ATTEMPTS`` kitchens.
    """
    for _ in range(MAX_ATTEMPTS):
        layout = _draw_layout(random, settings)
        time, steps = simulate_run(layout, settings)
        if time:
            return layout, math.ceil(time * (1 + settings.slack)), steps
    raise UserError(
        f"environment: none of {MAX_ATTEMPTS} kitchens could be run with rooms = {settings.rooms}, narrow = "
        f"{settings.narrow:g}, locked = {settings.locked} and crates = {settings.crates}; make fewer rooms "
        "narrow, or shut fewer doors"
    )


def simulate_run(layout: KitchenLayout, settings: Rooms) -> tuple[int, int]:
    """Return the time steps and environment steps of a scripted run in which each player sees only its own room.

    Both are 0 if the run fails or repeats a state.
    """
    session = RoomsSession(layout, MAX_RUN_TIME, settings.model_copy(update={"controller": ""}))
    observation, states_seen, steps = session.reset_sync(), set[str](), 0
    while (state_key := session.kitchen.state_key()) not in states_seen:
        states_seen.add(state_key)
        views = {role: parse_view(observation.for_role(role)) for role in observation.turn}
        lines = {
            role: (cook_action if role == settings.players[0] else waiter_action)(view) for role, view in views.items()
        }
        step = session.step_sync({role: line.player_action for role, line in lines.items()})
        steps += 1
        if step.terminated:
            return (session.kitchen.time, steps) if step.success else (0, 0)
        observation = step.observation
    return 0, 0


def symmetry_invariant_text(layout: KitchenLayout) -> str:
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
    if layout.crates.get(room) == neighbor:
        return "crate here"
    return "crate there" if layout.crates.get(neighbor) == room else ""


def _draw_layout(random: Random, settings: Rooms) -> KitchenLayout:
    rooms = tuple(random.sample(ROOMS, settings.rooms))
    doors = [door_between(rooms[index], rooms[random.randrange(index)]) for index in range(1, len(rooms))]
    other_doors = [
        pair for a in range(len(rooms)) for b in range(a) if (pair := door_between(rooms[a], rooms[b])) not in doors
    ]
    doors += random.sample(other_doors, min(settings.loops, len(other_doors)))
    narrow = tuple(room for room in rooms if random.random() < settings.narrow)
    wide_rooms = [room for room in rooms if room not in narrow]
    dishes = _draw_dishes(random, settings)
    pot = random.choice(rooms)
    hatch, plates = (random.choice([room for room in rooms if room != pot]) for _ in range(2))
    sources: dict[str, tuple[str, ...]] = dict.fromkeys(rooms, ())
    needed_items = sorted({item for dish in dishes for item in dish})
    extra_items = [item for item in INGREDIENTS if item not in needed_items]
    for item in ("plate", *needed_items, *random.sample(extra_items, min(settings.others, len(extra_items)))):
        room = plates if item == "plate" else random.choice([room for room in rooms if room != pot])
        sources[room] = (*sources[room], item)
    closed_doors = random.sample(doors, min(settings.locked + settings.crates, len(doors)))
    crates = {random.choice(pair): pair for pair in closed_doors[settings.locked :]}
    return KitchenLayout(
        rooms,
        tuple(sorted(doors)),
        narrow,
        {room: items for room, items in sources.items() if items},
        pot,
        hatch,
        _draw_starts(random, rooms, wide_rooms, len(settings.players)),
        dishes,
        tuple(sorted(closed_doors[: settings.locked])),
        tuple(random.choice(rooms) for _ in closed_doors[: settings.locked]),
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


def _draw_dishes(random: Random, settings: Rooms) -> tuple[tuple[str, ...], ...]:
    """Draw distinct dishes."""
    dishes: list[tuple[str, ...]] = []
    while len(dishes) < settings.orders:
        dish = tuple(sorted(random.choices(INGREDIENTS, k=settings.size)))
        if dish not in dishes:
            dishes.append(dish)
    return tuple(dishes)


# words at the start of a view's lines, and objects in rooms; players cannot have these names
RESERVED_WORDS = {"you", "here", "orders", "nothing", PLATE, KEY, CRATE, HATCH, POT, *INGREDIENTS}


class Rooms(GeneratedEnvironment):
    """Multi-room kitchens: players fetch ingredients, cook, bring plates and serve the orders before the deadline.

    Each player sees only its own room. Narrow rooms and doors hold one player at a time, and crates need two
    players.

    Scripted players with the same views finished every kitchen in time, so every kitchen is solvable.
    """

    stream: ClassVar[str] = "Rooms"
    relays_messages: ClassVar[bool] = True
    controls_turns: ClassVar[bool] = True
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    max_idle_draws: ClassVar[int] = 1000  # each draw is a kitchen with a scripted run

    players: Annotated[Names, Field(min_length=2, max_length=4)] = Field(
        default=("cook", "waiter"), description="roles of the players"
    )
    controller: str = Field(
        default="",
        description=(
            'role that controls every player, in lines such as `cook: go hall`; "": each role controls its own player'
        ),
    )
    order: Literal["simultaneous", "sequential"] = Field(
        default="simultaneous",
        description="turn order: free players act at once, or one at a time after the previous result",
    )
    actions: Literal["write", "choose"] = Field(
        default="write",
        description=(
            "write: agents write actions; choose: agents choose a possible action, and the environment sends messages "
            "about the cooking"
        ),
    )
    signs: Literal["by door", "by thing"] = Field(
        default="by door", description="content of the signs: the things behind each door, or the way to each thing"
    )
    rooms: Annotated[int, Field(ge=2, le=len(ROOMS))] = Field(default=4, description="number of rooms")
    orders: Annotated[int, Field(ge=1, le=6)] = Field(default=1, description="number of different ordered dishes")
    size: Annotated[int, Field(ge=1, le=3)] = Field(default=1, description="ingredients per dish")
    others: Annotated[int, Field(ge=0, le=len(INGREDIENTS))] = Field(
        default=1, description="number of available ingredients without a dish"
    )
    narrow: Fraction = Field(default=0.5, description="probability that a room has space for only one player")
    loops: Annotated[int, Field(ge=0, le=10)] = Field(
        default=0, description="doors beyond the minimum needed to connect the rooms"
    )
    locked: Annotated[int, Field(ge=0, le=2)] = Field(
        default=0, description="number of locked doors; their keys lie on shelves"
    )
    crates: Annotated[int, Field(ge=0, le=2)] = Field(
        default=0, description="number of doors behind a crate that two players must lift"
    )
    walk: Annotated[int, Field(ge=1, le=3)] = Field(default=1, description="time steps to go through a door")
    boil: Annotated[int, Field(ge=0, le=9)] = Field(default=0, description="time steps to cook a full pot")
    slack: Annotated[float, Field(ge=0, le=10)] = Field(
        default=0.5, description="extra time until the deadline, as a fraction of the scripted run's time"
    )
    reward: Literal["served", "progress"] = Field(
        default="served", description="rewarded events: each served dish, or each part of the work, minus undone work"
    )
    time_bonus: Fraction = Field(default=0.0, description="fraction of the reward for the time left at the end")

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        if self.controller and self.actions == "choose" and self.order == "simultaneous":
            raise PydanticCustomError(
                "order", 'one agent that chooses for all does so one after another: order = "sequential"'
            )
        if self.size == 1 and self.orders > len(INGREDIENTS):
            raise PydanticCustomError("orders", "more orders than there are dishes of one ingredient")
        names = [name.lower() for name in self.players]
        are_words = all(re.fullmatch(r"\w+", name) for name in names)
        if len(set(names)) < len(names) or RESERVED_WORDS & set(names) or not are_words:
            raise PydanticCustomError(
                "players",
                "names of players must be words, differ in more than case, and be no word of the views: {words}",
                {"words": ", ".join(sorted(RESERVED_WORDS))},
            )
        return self

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error for each player without an agent."""
        named = {"controller": (self.controller,)} if self.controller else {"players": self.players}
        return describe_unknown_roles(named, roles)

    @property
    def offers_options(self) -> bool:  # type: ignore[override]
        """True if players choose between options."""
        return self.actions == "choose"

    @property
    def by_item(self) -> bool:
        """True if views list the way to each thing instead of the things behind each door.

        A player then acts by naming a thing.
        """
        return self.signs == "by thing"

    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate a solvable kitchen."""
        layout, deadline, steps = draw_kitchen(random, self)
        prompt = RoomsSession(layout, deadline, self).reset_sync().full_text
        return GeneratedTask(
            symmetry_invariant_text(layout), prompt, {**layout.to_dict(), "deadline": deadline, "fewest_steps": steps}
        )

    def start(self, task: Task, seed: int) -> RoomsSession:  # noqa: ARG002  no randomness in an episode
        """Start an attempt in a kitchen."""
        return RoomsSession(layout_from_dict(task.data), task.data["deadline"], self)

    def script(self, skill: float = 1.0) -> RoomsScript:
        """Return a scripted policy for a cook and waiters; they announce their needs to each other."""
        return RoomsScript(self.players, self.controller, skill, self.by_item)
