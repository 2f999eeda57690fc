"""Problems of tables, divided by what they ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from marft.agents.environment import Split
from marft.common.types import Task
from marft.envs.contents import CONTENT
from marft.envs.rows import Row, read_table
from marft.envs.splits import split_of
from marft_envs.code.formats import FORMATS, Read, format_of
from marft_envs.code.problems import Problem

Layout = Literal["auto", "apps", "codeforces", "humaneval", "livecodebench", "mbpp", "plain"]


class Wanted(NamedTuple):
    """What of the rows is taken, and how they are read."""

    layout: Layout
    leave_out: bool  # what cannot be graded
    shown: int  # tests that are shown, where the data does not say itself
    most_tests: int  # hidden ones of a problem to train on; 0: all
    limit: int  # tasks of a split; 0: all


class Loaded(NamedTuple):
    """Tasks by split, and the problems of all of them by the task's id: hidden tests may be large, and a task is
    stored with its episodes."""

    tasks: Mapping[Split, list[Task]]
    problems: Mapping[str, Problem]


def load(tables: Mapping[str, tuple[str, str]], subset: str, wanted: Wanted) -> Loaded:
    """Read the tables of ``train`` and, where there is one, ``test``, each a path and the part that is read.

    A problem that comes again is left out; one that is in the test is in no other split.

    Raises:
        ValueError: a table or a row cannot be read; the message says which, and what to do.
    """
    tasks: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
    problems: dict[str, Problem] = {}
    seen = set[str]()
    for name in sorted(tables):  # the test first
        path, part = tables[name]
        for number, content, read in _read(path, subset, part, wanted):
            statement = " ".join(read.problem.statement.split())
            if statement in seen:
                continue
            seen.add(statement)
            split = "test" if name == "test" else split_of(statement)
            split = "train" if name != "test" and "test" in tables and split == "test" else split
            identity = _free(read.name or f"{Path(path).stem}/{number}", problems)
            problems[identity] = _cut(read.problem, wanted.most_tests if split == "train" else 0)
            tasks[split].append(Task(identity, read.problem.statement, {"row": number, CONTENT: content}))
    return Loaded({split: found[: wanted.limit or None] for split, found in tasks.items()}, problems)


def _read(path: str, subset: str, part: str, wanted: Wanted) -> Iterator[tuple[int, str, Read]]:
    """Each row's number, its digest, and the problem that it is."""
    layout = ""
    for number, row in enumerate(read_table(path, subset, part)):
        layout = layout or (format_of(row) if wanted.layout == "auto" else wanted.layout)
        try:
            read = _one(row, layout, wanted)
        except (ValueError, RecursionError, MemoryError) as error:
            why = str(error) if isinstance(error, ValueError) else "is nested too deep to be read"
            if wanted.leave_out and not why.startswith("environment:"):
                continue
            raise ValueError(_refusal(row, layout, why)) from error
        yield number, row.digest, read


def _one(row: Row, layout: str, wanted: Wanted) -> Read:
    read = FORMATS[layout](row, wanted.shown)
    if not read.problem.statement.strip():
        raise ValueError("asks nothing")
    if not read.problem.tests:
        raise ValueError("has no test that is not shown")
    return read


def _refusal(row: Row, layout: str, why: str) -> str:
    if why.startswith("environment:"):
        return why
    return (
        f"environment: {row.place}, read as {layout}: {why}; put it right, name another layout, or leave such rows out "
        '(ungradable = "leave_out")'
    )


def _cut(problem: Problem, most: int) -> Problem:
    if not most or problem.tests <= most:
        return problem
    if problem.asserts:
        return replace(problem, asserts=replace(problem.asserts, tests=problem.asserts.tests[:most]))
    return replace(problem, cases=problem.cases[:most])


def _free(name: str, taken: Mapping[str, object]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}#{number}"
    return free
