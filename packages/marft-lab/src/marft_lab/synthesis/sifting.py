"""Filter funnel: filters in sequence, then caps per task and per kind of task, as pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from marft.agents.tasks import own_copy, with_own_task
from marft.common.types import Task
from marft_lab.synthesis.candidates import Candidate, Filter, Refused, World

OTHERS_BALANCE = "more of its kind of task than of the rarest"


@dataclass(frozen=True, slots=True)
class Passage:
    """Statistics of one funnel stage.

    Args:
        name: name of a filter, or ``retold``, ``per_task``, ``balance``.
        came: number of incoming episodes.
        dropped: number of rejected episodes, by reason.
    """

    name: str
    came: int
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        """Number of kept episodes."""
        return self.came - sum(self.dropped.values())

    def lines(self) -> list[str]:
        """Return a line per rejection reason.

        >>> Passage("success", 3, {"not solved": 2}).lines()
        ['success: 2 × not solved']
        """
        return [f"{self.name}: {count} × {why}" for why, count in self.dropped.items()]


def passed(name: str, count: int, refused: Refused) -> Passage:
    """Return the statistics of a stage with ``count`` incoming episodes."""
    return Passage(name, count, dict(sorted(Counter(refused.values()).items())))


def sifted(
    candidates: Sequence[Candidate], filters: Sequence[Filter], world: World
) -> tuple[list[Candidate], list[Passage]]:
    """Apply filters in order; return the kept candidates, and the statistics of each filter."""
    left, passages = [*candidates], list[Passage]()
    for one in filters:
        own = [replace(candidate, episode=with_own_task(candidate.episode)) for candidate in left]
        refused = one.refused(own, replace(world, held_out=[own_copy(task) for task in world.held_out]))
        assert all(0 <= place < len(left) for place in refused), f"{one.name} refused what was not there"
        passages.append(passed(one.name, len(left), refused))
        left = [candidate for place, candidate in enumerate(left) if place not in refused]
    return left, passages


def over_cap(tasks: Sequence[str], cap: int, worth: Sequence[tuple[float, ...]] = ()) -> Refused:
    """Return the rejections beyond the ``cap`` best episodes of each task; 0 disables the cap.

    Ties go to the first episode.

    >>> over_cap(["a", "b", "a"], 1), over_cap(["a", "b", "a"], 1, [(0.5,), (0.0,), (1.0,)])
    ({2: 'its task has 1 already'}, {0: 'its task has 1 already'})

    Args:
        tasks: task id of each episode.
        cap: maximum episodes per task.
        worth: sort key of each episode, higher is better; () for equal values.
    """
    counts, refused = Counter[str](), dict[int, str]()
    order = sorted(range(len(tasks)), key=lambda place: worth[place], reverse=True) if worth else range(len(tasks))
    for place in order:
        task = tasks[place]
        if cap and counts[task] == cap:
            refused[place] = f"its task has {cap} already"
        else:
            counts[task] += 1
    return dict(sorted(refused.items()))


def out_of_balance(tasks: Sequence[Task], by: str) -> Refused:
    """Return the rejections that reduce every value of a field to the count of the rarest value.

    As many tasks as possible are kept: for each value, the first episode of every task comes before second episodes.

    >>> tasks = [Task(str(n), "?", {"level": level}) for n, level in enumerate([1, 1, 2])]
    >>> list(out_of_balance(tasks, "level"))
    [1]
    """
    kinds: dict[str, list[int]] = {}
    for place, task in enumerate(tasks):
        kinds.setdefault(str(task.data.get(by, "")), []).append(place)
    fewest = min(map(len, kinds.values()), default=0)
    refused = dict[int, str]()
    for places in kinds.values():
        order = sorted(_rounds(places, tasks), key=lambda pair: pair[0])
        refused |= {place: OTHERS_BALANCE for _, place in order[fewest:]}
    return dict(sorted(refused.items()))


def _rounds(places: Sequence[int], tasks: Sequence[Task]) -> list[tuple[int, int]]:
    """Return each index with the number of earlier episodes at the same task."""
    counts, found = Counter[str](), list[tuple[int, int]]()
    for place in places:
        found.append((counts[tasks[place].id], place))
        counts[tasks[place].id] += 1
    return found
