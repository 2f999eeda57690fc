"""Task sampler: an endless pass over the training tasks, reshuffled each time.

With sampling weights (``odds`` of an environment, levels of a curriculum), each pass randomly omits the less frequent
tasks. For example, a task with half the maximum weight appears in half of the passes. Therefore no task appears twice
in a pass. The task of a draw depends only on the run's seed and the curriculum state.
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
    """Passes over the tasks for one stretch of draws with a constant hardest level.

    Args:
        chances: probability of each task to be in a pass, shape [tasks].
        ends: cumulative number of draws at the end of each pass.
        order: number of the latest requested pass, and the task indices of that pass.
    """

    chances: npt.NDArray[np.float64]  # [tasks]
    ends: list[int] = field(default_factory=list)
    order: tuple[int, npt.NDArray[np.int64]] = (-1, np.empty(0, np.int64))


class Draws(Sequence[Task]):
    """Training tasks for a run, and the endless pass over them.

    Raises:
        ValueError: a task has no level that the curriculum knows, or an invalid sampling weight.
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
        """Return a task sampler for ``tasks``; an existing sampler is returned unchanged."""
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
        """Return a task's curriculum level, named like in the recipe."""
        assert self.run.curriculum is not None
        return str(task.data[self.run.curriculum.by])

    def place_of(self, task: str) -> int:
        """Return the level index of a task; 0 is the easiest level.

        Args:
            task: id of the task.
        """
        return self._level_of[task]

    def begun(self) -> Standing:
        """Return the initial curriculum state."""
        return begun(self.run.curriculum, len(self.levels)) if self.run.curriculum else Standing()

    def at(self, draw: int, standing: Standing, set_aside: Mapping[str, str] = NONE) -> tuple[Task | None, str]:
        """Return the task of a draw, and the name of its pass ("" for the first pass).

        The task is None if the task is excluded.

        Args:
            draw: number of the draw.
            standing: curriculum state.
            set_aside: excluded tasks, by id, and the reason.

        Raises:
            RunError: all candidate tasks are excluded.
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
        """Return the number of a draw's pass, the position in the pass, and the task order of the pass.

        Args:
            draw: number of the draw, relative to the start of its stretch.
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
        """Return each task's probability to appear in a pass, shape [tasks], scaled to maximum 1.

        Args:
            hardest: current hardest level; -1 without a curriculum.

        Raises:
            RunError: the tasks have fewer levels than at the start of the run.
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
    """Return the curriculum state after a step, and the curriculum metrics.

    Args:
        draws: task sampler of the run.
        standing: curriculum state before the step.
        episodes: episodes of the step.
        draw: number of the first draw not started yet.
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
    """Return the sampling weight of each task, shape [tasks].

    Raises:
        ValueError: a weight is not finite, or not positive.
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
