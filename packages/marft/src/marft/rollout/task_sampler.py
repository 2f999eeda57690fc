"""Task sampler: an endless pass over the training tasks, reshuffled each time.

With sampling weights (``sampling_weight`` of an environment, levels of a curriculum), each pass randomly omits the less
frequent tasks. For example, a task with half the maximum weight appears in half of the passes. Therefore no task
appears twice in a pass. The task of a draw depends only on the run's seed and the curriculum state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

import numpy as np
import numpy.typing as npt

from marft.agents.task_copies import copy_task
from marft.common import seeds
from marft.common.errors import RunError, UserError
from marft.common.types import Episode, Task
from marft.config.interfaces.environment import Environment
from marft.config.run import CurriculumSettings, RunSettings
from marft.runs.state import CurriculumState

NO_EXCLUDED: Mapping[str, str] = {}


@dataclass(slots=True)
class _Passes:
    """Passes over the tasks for one stretch of draws with a constant hardest level.

    Args:
        probabilities: probability of each task to be in a pass, shape [tasks].
        ends: cumulative number of draws at the end of each pass.
        order: number of the latest requested pass, and the task indices of that pass.
    """

    probabilities: npt.NDArray[np.float64]  # [tasks]
    ends: list[int] = field(default_factory=list)
    order: tuple[int, npt.NDArray[np.int64]] = (-1, np.empty(0, np.int64))


class TaskSampler(Sequence[Task]):
    """Training tasks for a run, and the endless pass over them.

    Raises:
        UserError: a task has no level that the curriculum knows, or an invalid sampling weight.
    """

    def __init__(self, run: RunSettings, tasks: Sequence[Task]) -> None:
        self.run, self._tasks = run, tasks
        self.levels = difficulty_levels(run.curriculum, tasks) if run.curriculum else []
        self._weights = _task_weights(run.environment, tasks)
        level_indices = {level: index for index, level in enumerate(self.levels)}
        self._level_of = {task.id: level_indices[self.level(task)] for task in tasks} if run.curriculum else {}
        self._is_uniform = run.curriculum is None and bool(np.ptp(self._weights) == 0)
        self._passes: dict[tuple[int, int, int], _Passes] = {}

    @staticmethod
    def from_tasks(run: RunSettings, tasks: Sequence[Task]) -> TaskSampler:
        """Return a task sampler for ``tasks``; an existing sampler is returned unchanged."""
        return tasks if isinstance(tasks, TaskSampler) else TaskSampler(run, tasks)

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
        return str(task.data[self.run.curriculum.level_field])

    def level_index(self, task: str) -> int:
        """Return the level index of a task; 0 is the easiest level.

        Args:
            task: id of the task.
        """
        return self._level_of[task]

    def initial_curriculum(self) -> CurriculumState:
        """Return the initial curriculum state."""
        return initial_curriculum(self.run.curriculum, len(self.levels)) if self.run.curriculum else CurriculumState()

    def task_at(
        self, draw: int, curriculum: CurriculumState | None, excluded: Mapping[str, str] = NO_EXCLUDED
    ) -> tuple[Task | None, str]:
        """Return the task of a draw, and the name of its pass ("" for the first pass).

        The task is None if the task is excluded.

        Args:
            draw: number of the draw.
            curriculum: curriculum state; None for the initial state.
            excluded: excluded tasks, by id, and the reason.

        Raises:
            RunError: all candidate tasks are excluded.
        """
        curriculum = curriculum or self.initial_curriculum()
        interval, index, pass_index = curriculum.interval_index(draw), draw, 0
        if self._is_uniform:
            self._check_excluded(np.ones(len(self)), excluded)
            pass_index, index = divmod(draw, len(self))
            order = seeds.generator(self.run.seed, "task order", pass_index).permutation(len(self))
        else:
            begin = curriculum.begins[interval] if curriculum.begins else 0
            pass_index, index, order = self._locate(interval, begin, curriculum, draw - begin, excluded)
        task = self._tasks[int(order[index])]
        name = f"{interval}.{pass_index}" if interval else str(pass_index or "")
        return (None if task.id in excluded else task), name

    def draw(
        self, first: int, count: int, excluded: Mapping[str, str], curriculum: CurriculumState | None
    ) -> tuple[list[tuple[Task, str]], int]:
        """Return the next ``count`` tasks that are not excluded, with the names of their passes.

        Args:
            first: number of the first draw.
            count: number of tasks.
            excluded: excluded tasks, by id, and the reason.
            curriculum: curriculum state; None for the initial state.

        Returns:
            The tasks, and the number of the next draw.
        """
        drawn = list[tuple[Task, str]]()
        while len(drawn) < count:
            task, name = self.task_at(first, curriculum, excluded)
            first += 1
            if task:
                drawn.append((task, name))
        return drawn, first

    def _locate(
        self, interval: int, begin: int, curriculum: CurriculumState, draw: int, excluded: Mapping[str, str]
    ) -> tuple[int, int, npt.NDArray[np.int64]]:
        """Return the number of a draw's pass, the position in the pass, and the task order of the pass.

        Args:
            draw: number of the draw, relative to the start of its stretch.
        """
        max_level = curriculum.hardest[interval] if curriculum.hardest else -1
        passes = self._passes.get((interval, begin, max_level))
        if passes is None:
            passes = self._passes[interval, begin, max_level] = _Passes(self._pass_probabilities(max_level))
        self._check_excluded(passes.probabilities, excluded)
        while not passes.ends or passes.ends[-1] <= draw:
            before = passes.ends[-1] if passes.ends else 0
            passes.ends.append(before + len(self._pass_order(passes, interval, len(passes.ends))))
        pass_index = int(np.searchsorted(passes.ends, draw, side="right"))
        first = passes.ends[pass_index - 1] if pass_index else 0
        return pass_index, draw - first, self._pass_order(passes, interval, pass_index)

    def _pass_order(self, passes: _Passes, interval: int, pass_index: int) -> npt.NDArray[np.int64]:
        if passes.order[0] != pass_index:
            names = (interval, pass_index) if interval else (pass_index,)
            random = seeds.generator(self.run.seed, "task order", *names)
            order = random.permutation(len(self))
            passes.order = pass_index, order[random.random(len(self)) < passes.probabilities[order]]
        return passes.order[1]

    def _pass_probabilities(self, max_level: int) -> npt.NDArray[np.float64]:
        """Return each task's probability to appear in a pass, shape [tasks], scaled to maximum 1.

        Args:
            max_level: current hardest level; -1 without a curriculum.

        Raises:
            RunError: the tasks have fewer levels than at the start of the run.
        """
        if max_level < 0:
            return np.asarray(self._weights / self._weights.max())
        assert self.run.curriculum is not None
        if max_level >= len(self.levels):
            raise RunError(
                f"curriculum: the run has come to level {max_level + 1}, and its tasks are of {len(self.levels)}; "
                "go on with the tasks that it began with, or begin another run"
            )
        level = np.array([self._level_of[task.id] for task in self._tasks])
        level_weights = np.array(level_shares(max_level, len(self.levels), self.run.curriculum.review_fraction))
        weights = level_weights[level] * self._weights / np.bincount(level, self._weights, len(self.levels))[level]
        return np.asarray(weights / weights.max())

    def _check_excluded(self, probabilities: npt.NDArray[np.float64], excluded: Mapping[str, str]) -> None:
        if excluded and all(self._tasks[int(index)].id in excluded for index in np.flatnonzero(probabilities)):
            task_count = int(np.count_nonzero(probabilities))
            raise RunError(f"all {task_count} training tasks are set aside: {next(iter(excluded.values()))}")


def advance_curriculum(
    sampler: TaskSampler, curriculum: CurriculumState, episodes: Sequence[Episode], draw: int
) -> tuple[CurriculumState, dict[str, float]]:
    """Return the curriculum state after a step, and the curriculum metrics.

    Args:
        sampler: task sampler of the run.
        curriculum: curriculum state before the step.
        episodes: episodes of the step.
        draw: number of the first draw not started yet.
    """
    settings = sampler.run.curriculum
    assert settings is not None
    solved = [
        (sampler.level_index(episode.task.id), episode.success)
        for episode in episodes
        if episode.is_scored and episode.success is not None
    ]
    after = update_curriculum(curriculum, settings, len(sampler.levels), solved, draw)
    metrics = {"curriculum/level": float(after.hardest[-1] + 1)}
    for index, level in enumerate(sampler.levels):
        successes = [success for at, success in solved if at == index]
        metrics |= {f"curriculum/solved/{level}": sum(successes) / len(successes)} if successes else {}
    return after, metrics


def _task_weights(environment: Environment, tasks: Sequence[Task]) -> npt.NDArray[np.float64]:
    """Return the sampling weight of each task, shape [tasks].

    Raises:
        UserError: a weight is not finite, or not positive.
    """
    if type(environment).sampling_weight is Environment.sampling_weight:
        return np.ones(len(tasks))
    odds = np.array([environment.sampling_weight(copy_task(task)) for task in tasks], np.float64)
    if not np.isfinite(odds).all() or (odds <= 0).any():
        index = int(np.flatnonzero(~(np.isfinite(odds) & (odds > 0)))[0])
        raise UserError(
            f"environment {environment.name!r}: odds of training task {tasks[index].id!r} are {odds[index]}; a task "
            "that is never to be drawn is left out of tasks('train')"
        )
    return odds


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
    # a stretch that starts at the same draw would be empty
    interval_count = state.interval_index(draw - 1) + 1 if draw else 0
    return CurriculumState((*state.begins[:interval_count], draw), (*state.hardest[:interval_count], max_level))


def level_shares(max_level: int, levels: int, review_fraction: float) -> list[float]:
    """Return the share of draws for each level.

    >>> level_shares(2, levels=4, review_fraction=0.5), level_shares(0, levels=2, review_fraction=0.5)
    ([0.25, 0.25, 0.5, 0.0], [1.0, 0.0])

    Args:
        max_level: current hardest level.
        levels: number of levels.
        review_fraction: total share of the easier levels.
    """
    easier_shares = [review_fraction / max_level] * max_level if max_level else []
    return [*easier_shares, 1.0 - sum(easier_shares), *[0.0] * (levels - max_level - 1)]


def difficulty_levels(settings: CurriculumSettings, tasks: Iterable[Task]) -> list[str]:
    """Return the difficulty levels of tasks, easiest first.

    Raises:
        UserError: a task has no level, or a level that the recipe does not list.
    """
    first_tasks: dict[str, str] = {}  # id of the first task at each level
    for task in tasks:
        value = task.data.get(settings.level_field) if isinstance(task.data, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, str | int):
            usable = sorted(str(key) for key, item in task.data.items() if isinstance(item, str | int))
            fields = ", ".join(usable) or "none"
            raise UserError(
                f"curriculum.level_field: task {task.id!r} has no level {settings.level_field!r} in its data, as a "
                f"word or a whole number; its fields: {fields}"
            )
        first_tasks.setdefault(str(value), task.id)
    named = [str(level) for level in settings.levels]
    unknown = next((level for level in first_tasks if named and level not in named), None)
    if unknown is not None:
        raise UserError(
            f"curriculum.levels: task {first_tasks[unknown]!r} is of level {unknown!r}, which is not named; add it, or "
            "leave levels out to have them by their numbers"
        )
    return [level for level in named if level in first_tasks] or sorted(first_tasks, key=_level_sort_key)


def _level_sort_key(level: str) -> tuple[list[int], str]:
    """Sort key that puts ``level 9`` before ``level 10``."""
    return [int(number) for number in re.findall(r"\d{1,18}", level)], level
