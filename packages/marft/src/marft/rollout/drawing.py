"""Which training task is drawn when: an endless pass over all of them, reshuffled each time.

Where some are drawn more often than others (an environment's ``odds``, a curriculum's levels), a pass leaves the others
out by chance: a task that is to come half as often as the most frequent one is in half of the passes. So none comes
twice in a pass, and what is drawn at a place follows from the run's seed alone, and from where its curriculum stood.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np
import numpy.typing as npt

from marft.agents.tasks import own_copy
from marft.common import seeds
from marft.common.errors import RunError
from marft.common.types import Episode, Task
from marft.config.parts import EnvironmentPart
from marft.config.run import RunSettings
from marft.rollout.curriculum import begun, levels_of, moved, shares
from marft.runs.stated import Standing

NONE: Mapping[str, str] = {}


@dataclass(slots=True)
class _Passes:
    """The passes over the tasks of one stretch so far: how far each goes, and the order of the last that was asked."""

    chances: npt.NDArray[np.float64]  # [tasks] of being in a pass
    ends: list[int] = field(default_factory=list)
    order: tuple[int, npt.NDArray[np.int64]] = (-1, np.empty(0, np.int64))


class Draws(Sequence[Task]):
    """The training tasks of a run, and the endless pass over them.

    Raises:
        ValueError: the curriculum cannot tell their levels.
    """

    def __init__(self, run: RunSettings, tasks: Sequence[Task]) -> None:
        self.run, self._tasks = run, tasks
        self.levels = levels_of(run.curriculum, tasks) if run.curriculum else []
        self._odds = _odds(run.environment, tasks)
        places = {level: place for place, level in enumerate(self.levels)}
        self._level_of = {task.id: places[self.level(task)] for task in tasks} if run.curriculum else {}
        self._even = run.curriculum is None and bool(np.ptp(self._odds) == 0)
        self._passes: dict[tuple[int, int, int], _Passes] = {}

    @staticmethod
    def of(run: RunSettings, tasks: Sequence[Task]) -> Draws:
        """The same, of tasks that may be that already."""
        return tasks if isinstance(tasks, Draws) else Draws(run, tasks)

    @overload
    def __getitem__(self, place: int) -> Task: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Task]: ...
    def __getitem__(self, place: int | slice) -> Task | Sequence[Task]:
        return self._tasks[place]

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    def level(self, task: Task) -> str:
        """The level of a task, as the curriculum calls it."""
        assert self.run.curriculum is not None
        return str(task.data[self.run.curriculum.by])

    def place_of(self, task: str) -> int:
        """The place of a task's level, from 0 for the easiest."""
        return self._level_of[task]

    def begun(self) -> Standing:
        """Where the run's curriculum begins."""
        return begun(self.run.curriculum, len(self.levels)) if self.run.curriculum else Standing()

    def at(self, draw: int, standing: Standing, set_aside: Mapping[str, str] = NONE) -> tuple[Task | None, str]:
        """The task at a place of the endless pass, and which pass that is, "" for the first one. None where the task is
        set aside.

        Raises:
            RunError: all tasks that could be drawn are set aside.
        """
        stretch, index, passed = standing.stretch(draw), draw, 0
        if self._even:
            self._refuse(np.ones(len(self)), set_aside)
            passed, index = divmod(draw, len(self))
            order = seeds.generator(self.run.seed, "task order", passed).permutation(len(self))
        else:
            begin = standing.begins[stretch] if standing.begins else 0
            passed, index, order = self._within(stretch, begin, standing, draw - begin, set_aside)
        task = self._tasks[int(order[index])]
        name = f"{stretch}.{passed}" if stretch else str(passed or "")
        return (None if task.id in set_aside else task), name

    def _within(
        self, stretch: int, begin: int, standing: Standing, draw: int, set_aside: Mapping[str, str]
    ) -> tuple[int, int, npt.NDArray[np.int64]]:
        """The pass of a draw, its place there, and the pass itself.

        Args:
            draw: counted from where its stretch begins.
        """
        hardest = standing.hardest[stretch] if standing.hardest else -1
        passes = self._passes.get((stretch, begin, hardest))
        if passes is None:
            passes = self._passes[stretch, begin, hardest] = _Passes(self._chances(hardest))
        self._refuse(passes.chances, set_aside)
        while not passes.ends or passes.ends[-1] <= draw:
            before = passes.ends[-1] if passes.ends else 0
            passes.ends.append(before + len(self._order(passes, stretch, len(passes.ends))))
        passed = int(np.searchsorted(passes.ends, draw, side="right"))
        first = passes.ends[passed - 1] if passed else 0
        return passed, draw - first, self._order(passes, stretch, passed)

    def _order(self, passes: _Passes, stretch: int, passed: int) -> npt.NDArray[np.int64]:
        if passes.order[0] != passed:
            names = (stretch, passed) if stretch else (passed,)
            random = seeds.generator(self.run.seed, "task order", *names)
            order = random.permutation(len(self))
            passes.order = passed, order[random.random(len(self)) < passes.chances[order]]
        return passes.order[1]

    def _chances(self, hardest: int) -> npt.NDArray[np.float64]:
        """How likely each task is to be in a pass: 1 for those that are drawn most often.

        Args:
            hardest: the hardest level that is asked; -1 where there are none.

        Raises:
            RunError: the run began with tasks of more levels.
        """
        if hardest < 0:
            return np.asarray(self._odds / self._odds.max())
        assert self.run.curriculum is not None
        if hardest >= len(self.levels):
            raise RunError(
                f"curriculum: the run has come to level {hardest + 1}, and its tasks are of {len(self.levels)}; "
                "go on with the tasks that it began with, or begin another run"
            )
        level = np.array([self._level_of[task.id] for task in self._tasks])
        wanted = np.array(shares(hardest, len(self.levels), self.run.curriculum.review))
        odds = wanted[level] * self._odds / np.bincount(level, self._odds, len(self.levels))[level]
        return np.asarray(odds / odds.max())

    def _refuse(self, chances: npt.NDArray[np.float64], set_aside: Mapping[str, str]) -> None:
        if set_aside and all(self._tasks[int(place)].id in set_aside for place in np.flatnonzero(chances)):
            many = int(np.count_nonzero(chances))
            raise RunError(f"all {many} training tasks are set aside: {next(iter(set_aside.values()))}")


def advanced(
    draws: Draws, standing: Standing, episodes: Sequence[Episode], draw: int
) -> tuple[Standing, dict[str, float]]:
    """Where the curriculum stands after a step, and its metrics.

    Args:
        episodes: that the step played.
        draw: the first one that is not begun yet.
    """
    settings = draws.run.curriculum
    assert settings is not None
    solved = [
        (draws.place_of(episode.task.id), episode.success)
        for episode in episodes
        if episode.scored and episode.success is not None
    ]
    after = moved(standing, settings, len(draws.levels), solved, draw)
    metrics = {"curriculum/level": float(after.hardest[-1] + 1)}
    for place, level in enumerate(draws.levels):
        of = [was for at, was in solved if at == place]
        metrics |= {f"curriculum/solved/{level}": sum(of) / len(of)} if of else {}
    return after, metrics


def _odds(environment: EnvironmentPart, tasks: Sequence[Task]) -> npt.NDArray[np.float64]:
    """How often each task is to be drawn, beside others.

    Raises:
        ValueError: none is to be drawn, or one less than never.
    """
    if type(environment).odds is EnvironmentPart.odds:
        return np.ones(len(tasks))
    odds = np.array([environment.odds(own_copy(task)) for task in tasks], np.float64)
    if not np.isfinite(odds).all() or (odds <= 0).any():
        place = int(np.flatnonzero(~(np.isfinite(odds) & (odds > 0)))[0])
        raise ValueError(
            f"environment {environment.name!r}: odds of training task {tasks[place].id!r} are {odds[place]}; a task "
            "that is never to be drawn is left out of tasks('train')"
        )
    return odds
