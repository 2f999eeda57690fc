"""Filter funnel: filters in sequence, then caps per task and per kind of task, as pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from marft.agents.task_copies import copy_episode_task, copy_task
from marft.common.types import Task
from marft_lab.synthesis.candidates import Candidate, Filter, FilterContext, Rejections

BALANCE_REASON = "more of its kind of task than of the rarest"


@dataclass(frozen=True, slots=True)
class FilterCounts:
    """Statistics of one funnel stage.

    Args:
        name: name of a filter, or ``replayed``, ``max_per_task``, ``balance_by``.
        came: number of incoming episodes.
        dropped: number of rejected episodes, by reason.
    """

    name: str
    came: int
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def kept_count(self) -> int:
        """Number of kept episodes."""
        return self.came - sum(self.dropped.values())

    def format_rejections(self) -> list[str]:
        """Return a line per rejection reason.

        >>> FilterCounts("success", 3, {"not solved": 2}).format_rejections()
        ['success: 2 × not solved']
        """
        return [f"{self.name}: {count} × {reason}" for reason, count in self.dropped.items()]


def build_stage(name: str, count: int, rejections: Rejections) -> FilterCounts:
    """Return the statistics of a stage with ``count`` incoming episodes."""
    return FilterCounts(name, count, dict(sorted(Counter(rejections.values()).items())))


def apply_filters(
    candidates: Sequence[Candidate], filters: Sequence[Filter], context: FilterContext
) -> tuple[list[Candidate], list[FilterCounts]]:
    """Apply filters in order; return the kept candidates, and the statistics of each filter."""
    remaining, stages = [*candidates], list[FilterCounts]()
    for episode_filter in filters:
        copies = [replace(candidate, episode=copy_episode_task(candidate.episode)) for candidate in remaining]
        rejections = episode_filter.reject(
            copies, replace(context, held_out=[copy_task(task) for task in context.held_out])
        )
        assert all(0 <= index < len(remaining) for index in rejections), (
            f"{episode_filter.name} refused what was not there"
        )
        stages.append(build_stage(episode_filter.name, len(remaining), rejections))
        remaining = [candidate for index, candidate in enumerate(remaining) if index not in rejections]
    return remaining, stages


def reject_over_cap(tasks: Sequence[str], cap: int, scores: Sequence[tuple[float, ...]] = ()) -> Rejections:
    """Return the rejections beyond the ``cap`` best episodes of each task; 0 disables the cap.

    Ties go to the first episode.

    >>> reject_over_cap(["a", "b", "a"], 1), reject_over_cap(["a", "b", "a"], 1, [(0.5,), (0.0,), (1.0,)])
    ({2: 'its task has 1 already'}, {0: 'its task has 1 already'})

    Args:
        tasks: task id of each episode.
        cap: maximum episodes per task.
        scores: sort key of each episode, higher is better; () for equal values.
    """
    counts, rejections = Counter[str](), dict[int, str]()
    order = sorted(range(len(tasks)), key=lambda index: scores[index], reverse=True) if scores else range(len(tasks))
    for index in order:
        task = tasks[index]
        if cap and counts[task] == cap:
            rejections[index] = f"its task has {cap} already"
        else:
            counts[task] += 1
    return dict(sorted(rejections.items()))


def reject_unbalanced(tasks: Sequence[Task], by: str) -> Rejections:
    """Return the rejections that reduce every value of a field to the count of the rarest value.

    As many tasks as possible are kept: for each value, the first episode of every task comes before second episodes.

    >>> tasks = [Task(str(n), "?", {"level": level}) for n, level in enumerate([1, 1, 2])]
    >>> list(reject_unbalanced(tasks, "level"))
    [1]
    """
    kinds: dict[str, list[int]] = {}
    for index, task in enumerate(tasks):
        kinds.setdefault(str(task.data.get(by, "")), []).append(index)
    min_count = min(map(len, kinds.values()), default=0)
    rejections = dict[int, str]()
    for indices in kinds.values():
        order = sorted(_earlier_counts(indices, tasks), key=lambda pair: pair[0])
        rejections |= {index: BALANCE_REASON for _, index in order[min_count:]}
    return dict(sorted(rejections.items()))


def _earlier_counts(indices: Sequence[int], tasks: Sequence[Task]) -> list[tuple[int, int]]:
    """Return each index with the number of earlier episodes at the same task."""
    counts, pairs = Counter[str](), list[tuple[int, int]]()
    for index in indices:
        pairs.append((counts[tasks[index].id], index))
        counts[tasks[index].id] += 1
    return pairs
