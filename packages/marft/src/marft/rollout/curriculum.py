"""Which levels of difficulty are asked, as a pure function of what has been solved.

Levels are places, 0 the easiest. Of those asked one is the hardest; where its tasks are solved often enough, the next
one is, and where they hardly are, the one before: thresholds on the success at the present level, as Reasoning Gym's
own coaching has them (Stojanovski et al. 2025).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from marft.common.types import Task
from marft.config.curriculum import CurriculumSettings
from marft.runs.stated import Standing


def begun(settings: CurriculumSettings, levels: int) -> Standing:
    """Where a run begins.

    Args:
        levels: how many there are.
    """
    return Standing((0,), (min(settings.start, levels) - 1,))


def moved(
    standing: Standing, settings: CurriculumSettings, levels: int, solved: Sequence[tuple[int, bool]], draw: int
) -> Standing:
    """Where a run stands after a step.

    Args:
        levels: how many there are.
        solved: the level of each of the step's episodes, and whether it was solved. Those at the hardest level count.
        draw: the first one that is not begun yet: what changes holds from there on.
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
    """Where a run stands once it has gone back to where it stood before: its draws go on.

    Args:
        draw: the first one that is drawn by what it is now.
    """
    return _from(standing, before.hardest[-1], draw) if before.hardest else standing


def _from(standing: Standing, hardest: int, draw: int) -> Standing:
    if hardest == standing.hardest[-1]:
        return replace(standing, solved=0, tried=0)
    kept = standing.stretch(draw - 1) + 1 if draw else 0  # stretches that would begin where this one does have no draws
    return Standing((*standing.begins[:kept], draw), (*standing.hardest[:kept], hardest))


def shares(hardest: int, levels: int, review: float) -> list[float]:
    """The share of draws that each level has.

    >>> shares(hardest=2, levels=4, review=0.5), shares(hardest=0, levels=2, review=0.5)
    ([0.25, 0.25, 0.5, 0.0], [1.0, 0.0])
    """
    easier = [review / hardest] * hardest if hardest else []
    return [*easier, 1.0 - sum(easier), *[0.0] * (levels - hardest - 1)]


def levels_of(settings: CurriculumSettings, tasks: Iterable[Task]) -> list[str]:
    """The levels that tasks have, easiest first.

    Raises:
        ValueError: a task has none, or one that the recipe does not name.
    """
    found: dict[str, str] = {}  # a task of each
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
    """Sorts ``level 9`` before ``level 10``."""
    return [int(number) for number in re.findall(r"\d{1,18}", level)], level
