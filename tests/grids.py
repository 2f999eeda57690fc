"""Slow references of what worlds on grids compute, from the rules as their sources state them, and ways to play them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import product
from typing import Any

from hypothesis import settings

from marft.common.types import Episode, JointAction, Observation, Step
from marft.config.interfaces.environment import Session
from marft.config.load import load_recipe
from marft.config.run import RunSettings
from marft_lab.scripted_team import ScriptedTeam
from tests.episodes import make_action
from tests.nights import NIGHT

FEW = settings(max_examples=1000 if NIGHT else 20)
STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


def relaxed(rows: Sequence[str], goal: tuple[int, int]) -> dict[tuple[int, int], int]:
    """Distances to a goal over cells that are no wall, by relaxing every edge until nothing changes (Bellman-Ford)."""
    away = {(r, c): 0 if (r, c) == goal else 10**6 for r, row in enumerate(rows) for c, x in enumerate(row) if x != "#"}
    changed = True
    while changed:
        changed = False
        for (r, c), (y, x) in product(away, STEPS.values()):
            if away.get((r + y, c + x), 10**6) + 1 < away[r, c]:
                away[r, c] = away[r + y, c + x] + 1
                changed = True
    return {cell: moves for cell, moves in away.items() if moves < 10**6}


def every_solution(grid: list[list[int]], rows: int, columns: int) -> list[list[list[int]]]:
    """All solutions of a sudoku, by trying every value in the first blank."""
    size = len(grid)
    blank = next(((r, c) for r, c in product(range(size), repeat=2) if not grid[r][c]), None)
    if blank is None:
        return [[row[:] for row in grid]]
    r, c = blank
    found = []
    for value in range(1, size + 1):
        box = [grid[r // rows * rows + y][c // columns * columns + x] for y in range(rows) for x in range(columns)]
        if value not in grid[r] and all(row[c] != value for row in grid) and value not in box:
            grid[r][c] = value
            found += every_solution(grid, rows, columns)
            grid[r][c] = 0
    return found


def pushed(rows: Sequence[str], way: str) -> list[str]:
    """A sokoban map after one move, as gym-sokoban's step does it on its two arrays of numbers: the fixed room, and its
    state (0 wall, 1 floor, 2 target, 3 box on target, 4 box, 5 player)."""
    fixed = [[{"#": 0, ".": 2, "*": 2, "+": 2}.get(x, 1) for x in row] for row in rows]
    state = [[{"#": 0, " ": 1, ".": 2, "*": 3, "$": 4, "@": 5, "+": 5}[x] for x in row] for row in rows]
    y, x = STEPS[way]
    r, c = next((r, c) for r, row in enumerate(state) for c, here in enumerate(row) if here == 5)
    new, beyond = state[r + y][c + x], (r + 2 * y, c + 2 * x)
    if new in (3, 4) and state[beyond[0]][beyond[1]] in (1, 2):
        state[beyond[0]][beyond[1]] = 3 if fixed[beyond[0]][beyond[1]] == 2 else 4
        new = fixed[r + y][c + x]
    if new in (1, 2):
        state[r + y][c + x] = 5
        state[r][c] = fixed[r][c]
    shown = {0: "#", 1: " ", 2: ".", 3: "*", 4: "$"}
    return [
        "".join(("+" if fixed[r][c] == 2 else "@") if here == 5 else shown[here] for c, here in enumerate(row))
        for r, row in enumerate(state)
    ]


def solved_in(rows: Sequence[str], most: int = 10**6) -> int | None:
    """The fewest moves that solve a sokoban map, by trying all; None where nothing does."""
    level, seen, moves = {tuple(rows)}, {tuple(rows)}, 0
    while level and moves <= most:
        if any("$" not in "".join(state) for state in level):
            return moves
        level = {tuple(pushed(state, way)) for state in level for way in STEPS} - seen
        seen |= level
        moves += 1
    return None


def spoken(answer: str | None, **others: str) -> JointAction:
    """A joint action: what the answering agent says, and what others say before it."""
    before = [make_action(role, text=text) for role, text in others.items()]
    said = None if answer is None else make_action("plan", text=answer)
    return JointAction(said, (*before, *([said] if said else [])))


def play(session: Session, answers: Sequence[str | JointAction | None]) -> list[Step]:
    """The steps of a session that is answered so, up to its end."""

    async def played() -> list[Step]:
        await session.reset()
        steps = list[Step]()
        for answer in answers:
            steps.append(await session.step(answer if isinstance(answer, JointAction) else spoken(answer)))
            if steps[-1].terminated or steps[-1].truncated:
                break
        return steps

    return asyncio.run(played())


def first_shown(session: Session) -> Observation:
    return asyncio.run(session.reset())


def with_changes(name: str, **changes: Any) -> RunSettings:
    """A bundled recipe on a model that is there, with keys of its environment changed; few tasks."""
    few = {"train_tasks": 30, "held_out_tasks": 10, **changes}
    return load_recipe(
        name, changes={"models.base.path": "tiny", **{f"environment.{key}": value for key, value in few.items()}}
    )


def by_script(run: RunSettings, tasks: int = 5, skill: float = 1.0) -> list[Episode]:
    """Episodes of a recipe that its world's script plays."""
    environment: Any = run.environment
    with ScriptedTeam(run, environment.script(skill)) as team:
        episodes = list(team.play(environment.tasks("train")[:tasks]))
    assert [episode.error for episode in episodes if episode.error] == []
    return episodes
