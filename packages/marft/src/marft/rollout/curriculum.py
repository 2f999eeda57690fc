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
from marft.runs.stated import Standing


def begun(settings: CurriculumSettings, levels: int) -> Standing:
    """Return the initial curriculum state of a run.

    Args:
        settings: settings of the curriculum.
        levels: number of levels.
    """
    return Standing((0,), (min(settings.start, levels) - 1,))


def moved(
    standing: Standing, settings: CurriculumSettings, levels: int, solved: Sequence[tuple[int, bool]], draw: int
) -> Standing:
    """Return the curriculum state after a step.

    Args:
        standing: state before the step.
        settings: settings of the curriculum.
        levels: number of levels.
        solved: level and success of each episode in the step; only episodes at the hardest level count.
        draw: number of the first draw not started yet; a new level applies from this draw on.
    """
    hardest = standing.hardest[-1]
    found = [was for level, was in solved if level == hardest]
    standing = replace(standing, solved=standing.solved + sum(found), tried=standing.tried + len(found))
    if standing.tried < settings.episodes:
        return standing
    share = standing.solved / standing.tried
    wanted = hardest + (share >= settings.up) - (share <= settings.down)
    return _from(standing, min(max(wanted, 0), levels - 1), draw)


def taken_back(standing: Standing, before: Standing, draw: int) -> Standing:
    """Return the curriculum state after a rollback; draw numbers do not roll back.

    Args:
        standing: current state.
        before: state of the restored checkpoint.
        draw: number of the first draw under the restored level.
    """
    return _from(standing, before.hardest[-1], draw) if before.hardest else standing


def _from(standing: Standing, hardest: int, draw: int) -> Standing:
    if hardest == standing.hardest[-1]:
        return replace(standing, solved=0, tried=0)
    kept = standing.stretch(draw - 1) + 1 if draw else 0  # a stretch that starts at the same draw would be empty
    return Standing((*standing.begins[:kept], draw), (*standing.hardest[:kept], hardest))


def shares(hardest: int, levels: int, review: float) -> list[float]:
    """Return the share of draws for each level.

    >>> shares(hardest=2, levels=4, review=0.5), shares(hardest=0, levels=2, review=0.5)
    ([0.25, 0.25, 0.5, 0.0], [1.0, 0.0])

    Args:
        hardest: current hardest level.
        levels: number of levels.
        review: total share of the easier levels.
    """
    easier = [review / hardest] * hardest if hardest else []
    return [*easier, 1.0 - sum(easier), *[0.0] * (levels - hardest - 1)]


def levels_of(settings: CurriculumSettings, tasks: Iterable[Task]) -> list[str]:
    """Return the difficulty levels of tasks, easiest first.

    Raises:
        ValueError: a task has no level, or a level that the recipe does not list.
    """
    found: dict[str, str] = {}  # id of the first task at each level
    for task in tasks:
        value = task.data.get(settings.by) if isinstance(task.data, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, str | int):
            fields = ", ".join(sorted(str(key) for key, of in task.data.items() if isinstance(of, str | int))) or "none"
            raise ValueError(
                f"curriculum.by: task {task.id!r} has no level {settings.by!r} in its data, as a word or a whole "
                f"number; its fields: {fields}"
            )
        found.setdefault(str(value), task.id)
    named = [str(level) for level in settings.levels]
    unknown = next((level for level in found if named and level not in named), None)
    if unknown is not None:
        raise ValueError(
            f"curriculum.levels: task {found[unknown]!r} is of level {unknown!r}, which is not named; add it, or leave "
            "levels out to have them by their numbers"
        )
    return [level for level in named if level in found] or sorted(found, key=_by_number)


def _by_number(level: str) -> tuple[list[int], str]:
    """Sort key that puts ``level 9`` before ``level 10``."""
    return [int(number) for number in re.findall(r"\d{1,18}", level)], level
