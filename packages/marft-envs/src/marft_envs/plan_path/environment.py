"""Path-planning environment: generated mazes, views of each agent, step limits, and a scripted policy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from marft.agents.prompt_messages import split_messages
from marft.common.errors import UserError
from marft.common.types import Observation, Task
from marft.config.settings import Names
from marft.envs.scripted_policy import PolicyInput
from marft_envs.generated import GeneratedTask
from marft_envs.grids.environment import GridEnvironment, GridSession, TerminationRules
from marft_envs.grids.maps import (
    DIRECTIONS,
    Cell,
    adjacent_cell,
    canonical_text,
    direction_between,
    format_cell,
    format_cells,
    parse_cell,
    parse_moves,
)
from marft_envs.grids.script import plays_well, random_move
from marft_envs.plan_path.rules import (
    FAILURE_REWARD,
    MAX_MOVES,
    UNPARSED_REWARD,
    Maze,
    MazeState,
    published_reward,
    render_rows,
)

POSITION_PATTERN = re.compile(r"At (\d+,\d+)\. Open: ([^.]*)\.")
MEASURE_PATTERN = re.compile(rf"({'|'.join(DIRECTIONS)}) (nearer|farther)")


@dataclass(frozen=True)
class PlanPathScript:
    """Scripted policy for ``tool``, ``plan`` and ``solver``; further roles play as solvers.

    A tool agent measures the open directions, or plans the whole path. A planner moves in a direction measured as
    nearer. A solver does both. Weak players make mistakes, above all at crossings: the tool agent states only its
    position, and the planner moves in a random direction.

    Args:
        skill: fraction of well-played turns.
        moves: "one" for one move per answer, "list" for a list.
    """

    skill: float
    moves: Literal["one", "list"]

    def __call__(self, cue: PolicyInput) -> str:
        """Return the agent's next text."""
        match = POSITION_PATTERN.search(cue.last_message)
        if not match:
            return "left"
        current = parse_cell(match[1])
        directions = match[2].split(", ")
        is_good = plays_well(cue, self.skill, has_mistake=len(directions) > 2)
        if cue.role == "tool":
            return self._measure_directions(cue, current, directions) if is_good else f"At {format_cell(current)}."
        if not is_good:
            return random_move(cue, directions)
        if cue.role == "plan":
            return self._follow_message(cue, current, directions)
        hint = self._measure_directions(cue, current, directions)
        best_moves = self._best_moves(hint)
        return (
            ", ".join(best_moves)
            if cue.options or self.moves == "list"
            else f"{hint}, so the answer is {best_moves[0]}."
        )

    def _measure_directions(self, cue: PolicyInput, current: Cell, directions: list[str]) -> str:
        """Return the measured directions, or the whole path for lists."""
        maze = Maze(tuple(cue.task.data["map"]))
        if self.moves == "one":
            return ", ".join(
                f"{direction} {_compare_distance(maze, current, adjacent_cell(current, direction))}"
                for direction in directions
            )
        path = list[str]()
        while current != maze.goal:
            nearest = min(
                (adjacent_cell(current, direction) for direction in DIRECTIONS),
                key=lambda cell: maze.distances.get(cell, maze.distances[current]),
            )
            path.append(direction_between(current, nearest))
            current = nearest
        return ", ".join(path)

    def _best_moves(self, hint: str) -> list[str]:
        """Return the first direction measured as nearer, or the stated moves for lists."""
        nearer = [direction for direction, measure in MEASURE_PATTERN.findall(hint) if measure == "nearer"]
        return (parse_moves(hint) or []) if self.moves == "list" else nearer[:1]

    def _follow_message(self, cue: PolicyInput, current: Cell, directions: list[str]) -> str:
        """Follow the message; without one, use a visible map, or else move at random."""
        _, messages = split_messages(cue.last_message)
        if not messages and "Goal" in cue.last_message:
            return ", ".join(self._best_moves(self._measure_directions(cue, current, directions)))
        best_moves = self._best_moves("\n\n".join(message.text for message in messages))
        return ", ".join(best_moves) if best_moves else random_move(cue, directions)


def _compare_distance(maze: Maze, current: Cell, neighbor: Cell) -> str:
    return "nearer" if maze.distances[neighbor] < maze.distances[current] else "farther"


MAX_ATTEMPTS = 2000  # maximum maps drawn for one task


class PlanPath(GridEnvironment):
    """Path planning through a walled grid, one move per step or in lists."""

    stream: ClassVar[str] = "PlanPath"
    instrument: ClassVar[str] = "distances_for"
    published_rules: ClassVar[TerminationRules] = TerminationRules(UNPARSED_REWARD, MAX_MOVES, FAILURE_REWARD)

    size: Annotated[int, Field(ge=2, le=30)] = Field(default=10, description="rows, and columns, of the grid")
    walls: Annotated[float, Field(ge=0, le=0.6)] = Field(default=0.22, description="fraction of cells with a wall")
    distances_for: Names = Field(
        default=(), description="roles that see the distance to the goal, and adjacent cells nearer to the goal"
    )
    reward: Literal["progress", "success", "published"] = Field(
        default="progress", description="kind of reward; see docs/worlds/plan_path.md"
    )

    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate a maze with a shortest path between ``min_moves`` and ``max_moves`` moves.

        Raises:
            UserError: no such maze was found in ``MAX_ATTEMPTS`` draws.
        """
        for _ in range(MAX_ATTEMPTS):
            rows = self._draw_rows(random)
            maze = Maze(rows) if rows else None
            if maze and self.min_moves <= maze.distances.get(maze.start, 0) <= (self.max_moves or self.size**2):
                steps = 1 if self.moves == "list" else maze.min_moves
                data = {"map": list(maze.rows), "fewest_moves": maze.min_moves, "fewest_steps": steps}
                return GeneratedTask(
                    canonical_text(maze.rows), self._build_observation(MazeState(maze, maze.start), "").text, data
                )
        raise UserError(
            f"environment {self.name!r}: of {MAX_ATTEMPTS:,} mazes of size {self.size} with a share of {self.walls:g} "
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
        reward_fn = REWARD_FUNCTIONS[self.reward]
        return self.start_session(MazeState(maze, maze.start), maze.min_moves, self._build_observation, reward_fn)

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
    "success": lambda _, after, __: float(after.is_solved),
    "published": published_reward,
}
