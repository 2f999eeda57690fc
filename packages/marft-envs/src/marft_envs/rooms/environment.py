"""The plugin: kitchens of several rooms, drawn by level."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from random import Random
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.common.types import Task
from marft.config.settings import Fraction, Names, did_you_mean
from marft_envs.drawn import Drawing, Drawn
from marft_envs.rooms.drawing import INGREDIENTS, ROOMS, Level, content_of, draw_kitchen
from marft_envs.rooms.layout import CRATE, HATCH, KEY, PLATE, POT, layout_of
from marft_envs.rooms.script import Script
from marft_envs.rooms.session import Rules, Shift

# words that views begin lines with, and what stands in rooms beside players
RESERVED = {"you", "here", "orders", "nothing", PLATE, KEY, CRATE, HATCH, POT, *INGREDIENTS}


class Rooms(Drawn):
    """Kitchens of several rooms: players fetch ingredients, cook, bring plates and serve what was ordered, before the
    deadline. Each sees its own room alone; narrow rooms and doors hold one at a time, crates need two.

    Every kitchen has been run in time by players who see no more than that, so that all can be.
    """

    stream: ClassVar[str] = "Rooms"
    carries_words: ClassVar[bool] = True
    says_whose_turn: ClassVar[bool] = True
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    most_idle: ClassVar[int] = 1000  # each is a kitchen that has been run

    players: Annotated[Names, Field(min_length=2, max_length=4)] = ("cook", "waiter")  # roles, each one body
    steered_by: str = ""  # a role that steers all of them, in lines such as `cook: go hall`; "": each itself
    # those who are free act at once, or one of them at a time, who sees what came of it
    order: Literal["together", "one after another"] = "together"
    # write: any text is an action; choose: one of what is possible, and what is cooked is called out by itself
    actions: Literal["write", "choose"] = "write"
    # what signs say: of each door what is behind it, or of each thing how to get it
    signs: Literal["by door", "by thing"] = "by door"
    rooms: Annotated[int, Field(ge=2, le=len(ROOMS))] = 4  # of a kitchen
    orders: Annotated[int, Field(ge=1, le=6)] = 1  # dishes, all different
    size: Annotated[int, Field(ge=1, le=3)] = 1  # ingredients of a dish
    others: Annotated[int, Field(ge=0, le=len(INGREDIENTS))] = 1  # ingredients that are there, and in no dish
    narrow: Fraction = 0.5  # how likely a room is to hold one player alone
    loops: Annotated[int, Field(ge=0, le=10)] = 0  # doors more than are needed to get everywhere
    locked: Annotated[int, Field(ge=0, le=2)] = 0  # doors that a key opens, which lies somewhere
    crates: Annotated[int, Field(ge=0, le=2)] = 0  # doors behind a crate that two must lift
    walk: Annotated[int, Field(ge=1, le=3)] = 1  # how long the way through a door takes
    boil: Annotated[int, Field(ge=0, le=9)] = 0  # how long a full pot takes
    slack: Annotated[float, Field(ge=0, le=10)] = 0.5  # time beyond what is known to do, as a share of that
    # what pays: each dish that is served, or as much of the work as is done, taken back where it is undone
    reward: Literal["served", "progress"] = "served"
    time_bonus: Fraction = 0.0  # share of the reward that is for the time that is left when all is served

    @model_validator(mode="after")
    def _can_be_played(self) -> Self:
        if self.steered_by and self.actions == "choose" and self.order == "together":
            raise PydanticCustomError(
                "order", 'one agent that chooses for all does so one after another: order = "one after another"'
            )
        if self.size == 1 and self.orders > len(INGREDIENTS):
            raise PydanticCustomError("orders", "more orders than there are dishes of one ingredient")
        names = [name.lower() for name in self.players]
        one_word_each = all(re.fullmatch(r"\w+", name) for name in names)
        if len(set(names)) < len(names) or RESERVED & set(names) or not one_word_each:
            raise PydanticCustomError(
                "players",
                "names of players must be words, differ in more than case, and be no word of the views: {words}",
                {"words": ", ".join(sorted(RESERVED))},
            )
        return self

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Players that no agent plays."""
        for role in (self.steered_by,) if self.steered_by else self.players:
            if role not in roles:
                yield (
                    f"environment.{'steered_by' if self.steered_by else 'players'}: no agent is called {role!r}"
                    f"{did_you_mean(role, roles)}"
                )

    @property
    def offers_options(self) -> bool:  # type: ignore[override]
        """Where players choose."""
        return self.actions == "choose"

    @property
    def _rules(self) -> Rules:
        return Rules(
            self.players, self.steered_by, self.order, self.actions == "choose", self.walk, self.boil, self.time_bonus,
            self.reward == "progress",
            self.signs == "by thing",
        )  # fmt: skip

    def draw(self, random: Random) -> Drawing:
        """A kitchen that can be run."""
        level = Level(
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
        shown = Shift(layout, deadline, self._rules).begin().whole
        return Drawing(content_of(layout), shown, {**layout.plain(), "deadline": deadline, "fewest_steps": steps})

    def start(self, task: Task, seed: int) -> Shift:  # noqa: ARG002  nothing here is random
        """Open a kitchen."""
        return Shift(layout_of(task.data), task.data["deadline"], self._rules)

    def script(self, skill: float = 1.0) -> Script:
        """Cook and waiters, who tell each other what they need."""
        return Script(self.players, self.steered_by, skill, self.signs == "by thing")
