"""Keys of worlds that are played in moves, and what of a world each agent is shown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.common.types import Observation
from marft.config.settings import CountOrNone, Filled, Names, NotNegative
from marft_envs.drawn import Drawn
from marft_envs.grids.settings import role_problems

LISTS = 5  # steps of an episode in which each is a list of moves, as published


class MovesWorld(Drawn):
    """Base of worlds that are played in moves, one a step or in lists.

    Who answers says where to go; what other agents say is for that one to read. With ``map_for`` and a key of the
    world's own only some of them know the map, or what an instrument measures, and have to tell.
    """

    nearest: Annotated[int, Field(ge=1, le=900)] = 1  # moves that a task takes, at least
    farthest: CountOrNone = 0  # and at most; 0: any number
    moves: Literal["one", "list"] = "list"  # in one step
    steps: CountOrNone = 0  # of an episode; 0: 5 with lists, else twice as many as the moves that it takes
    actions: Literal["text", "choices"] = "text"  # choices: the mover chooses from the open ways (organization "turns")
    mover: Filled = "plan"  # role that chooses, with actions = "choices"
    view: Literal["grid", "list", "both", "near"] = "grid"  # the map as rows, as a list of walls, both; near: no map
    map_for: Names = ()  # roles that are shown the map and the goals; none: all
    local_reward: NotNegative = 0.0  # weight of what other agents' own moves would have earned, paid to them alone

    @model_validator(mode="after")
    def _playable(self) -> MovesWorld:
        if self.farthest and self.farthest < self.nearest:
            raise PydanticCustomError(
                "farthest", "is less than nearest ({nearest}): no task is so; raise it", {"nearest": self.nearest}
            )
        if self.actions == "choices" and self.moves == "list":
            raise PydanticCustomError("actions", "choices are single moves; set moves = 'one', or actions = 'text'")
        return self

    @property
    def reward_range(self) -> tuple[float, float]:  # type: ignore[override]
        """What is published pays each of any number of moves."""
        return (-math.inf, math.inf) if getattr(self, "reward", "") == "published" else (-1.0, 1.0)

    @property
    def told(self) -> Sequence[str]:
        """Roles that are told what an instrument measures."""
        return ()

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Roles that are named and not there."""
        mover = (self.mover,) if self.actions == "choices" else ()
        return role_problems({"map_for": self.map_for, "mover": mover}, roles)

    @property
    def offers_options(self) -> bool:  # type: ignore[override]
        """Where the mover chooses."""
        return self.actions == "choices"

    @property
    def most_steps(self) -> int:
        """Steps of an episode, at most; 0: that depends on the task, and has no bound."""
        return self.steps_in(self.farthest)

    def steps_in(self, fewest_moves: int) -> int:
        """Steps of an episode of a task that takes so many moves, at most."""
        return self.steps or (LISTS if self.moves == "list" else 2 * fewest_moves)

    def observation(
        self, near: Iterable[str], charted: Iterable[str], measured: str, legal: tuple[str, ...]
    ) -> Observation:
        """What is shown: to all what is near, to those that it is for the map, and what is measured."""
        chart = "\n".join(charted)
        views = dict.fromkeys(self.map_for, chart)
        for role in self.told:
            views[role] = "\n".join(filter(None, (views.get(role, ""), measured)))
        options = {self.mover: legal} if self.actions == "choices" else {}
        return Observation("\n".join([*near, *([] if self.map_for else [chart])]), views, options=options)
