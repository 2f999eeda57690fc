"""Plugin ``rooms``: generated kitchens with several rooms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from random import Random
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.common.types import Task
from marft.config.settings import Fraction, Names, did_you_mean
from marft_envs.generated import GeneratedEnvironment, GeneratedTask
from marft_envs.rooms.generator import INGREDIENTS, ROOMS, KitchenLevel, canonical_content, draw_kitchen
from marft_envs.rooms.layout import CRATE, HATCH, KEY, PLATE, POT, layout_from_dict
from marft_envs.rooms.script import RoomsScript
from marft_envs.rooms.session import RoomsRules, RoomsSession

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

    players: Annotated[Names, Field(min_length=2, max_length=4)] = ("cook", "waiter")  # roles of the players
    # role that controls all players, in lines such as `cook: go hall`; "": each role controls its own player
    controller: str = ""
    # turn order: all free players act at once, or one at a time after the result of the previous action
    order: Literal["simultaneous", "sequential"] = "simultaneous"
    # write: agents write their action; choose: agents choose a possible action, and messages about the cooking
    # are sent automatically
    actions: Literal["write", "choose"] = "write"
    # content of the signs: the things behind each door, or the way to each thing
    signs: Literal["by door", "by thing"] = "by door"
    rooms: Annotated[int, Field(ge=2, le=len(ROOMS))] = 4  # number of rooms
    orders: Annotated[int, Field(ge=1, le=6)] = 1  # number of ordered dishes, all different
    size: Annotated[int, Field(ge=1, le=3)] = 1  # ingredients per dish
    others: Annotated[int, Field(ge=0, le=len(INGREDIENTS))] = 1  # ingredients that are available but in no dish
    narrow: Fraction = 0.5  # probability that a room holds only one player
    loops: Annotated[int, Field(ge=0, le=10)] = 0  # doors beyond the minimum needed to connect the rooms
    locked: Annotated[int, Field(ge=0, le=2)] = 0  # number of locked doors; their keys lie on shelves
    crates: Annotated[int, Field(ge=0, le=2)] = 0  # number of doors behind a crate that two players must lift
    walk: Annotated[int, Field(ge=1, le=3)] = 1  # time steps to go through a door
    boil: Annotated[int, Field(ge=0, le=9)] = 0  # time steps to cook a full pot
    # extra time until the deadline, as a fraction of the scripted run's time
    slack: Annotated[float, Field(ge=0, le=10)] = 0.5
    # rewarded events: each served dish, or each part of the work; undone work is subtracted
    reward: Literal["served", "progress"] = "served"
    time_bonus: Fraction = 0.0  # fraction of the reward for the time left at the end

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
        for role in (self.controller,) if self.controller else self.players:
            if role not in roles:
                yield (
                    f"environment.{'controller' if self.controller else 'players'}: no agent is called {role!r}"
                    f"{did_you_mean(role, roles)}"
                )

    @property
    def offers_options(self) -> bool:  # type: ignore[override]
        """True if players choose between options."""
        return self.actions == "choose"

    @property
    def _rules(self) -> RoomsRules:
        return RoomsRules(
            self.players,
            self.controller,
            self.order,
            self.actions == "choose",
            self.walk,
            self.boil,
            self.time_bonus,
            self.reward == "progress",
            self.signs == "by thing",
        )

    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate a solvable kitchen."""
        level = KitchenLevel(
            self.rooms,
            self.orders,
            self.size,
            self.others,
            self.narrow,
            self.loops,
            self.locked,
            self.crates,
            self.slack,
        )
        layout, deadline, steps = draw_kitchen(random, level, self._rules)
        prompt = RoomsSession(layout, deadline, self._rules).reset_sync().full_text
        return GeneratedTask(
            canonical_content(layout), prompt, {**layout.to_dict(), "deadline": deadline, "fewest_steps": steps}
        )

    def start(self, task: Task, seed: int) -> RoomsSession:  # noqa: ARG002  no randomness in an episode
        """Start an attempt in a kitchen."""
        return RoomsSession(layout_from_dict(task.data), task.data["deadline"], self._rules)

    def script(self, skill: float = 1.0) -> RoomsScript:
        """Return a scripted policy for a cook and waiters; they announce their needs to each other."""
        return RoomsScript(self.players, self.controller, skill, self.signs == "by thing")
