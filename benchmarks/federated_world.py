"""The demo's sums, divided among four sites.

A site has tasks of all kinds alike, or mostly of one kind of its own. There are four kinds, by the two signs of
``a ± b ± c``. Held-out tasks are of all kinds, and the same for all sites.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from marft.common.types import Task
from marft.config.interfaces.environment import Split
from marft.config.settings import Fraction
from marft.envs.reasoning_gym import ReasoningGym

KINDS = ("++", "+-", "-+", "--")
SIGNS = re.compile(r"(?<=\d) ([+-]) (?=\d|-)")
GOLDEN = 0.6180339887498949


class Dealt(ReasoningGym):
    """Training tasks dealt to four sites. No task belongs to two sites."""

    site: Annotated[int, Field(ge=-1, le=3)] = -1  # index of the site; -1: tasks of all sites
    skew: Fraction = 0.0  # the share of tasks that go to the site of their kind; the others are dealt in turn

    def tasks(self, split: Split) -> list[Task]:
        """Return the site's tasks."""
        found = list(super().tasks(split))
        return found if split != "train" or self.site < 0 else dealt(found, self.skew)[self.site]


def kind_of(task: Task) -> str:
    """Return the kind of a task: its two signs.

    >>> kind_of(Task("1", "State the final answer: 12 + 34 - 56 =", {}))
    '+-'
    """
    return "".join(SIGNS.findall(task.prompt))


def dealt(tasks: Sequence[Task], skew: float) -> list[list[Task]]:
    """Return the tasks of each site."""
    sites: list[list[Task]] = [[] for _ in KINDS]
    for number, task in enumerate(tasks):
        own = (number * GOLDEN) % 1 < skew  # evenly spread over the tasks
        sites[KINDS.index(kind_of(task)) if own else number % len(KINDS)].append(task)
    return sites
