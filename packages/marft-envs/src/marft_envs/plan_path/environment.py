"""Path-planning environment: generated mazes, views of each agent, and step limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from marft.common.types import Observation, Task
from marft.config.settings import Names
from marft_envs.generated import GeneratedTask
from marft_envs.grids.environment import GridEnvironment
from marft_envs.grids.maps import canonical_text, format_cell, format_cells
from marft_envs.grids.moves import adjacent_cell
from marft_envs.grids.session import GridRules, GridSession, TerminationRules
from marft_envs.grids.settings import find_unknown_roles
from marft_envs.plan_path.rules import (
    FAILURE_REWARD,
    MAX_MOVES,
    UNPARSED_REWARD,
    Maze,
    MazeState,
    published_reward,
    render_rows,
)
from marft_envs.plan_path.script import PlanPathScript

PUBLISHED_RULES = TerminationRules(UNPARSED_REWARD, MAX_MOVES, FAILURE_REWARD)
MAX_TRIES = 2000  # maximum maps drawn for one task


class PlanPath(GridEnvironment):
    """Path planning through a walled grid, one move per step or in lists."""

    stream: ClassVar[str] = "PlanPath"
    size: Annotated[int, Field(ge=2, le=30)] = 10  # rows, and columns, of the grid
    walls: Annotated[float, Field(ge=0, le=0.6)] = 0.22  # fraction of cells that are walls
    distances_for: Names = ()  # roles that see the distance to the goal, and the adjacent cells nearer to it
    reward: Literal["progress", "success", "published"] = "progress"  # kind of reward; see docs/worlds/plan_path.md

    @property
    def instrument_roles(self) -> Sequence[str]:
        """Roles with access to the measured distances."""
        return self.distances_for

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error for each setting with an unknown role."""
        return [*super().problems(roles), *find_unknown_roles({"distances_for": self.distances_for}, roles)]

    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate a maze with a shortest path between ``min_moves`` and ``max_moves`` moves.

        Raises:
            ValueError: no such maze was found in ``MAX_TRIES`` draws.
        """
        for _ in range(MAX_TRIES):
            rows = self._draw_rows(random)
            maze = Maze(rows) if rows else None
            if maze and self.min_moves <= maze.distances.get(maze.start, 0) <= (self.max_moves or self.size**2):
                steps = 1 if self.moves == "list" else maze.min_moves
                data = {"map": list(maze.rows), "fewest_moves": maze.min_moves, "fewest_steps": steps}
                return GeneratedTask(
                    canonical_text(maze.rows), self._build_observation(MazeState(maze, maze.start), "").text, data
                )
        raise ValueError(
            f"environment {self.name!r}: of {MAX_TRIES:,} mazes of size {self.size} with a share of {self.walls:g} "
            f"walls none has a shortest way of {self.min_moves} to {self.max_moves or self.size**2} moves; lower "
            "min_moves or walls, or raise max_moves or size"
        )

    def _draw_rows(self, random: Random) -> tuple[str, ...]:
        """Draw walls, a start and a goal; () if the walls leave no room for both."""
        cells = ["#" if random.random() < self.walls else "." for _ in range(self.size**2)]
        free_places = [place for place, cell in enumerate(cells) if cell == "."]
        if len(free_places) < 2:
            return ()
        start, goal = random.sample(free_places, 2)
        cells[start], cells[goal] = "S", "G"
        return tuple("".join(cells[row : row + self.size]) for row in range(0, self.size**2, self.size))

    def start(self, task: Task, seed: int) -> GridSession[MazeState]:  # noqa: ARG002  no randomness in an episode
        """Start an attempt at a maze."""
        maze = Maze(tuple(task.data["map"]))
        steps, termination = (
            self.step_limit(maze.min_moves),
            PUBLISHED_RULES if self.reward == "published" else TerminationRules(),
        )
        rules = GridRules(
            self.moves, steps, self._build_observation, REWARD_FUNCTIONS[self.reward], self.local_reward, termination
        )
        return GridSession(MazeState(maze, maze.start), rules)

    def script(self, skill: float = 1.0) -> PlanPathScript:
        """Return a scripted policy for ``tool``, ``plan`` and ``solver``."""
        return PlanPathScript(skill, self.moves)

    def _build_observation(self, state: MazeState, feedback: str) -> Observation:
        lines = [feedback] if feedback else []
        lines += [f"At {format_cell(state.position)}. Open: {', '.join(state.legal_moves)}."]
        return self.build_observation(lines, self._map_lines(state), _distance_text(state), state.legal_moves)

    def _map_lines(self, state: MazeState) -> Iterable[str]:
        """Yield the map lines: the grid or the walls, as set by ``view``, and the goal."""
        if self.view in ("grid", "both"):
            yield from render_rows(state)
        yield f"Goal {format_cell(state.maze.goal)}."
        if self.view in ("list", "both"):
            size = range(self.size)
            walls = format_cells((r, c) for r in size for c in size if (r, c) not in state.maze.free_cells)
            yield f"Walls: {walls or 'none'}."


def _distance_text(state: MazeState) -> str:
    """Return the distance to the goal, and the direction of its change for each open neighbor."""
    distances = state.maze.distances
    neighbors = (adjacent_cell(state.position, direction) for direction in state.legal_moves)
    neighbor_texts = (
        f"{format_cell(cell)} is {'nearer' if distances[cell] < distances[state.position] else 'farther'}"
        for cell in neighbors
    )
    return f"Away {distances[state.position]}: {'; '.join(neighbor_texts)}."


REWARD_FUNCTIONS: dict[str, Callable[[MazeState, MazeState, bool], float]] = {
    "progress": lambda before, after, _: after.progress - before.progress,
    "success": lambda _, after, __: float(after.solved),
    "published": published_reward,
}
