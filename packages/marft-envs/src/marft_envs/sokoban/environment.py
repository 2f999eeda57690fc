"""Sokoban environment: generated rooms, views of each agent, and step limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.common.types import Observation, Task
from marft.config.settings import Names, NonNegative
from marft_envs.generated import GeneratedTask
from marft_envs.grids.environment import GridEnvironment
from marft_envs.grids.maps import find_cells, format_cell, format_cells
from marft_envs.grids.moves import describe_offset
from marft_envs.grids.session import GridRules, GridSession, TerminationRules
from marft_envs.grids.settings import find_unknown_roles
from marft_envs.sokoban.generator import canonical_content, draw_start, generate_room
from marft_envs.sokoban.rules import (
    FAILURE_REWARD,
    MAX_MOVES,
    UNPARSED_REWARD,
    SokobanState,
    published_reward,
    render_rows,
)
from marft_envs.sokoban.script import SokobanScript
from marft_envs.sokoban.solver import list_pushes

PUBLISHED_RULES = TerminationRules(UNPARSED_REWARD, MAX_MOVES, FAILURE_REWARD)
MAX_TRIES = 500  # maximum rooms drawn for one task
MAX_MEASURED_SIZE = 8  # maximum room size with measured pushes, because they are computed during play


class Sokoban(GridEnvironment):
    """Push boxes onto goals, with one move per step or in lists.

    Every room is solvable. An episode ends at a visible dead end.
    """

    stream: ClassVar[str] = "Sokoban"
    size: Annotated[int, Field(ge=4, le=20)] = 6  # rows, and columns, of the room, including the outer walls
    boxes: Annotated[int, Field(ge=1, le=6)] = 1  # number of boxes, and of goals
    min_moves: Annotated[int, Field(ge=1, le=900)] = 3  # minimum number of moves in a room's shortest solution
    # roles that see the next pushes, their positions and the remaining moves (only with one box)
    pushes_for: Names = ()
    reward: Literal["boxes", "success", "published"] = "boxes"  # kind of reward; see docs/worlds/sokoban.md
    move_cost: NonNegative = 0.0  # cost of each move, subtracted from the reward (gym-sokoban: 0.1)

    @model_validator(mode="after")
    def _check_pushes(self) -> Sokoban:
        if self.pushes_for and (self.boxes > 1 or self.size > MAX_MEASURED_SIZE):
            raise PydanticCustomError(
                "pushes_for",
                "pushes are measured while one plays: in rooms with one box, of size {size} at most; leave it empty",
                {"size": MAX_MEASURED_SIZE},
            )
        return self

    @property
    def instrument_roles(self) -> Sequence[str]:
        """Roles with access to the measured pushes."""
        return self.pushes_for

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error for each setting with an unknown role."""
        return [*super().problems(roles), *find_unknown_roles({"pushes_for": self.pushes_for}, roles)]

    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate a room with a shortest solution between ``min_moves`` and ``max_moves`` moves.

        Raises:
            ValueError: no such room was found in ``MAX_TRIES`` draws.
        """
        for _ in range(MAX_TRIES):
            empty_room = generate_room(self.size, self.boxes, random)
            start_found = draw_start(empty_room, self.min_moves, self.max_moves, random) if empty_room else None
            if start_found:
                state, min_moves = start_found
                steps = 1 if self.moves == "list" else min_moves
                data = {
                    "map": list(render_rows(state)),
                    "fewest_moves": min_moves,
                    "fewest_steps": steps,
                    "boxes": self.boxes,
                }
                return GeneratedTask(canonical_content(state), self._build_observation(state, "").text, data)
        raise ValueError(
            f"environment {self.name!r}: of {MAX_TRIES} rooms of size {self.size} with {self.boxes} boxes none takes "
            f"{self.min_moves} to {self.max_moves or 'any number of'} moves; lower min_moves or boxes, or raise "
            "max_moves or size"
        )

    def start(self, task: Task, seed: int) -> GridSession[SokobanState]:  # noqa: ARG002  no randomness in an episode
        """Start an attempt at a room."""
        steps, termination = (
            self.step_limit(task.data["fewest_moves"]),
            PUBLISHED_RULES if self.reward == "published" else TerminationRules(),
        )
        rules = GridRules(self.moves, steps, self._build_observation, self._move_reward, self.local_reward, termination)
        return GridSession(SokobanState.from_map(task.data["map"]), rules)

    def script(self, skill: float = 1.0) -> SokobanScript:
        """Return a scripted policy for ``tool``, ``plan`` and ``solver``."""
        return SokobanScript(skill, self.moves)

    def _move_reward(self, before: SokobanState, after: SokobanState, legal: bool) -> float:
        return REWARD_FUNCTIONS[self.reward](before, after, legal) - self.move_cost

    def _build_observation(self, state: SokobanState, feedback: str) -> Observation:
        lines = [feedback] if feedback else []
        boxes = "Box" if self.boxes == 1 else "Boxes"
        lines += [
            f"At {format_cell(state.player)}. {boxes} {format_cells(state.boxes)}. Open: "
            f"{', '.join(state.legal_moves)}."
        ]
        return self.build_observation(lines, self._map_lines(state), self._push_lines(state), state.legal_moves)

    def _map_lines(self, state: SokobanState) -> Iterable[str]:
        """Yield the map lines: the grid or the walls, as set by ``view``, and the goals."""
        if self.view in ("grid", "both"):
            yield from render_rows(state)
        yield f"Goal{'' if self.boxes == 1 else 's'} {format_cells(state.room.goals)}."
        if self.view in ("list", "both"):
            yield f"Walls: {format_cells(find_cells(state.room.rows, '#'))}."

    def _push_lines(self, state: SokobanState) -> str:
        """Return the possible next pushes with their remaining moves."""
        if not self.pushes_for:
            return ""
        push_texts = (
            f"{describe_offset(state.player, push.stand)}, then {push.direction} is {push.moves}"
            for push in list_pushes(state)
        )
        return f"Pushes: {'; '.join(push_texts) or 'none'}."


REWARD_FUNCTIONS: dict[str, Callable[[SokobanState, SokobanState, bool], float]] = {
    "boxes": lambda before, after, _: after.progress - before.progress,
    "success": lambda _, after, __: float(after.solved),
    "published": published_reward,
}
