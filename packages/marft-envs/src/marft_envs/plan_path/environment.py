"""Path-planning environment: generated mazes, views of each agent, and step limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from marft.common.types import Observation, Task
from marft.config.settings import Names
from marft_envs.drawn import Drawing
from marft_envs.grids.maps import canonical, listed, named
from marft_envs.grids.moves import step
from marft_envs.grids.session import Ends, MovesSession, Play
from marft_envs.grids.settings import role_problems
from marft_envs.grids.world import MovesWorld
from marft_envs.plan_path.rules import FAILURE, MOST_MOVES, UNREAD, Maze, Walk, drawn, published
from marft_envs.plan_path.script import PathScript

PUBLISHED = Ends(UNREAD, MOST_MOVES, FAILURE)
TRIES = 2000  # maximum maps drawn for one task


class PlanPath(MovesWorld):
    """Path planning through a walled grid, one move per step or in lists."""

    stream: ClassVar[str] = "PlanPath"
    size: Annotated[int, Field(ge=2, le=30)] = 10  # rows, and columns, of the grid
    walls: Annotated[float, Field(ge=0, le=0.6)] = 0.22  # fraction of cells that are walls
    distances_for: Names = ()  # roles that see the distance to the goal, and the adjacent cells nearer to it
    reward: Literal["progress", "success", "published"] = "progress"  # kind of reward; see docs/worlds/plan_path.md

    @property
    def told(self) -> Sequence[str]:
        """Roles with access to the measured distances."""
        return self.distances_for

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error for each setting with an unknown role."""
        return [*super().problems(roles), *role_problems({"distances_for": self.distances_for}, roles)]

    def draw(self, random: Random) -> Drawing:
        """Generate a maze with a shortest path between ``nearest`` and ``farthest`` moves.

        Raises:
            ValueError: no such maze was found in ``TRIES`` draws.
        """
        for _ in range(TRIES):
            rows = self._rows(random)
            maze = Maze(rows) if rows else None
            if maze and self.nearest <= maze.away.get(maze.start, 0) <= (self.farthest or self.size**2):
                steps = 1 if self.moves == "list" else maze.fewest
                data = {"map": list(maze.rows), "fewest_moves": maze.fewest, "fewest_steps": steps}
                return Drawing(canonical(maze.rows), self._shown(Walk(maze, maze.start), "").text, data)
        raise ValueError(
            f"environment {self.name!r}: of {TRIES:,} mazes of size {self.size} with a share of {self.walls:g} walls "
            f"none has a shortest way of {self.nearest} to {self.farthest or self.size**2} moves; lower nearest or "
            "walls, or raise farthest or size"
        )

    def _rows(self, random: Random) -> tuple[str, ...]:
        """Draw walls, a start and a goal; () if the walls leave no room for both."""
        cells = ["#" if random.random() < self.walls else "." for _ in range(self.size**2)]
        free = [place for place, cell in enumerate(cells) if cell == "."]
        if len(free) < 2:
            return ()
        start, goal = random.sample(free, 2)
        cells[start], cells[goal] = "S", "G"
        return tuple("".join(cells[row : row + self.size]) for row in range(0, self.size**2, self.size))

    def start(self, task: Task, seed: int) -> MovesSession[Walk]:  # noqa: ARG002  no randomness in an episode
        """Start an attempt at a maze."""
        maze = Maze(tuple(task.data["map"]))
        steps, ends = self.steps_in(maze.fewest), PUBLISHED if self.reward == "published" else Ends()
        play = Play(self.moves, steps, self._shown, PAYS[self.reward], self.local_reward, ends)
        return MovesSession(Walk(maze, maze.start), play)

    def script(self, skill: float = 1.0) -> PathScript:
        """Return a scripted policy for ``tool``, ``plan`` and ``solver``."""
        return PathScript(skill, self.moves)

    def _shown(self, walk: Walk, told: str) -> Observation:
        near = [told] if told else []
        near += [f"At {named(walk.at)}. Open: {', '.join(walk.legal)}."]
        return self.observation(near, self._charted(walk), _measured(walk), walk.legal)

    def _charted(self, walk: Walk) -> Iterable[str]:
        """Yield the map lines: the grid or the walls, as set by ``view``, and the goal."""
        if self.view in ("grid", "both"):
            yield from drawn(walk)
        yield f"Goal {named(walk.maze.goal)}."
        if self.view in ("list", "both"):
            size = range(self.size)
            yield f"Walls: {listed((r, c) for r in size for c in size if (r, c) not in walk.maze.free) or 'none'}."


def _measured(walk: Walk) -> str:
    """Return the distance to the goal, and the direction of its change for each open neighbor."""
    away = walk.maze.away
    there = (step(walk.at, way) for way in walk.legal)
    found = (f"{named(cell)} is {'nearer' if away[cell] < away[walk.at] else 'farther'}" for cell in there)
    return f"Away {away[walk.at]}: {'; '.join(found)}."


PAYS: dict[str, Callable[[Walk, Walk, bool], float]] = {
    "progress": lambda before, after, _: after.progress - before.progress,
    "success": lambda _, after, __: float(after.solved),
    "published": published,
}
