"""Curriculum over difficulty levels: pure functions of the solved episodes.

Levels are indices; level 0 is the easiest. The curriculum draws tasks up to a current hardest level. Two thresholds on
the success rate at that level move it up or down by one, like the coaching of Reasoning Gym (Stojanovski et al. 2025).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from marft.common.types import Task
from marft.config.curriculum import CurriculumSettings
from marft.runs.state_schema import CurriculumState


def initial_curriculum(settings: CurriculumSettings, levels: int) -> CurriculumState:
    """Return the initial curriculum state of a run.

    Args:
        settings: settings of the curriculum.
        levels: number of levels.
    """
    return CurriculumState((0,), (min(settings.initial_levels, levels) - 1,))


def update_curriculum(
    state: CurriculumState, settings: CurriculumSettings, levels: int, solved: Sequence[tuple[int, bool]], draw: int
) -> CurriculumState:
    """Return the curriculum state after a step.

    Args:
        state: state before the step.
        settings: settings of the curriculum.
        levels: number of levels.
        solved: level and success of each episode in the step; only episodes at the hardest level count.
        draw: number of the first draw not started yet; a new level applies from this draw on.
    """
    max_level = state.hardest[-1]
    outcomes = [success for level, success in solved if level == max_level]
    state = replace(state, solved=state.solved + sum(outcomes), tried=state.tried + len(outcomes))
    if state.tried < settings.episodes:
        return state
    share = state.solved / state.tried
    next_level = max_level + (share >= settings.promote_threshold) - (share <= settings.demote_threshold)
    return _with_max_level(state, min(max(next_level, 0), levels - 1), draw)


def restore_curriculum(state: CurriculumState, before: CurriculumState, draw: int) -> CurriculumState:
    """Return the curriculum state after a rollback; draw numbers do not roll back.

    Args:
        state: current state.
        before: state of the restored checkpoint.
        draw: number of the first draw under the restored level.
    """
    return _with_max_level(state, before.hardest[-1], draw) if before.hardest else state


def _with_max_level(state: CurriculumState, max_level: int, draw: int) -> CurriculumState:
    if max_level == state.hardest[-1]:
        return replace(state, solved=0, tried=0)
    interval_count = (
        state.interval_index(draw - 1) + 1 if draw else 0
    )  # a stretch that starts at the same draw would be empty
    return CurriculumState((*state.begins[:interval_count], draw), (*state.hardest[:interval_count], max_level))


def level_shares(max_level: int, levels: int, review: float) -> list[float]:
    """Return the share of draws for each level.

    >>> level_shares(max_level=2, levels=4, review=0.5), level_shares(max_level=0, levels=2, review=0.5)
    ([0.25, 0.25, 0.5, 0.0], [1.0, 0.0])

    Args:
        max_level: current hardest level.
        levels: number of levels.
        review: total share of the easier levels.
    """
    easier_shares = [review / max_level] * max_level if max_level else []
    return [*easier_shares, 1.0 - sum(easier_shares), *[0.0] * (levels - max_level - 1)]


def difficulty_levels(settings: CurriculumSettings, tasks: Iterable[Task]) -> list[str]:
    """Return the difficulty levels of tasks, easiest first.

    Raises:
        ValueError: a task has no level, or a level that the recipe does not list.
    """
    first_tasks: dict[str, str] = {}  # id of the first task at each level
    for task in tasks:
        value = task.data.get(settings.level_field) if isinstance(task.data, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, str | int):
            fields = (
                ", ".join(
                    sorted(str(key) for key, value_type in task.data.items() if isinstance(value_type, str | int))
                )
                or "none"
            )
            raise ValueError(
                f"curriculum.level_field: task {task.id!r} has no level {settings.level_field!r} in its data, as a "
                f"word or a whole number; its fields: {fields}"
            )
        first_tasks.setdefault(str(value), task.id)
    named = [str(level) for level in settings.levels]
    unknown = next((level for level in first_tasks if named and level not in named), None)
    if unknown is not None:
        raise ValueError(
            f"curriculum.levels: task {first_tasks[unknown]!r} is of level {unknown!r}, which is not named; add it, or "
            "leave levels out to have them by their numbers"
        )
    return [level for level in named if level in first_tasks] or sorted(first_tasks, key=_level_sort_key)


def _level_sort_key(level: str) -> tuple[list[int], str]:
    """Sort key that puts ``level 9`` before ``level 10``."""
    return [int(number) for number in re.findall(r"\d{1,18}", level)], level
