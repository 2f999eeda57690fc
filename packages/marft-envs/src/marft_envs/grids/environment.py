"""Shared settings for grid environments with moves, and the views of each agent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.common.types import Observation
from marft.config.settings import Names, NonEmptyString, NonNegative, NonNegativeCount
from marft_envs.generated import GeneratedEnvironment
from marft_envs.grids.settings import find_unknown_roles

DEFAULT_LIST_STEPS = 5  # default steps in an episode with lists of moves, as published


class GridEnvironment(GeneratedEnvironment):
    """Base class for grid environments with moves, one per step or in lists.

    The moves are read from the answer. The texts of other agents only inform the answering agent. With ``map_for``,
    or a setting of the subclass, only some roles see the map or an instrument's measurements and must pass them on.
    """

    min_moves: Annotated[int, Field(ge=1, le=900)] = 1  # minimum number of moves in a task's shortest solution
    max_moves: NonNegativeCount = 0  # maximum number of moves in a task's shortest solution; 0: no limit
    moves: Literal["one", "list"] = "list"  # moves per step: one, or a list
    # maximum steps in an episode; 0: 5 with lists, otherwise twice the moves of the shortest solution
    max_steps: NonNegativeCount = 0
    # form of an answer; choices: the mover chooses a legal direction (organization "turns")
    actions: Literal["text", "choices"] = "text"
    mover: NonEmptyString = "plan"  # role that chooses, for actions = "choices"
    # form of the map: grid of rows, list of walls, or both; near: no map
    view: Literal["grid", "list", "both", "near"] = "grid"
    map_for: Names = ()  # roles that see the map and the goals; empty: all roles
    # weight of the local reward, paid to each other agent: the reward that its own moves would have earned
    local_reward: NonNegative = 0.0

    @model_validator(mode="after")
    def _check_settings(self) -> GridEnvironment:
        if self.max_moves and self.max_moves < self.min_moves:
            raise PydanticCustomError(
                "max_moves",
                "max_moves is less than min_moves ({min_moves}): no task is so; raise it",
                {"min_moves": self.min_moves},
            )
        if self.actions == "choices" and self.moves == "list":
            raise PydanticCustomError("actions", "choices are single moves; set moves = 'one', or actions = 'text'")
        return self

    @property
    def reward_range(self) -> tuple[float, float]:  # type: ignore[override]
        """Reward range; unbounded for the published reward, because each move is rewarded."""
        return (-math.inf, math.inf) if getattr(self, "reward", "") == "published" else (-1.0, 1.0)

    @property
    def instrument_roles(self) -> Sequence[str]:
        """Roles with access to an instrument's measurements."""
        return ()

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error for each setting with an unknown role."""
        mover = (self.mover,) if self.actions == "choices" else ()
        return find_unknown_roles({"map_for": self.map_for, "mover": mover}, roles)

    @property
    def offers_options(self) -> bool:  # type: ignore[override]
        """True if the mover chooses between options."""
        return self.actions == "choices"

    @property
    def step_bound(self) -> int:
        """Maximum steps in an episode; 0 if it depends on the task, without a bound."""
        return self.step_limit(self.max_moves)

    def step_limit(self, min_moves: int) -> int:
        """Return the maximum steps for a task with a shortest solution of ``min_moves`` moves."""
        return self.max_steps or (DEFAULT_LIST_STEPS if self.moves == "list" else 2 * min_moves)

    def build_observation(
        self, common_lines: Iterable[str], map_lines: Iterable[str], measurements: str, legal: tuple[str, ...]
    ) -> Observation:
        """Build the observation.

        All roles see ``common_lines``. Roles in ``map_for``, or all roles if it is empty, see ``map_lines``. Roles in
        ``instrument_roles`` see ``measurements``.
        """
        map_text = "\n".join(map_lines)
        views = dict.fromkeys(self.map_for, map_text)
        for role in self.instrument_roles:
            views[role] = "\n".join(filter(None, (views.get(role, ""), measurements)))
        options = {self.mover: legal} if self.actions == "choices" else {}
        return Observation("\n".join([*common_lines, *([] if self.map_for else [map_text])]), views, options=options)
