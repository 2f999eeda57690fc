"""Loading of problems from tables, split by their statements."""

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
    """Options for reading rows."""

    layout: Layout
    leave_out: bool  # True to skip rows that cannot be graded
    shown: int  # shown tests, if the dataset defines none
    most_tests: int  # maximum hidden tests per training problem; 0: all
    limit: int  # maximum tasks per split; 0: all


class Loaded(NamedTuple):
    """Tasks by split, and problems by task id.

    Problems are separate because hidden tests can be large, and tasks are stored with their episodes.
    """

    tasks: Mapping[Split, list[Task]]
    problems: Mapping[str, Problem]


def load(tables: Mapping[str, tuple[str, str]], subset: str, wanted: Wanted) -> Loaded:
    """Read tables for ``train`` and optionally ``test``, each given by a path and a split name.

    Duplicate problems are dropped. A problem in the test split is in no other split.

    Args:
        tables: path and split to read, by table name.
        subset: dataset configuration on the Hugging Face Hub.
        wanted: options for reading rows.

    Raises:
        ValueError: a table or a row cannot be read. The message says which, and the remedy.
    """
    tasks: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
    problems: dict[str, Problem] = {}
    seen = set[str]()
    for name in sorted(tables):  # test comes first
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
    """Yield each row's number, digest and problem."""
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
