"""Sokoban environment: generated rooms, views of each agent, and step limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.common.types import Observation, Task
from marft.config.settings import Names, NotNegative
from marft_envs.drawn import Drawing
from marft_envs.grids.maps import find, listed, named
from marft_envs.grids.moves import offset
from marft_envs.grids.session import Ends, MovesSession, Play
from marft_envs.grids.settings import role_problems
from marft_envs.grids.world import MovesWorld
from marft_envs.sokoban.drawing import content, room, start
from marft_envs.sokoban.rules import FAILURE, MOST_MOVES, UNREAD, Yard, drawn, published
from marft_envs.sokoban.script import SokobanScript
from marft_envs.sokoban.solving import pushes

PUBLISHED = Ends(UNREAD, MOST_MOVES, FAILURE)
TRIES = 500  # maximum rooms drawn for one task
MEASURED = 8  # maximum room size with measured pushes, because they are computed during play


class Sokoban(MovesWorld):
    """Push boxes onto goals, with one move per step or in lists.

    Every room is solvable. An episode ends at a visible dead end.
    """

    stream: ClassVar[str] = "Sokoban"
    size: Annotated[int, Field(ge=4, le=20)] = 6  # rows, and columns, of the room, including the outer walls
    boxes: Annotated[int, Field(ge=1, le=6)] = 1  # number of boxes, and of goals
    nearest: Annotated[int, Field(ge=1, le=900)] = 3  # minimum number of moves in a room's shortest solution
    # roles that see the next pushes, their positions and the remaining moves (only with one box)
    pushes_for: Names = ()
    reward: Literal["boxes", "success", "published"] = "boxes"  # kind of reward; see docs/worlds/sokoban.md
    move_cost: NotNegative = 0.0  # cost of each move, subtracted from the reward (gym-sokoban: 0.1)

    @model_validator(mode="after")
    def _possible(self) -> Sokoban:
        if self.pushes_for and (self.boxes > 1 or self.size > MEASURED):
            raise PydanticCustomError(
                "pushes_for",
                "pushes are measured while one plays: in rooms with one box, of size {size} at most; leave it empty",
                {"size": MEASURED},
            )
        return self

    @property
    def told(self) -> Sequence[str]:
        """Roles with access to the measured pushes."""
        return self.pushes_for

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error for each setting with an unknown role."""
        return [*super().problems(roles), *role_problems({"pushes_for": self.pushes_for}, roles)]

    def draw(self, random: Random) -> Drawing:
        """Generate a room with a shortest solution between ``nearest`` and ``farthest`` moves.

        Raises:
            ValueError: no such room was found in ``TRIES`` draws.
        """
        for _ in range(TRIES):
            empty = room(self.size, self.boxes, random)
            found = start(empty, self.nearest, self.farthest, random) if empty else None
            if found:
                yard, fewest = found
                steps = 1 if self.moves == "list" else fewest
                data = {"map": list(drawn(yard)), "fewest_moves": fewest, "fewest_steps": steps, "boxes": self.boxes}
                return Drawing(content(yard), self._shown(yard, "").text, data)
        raise ValueError(
            f"environment {self.name!r}: of {TRIES} rooms of size {self.size} with {self.boxes} boxes none takes "
            f"{self.nearest} to {self.farthest or 'any number of'} moves; lower nearest or boxes, or raise farthest or "
            "size"
        )

    def start(self, task: Task, seed: int) -> MovesSession[Yard]:  # noqa: ARG002  no randomness in an episode
        """Start an attempt at a room."""
        steps, ends = self.steps_in(task.data["fewest_moves"]), PUBLISHED if self.reward == "published" else Ends()
        play = Play(self.moves, steps, self._shown, self._paid, self.local_reward, ends)
        return MovesSession(Yard.of(task.data["map"]), play)

    def script(self, skill: float = 1.0) -> SokobanScript:
        """Return a scripted policy for ``tool``, ``plan`` and ``solver``."""
        return SokobanScript(skill, self.moves)

    def _paid(self, before: Yard, after: Yard, legal: bool) -> float:
        return PAYS[self.reward](before, after, legal) - self.move_cost

    def _shown(self, yard: Yard, told: str) -> Observation:
        near = [told] if told else []
        boxes = "Box" if self.boxes == 1 else "Boxes"
        near += [f"At {named(yard.player)}. {boxes} {listed(yard.boxes)}. Open: {', '.join(yard.legal)}."]
        return self.observation(near, self._charted(yard), self._measured(yard), yard.legal)

    def _charted(self, yard: Yard) -> Iterable[str]:
        """Yield the map lines: the grid or the walls, as set by ``view``, and the goals."""
        if self.view in ("grid", "both"):
            yield from drawn(yard)
        yield f"Goal{'' if self.boxes == 1 else 's'} {listed(yard.room.goals)}."
        if self.view in ("list", "both"):
            yield f"Walls: {listed(find(yard.room.rows, '#'))}."

    def _measured(self, yard: Yard) -> str:
        """Return the possible next pushes with their remaining moves."""
        if not self.pushes_for:
            return ""
        found = (f"{offset(yard.player, push.stand)}, then {push.way} is {push.moves}" for push in pushes(yard))
        return f"Pushes: {'; '.join(found) or 'none'}."


PAYS: dict[str, Callable[[Yard, Yard, bool], float]] = {
    "boxes": lambda before, after, _: after.progress - before.progress,
    "success": lambda _, after, __: float(after.solved),
    "published": published,
}
