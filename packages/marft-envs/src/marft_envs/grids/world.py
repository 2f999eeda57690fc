"""Shared settings for grid environments with moves, and the views of each agent."""

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

LISTS = 5  # default steps in an episode with lists of moves, as published


class MovesWorld(Drawn):
    """Base class for grid environments with moves, one per step or in lists.

    The moves are read from the answer. The texts of other agents only inform the answering agent. With ``map_for``,
    or a setting of the subclass, only some roles see the map or an instrument's measurements and must pass them on.
    """

    nearest: Annotated[int, Field(ge=1, le=900)] = 1  # minimum number of moves in a task's shortest solution
    farthest: CountOrNone = 0  # maximum number of moves in a task's shortest solution; 0: no limit
    moves: Literal["one", "list"] = "list"  # moves per step: one, or a list
    # maximum steps in an episode; 0: 5 with lists, otherwise twice the moves of the shortest solution
    steps: CountOrNone = 0
    # form of an answer; choices: the mover chooses a legal direction (organization "turns")
    actions: Literal["text", "choices"] = "text"
    mover: Filled = "plan"  # role that chooses, for actions = "choices"
    # form of the map: grid of rows, list of walls, or both; near: no map
    view: Literal["grid", "list", "both", "near"] = "grid"
    map_for: Names = ()  # roles that see the map and the goals; empty: all roles
    # weight of the local reward, paid to each other agent: the reward that its own moves would have earned
    local_reward: NotNegative = 0.0

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
        """Reward range; unbounded for the published reward, because each move is rewarded."""
        return (-math.inf, math.inf) if getattr(self, "reward", "") == "published" else (-1.0, 1.0)

    @property
    def told(self) -> Sequence[str]:
        """Roles with access to an instrument's measurements."""
        return ()

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error for each setting with an unknown role."""
        mover = (self.mover,) if self.actions == "choices" else ()
        return role_problems({"map_for": self.map_for, "mover": mover}, roles)

    @property
    def offers_options(self) -> bool:  # type: ignore[override]
        """True if the mover chooses between options."""
        return self.actions == "choices"

    @property
    def most_steps(self) -> int:
        """Maximum steps in an episode; 0 if it depends on the task, without a bound."""
        return self.steps_in(self.farthest)

    def steps_in(self, fewest_moves: int) -> int:
        """Return the maximum steps for a task with a shortest solution of ``fewest_moves`` moves."""
        return self.steps or (LISTS if self.moves == "list" else 2 * fewest_moves)

    def observation(
        self, near: Iterable[str], charted: Iterable[str], measured: str, legal: tuple[str, ...]
    ) -> Observation:
        """Build the observation.

        All roles see ``near``. Roles in ``map_for``, or all roles if it is empty, see ``charted``. Roles in
        ``told`` see ``measured``.
        """
        chart = "\n".join(charted)
        views = dict.fromkeys(self.map_for, chart)
        for role in self.told:
            views[role] = "\n".join(filter(None, (views.get(role, ""), measured)))
        options = {self.mover: legal} if self.actions == "choices" else {}
        return Observation("\n".join([*near, *([] if self.map_for else [chart])]), views, options=options)
