"""Sessions of text games played in tests, without agents: a function says each move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from marft.common.types import Action, JointAction, Observation, Step, Task
from marft_envs.textarena.environment import TextArena
from tests.episodes import make_action

Move = Callable[[str, Observation], str]


def environment(**table: Any) -> TextArena:
    many = {"params": {"heaps": 3, "largest": 9}} if table.get("game") == "nim" else {}
    return TextArena.model_validate({"train_tasks": 20, "held_out_tasks": 5, **many, **table})


def first_option(role: str, shown: Observation) -> str:
    return shown.options[role][0]


def acted(role: str, text: str) -> Action:
    return make_action(role, text=text)


def match(env: TextArena, task: Task, move: Move, seed: int = 0) -> tuple[list[Observation], Step]:
    """One match → what was shown, and its last step."""

    async def go() -> tuple[list[Observation], Step]:
        session = env.start(task, seed)
        shown = [await session.reset()]
        while True:
            role = shown[-1].turn[-1]
            step = await session.step(JointAction(actions=(acted(role, move(role, shown[-1])),)))
            if step.terminated:
                return shown, step
            shown.append(step.observation)

    return asyncio.run(go())
