"""Loading of problems from tables, split by their statements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from marft.common.errors import UserError
from marft.common.types import Task
from marft.config.interfaces.environment import Split
from marft.envs.splits import assign_split
from marft.envs.table_rows import Row, read_table
from marft.envs.tasks import DIGEST_KEY
from marft_envs.code.formats import FORMATS, ParsedRow, detect_format
from marft_envs.code.problems import Problem

Layout = Literal["auto", "apps", "codeforces", "humaneval", "livecodebench", "mbpp", "plain"]


class ReadOptions(NamedTuple):
    """Options for reading rows."""

    layout: Layout
    skip_ungradable: bool  # True to skip rows that cannot be graded
    example_count: int  # shown tests, if the dataset defines none
    max_tests: int  # maximum hidden tests per training problem; 0: all
    limit: int  # maximum tasks per split; 0: all


class LoadedProblems(NamedTuple):
    """Tasks by split, and problems by task id.

    Problems are separate because hidden tests can be large, and tasks are stored with their episodes.
    """

    tasks: Mapping[Split, list[Task]]
    problems: Mapping[str, Problem]


def load_problems(tables: Mapping[str, tuple[str, str]], subset: str, options: ReadOptions) -> LoadedProblems:
    """Read tables for ``train`` and optionally ``test``, each given by a path and a split name.

    Duplicate problems are dropped. A problem in the test split is in no other split.

    Args:
        tables: path and split to read, by table name.
        subset: dataset configuration on the Hugging Face Hub.
        options: options for reading rows.

    Raises:
        UserError: a table or a row cannot be read. The message says which, and the remedy.
    """
    tasks: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
    problems: dict[str, Problem] = {}
    seen = set[str]()
    for name in sorted(tables):  # test comes first
        path, part = tables[name]
        for number, content, parsed in _read_problems(path, subset, part, options):
            statement = " ".join(parsed.problem.statement.split())
            if statement in seen:
                continue
            seen.add(statement)
            split = "test" if name == "test" else assign_split(statement)
            split = "train" if name != "test" and "test" in tables and split == "test" else split
            task_id = _unique_name(parsed.name or f"{Path(path).stem}/{number}", problems)
            problems[task_id] = _limit_tests(parsed.problem, options.max_tests if split == "train" else 0)
            tasks[split].append(Task(task_id, parsed.problem.statement, {"row": number, DIGEST_KEY: content}))
    return LoadedProblems(
        {split: split_tasks[: options.limit or None] for split, split_tasks in tasks.items()}, problems
    )


def _read_problems(path: str, subset: str, part: str, options: ReadOptions) -> Iterator[tuple[int, str, ParsedRow]]:
    """Yield each row's number, digest and problem."""
    layout = ""
    for number, row in enumerate(read_table(path, subset, part)):
        layout = layout or (detect_format(row) if options.layout == "auto" else options.layout)
        try:
            parsed = _parse_row(row, layout, options)
        except (ValueError, RecursionError, MemoryError) as error:
            problem = str(error) if isinstance(error, ValueError) else "is nested too deep to be read"
            if options.skip_ungradable and not problem.startswith("environment:"):
                continue
            raise UserError(_error_message(row, layout, problem)) from error
        yield number, row.digest, parsed


def _parse_row(row: Row, layout: str, options: ReadOptions) -> ParsedRow:
    parsed = FORMATS[layout](row, options.example_count)
    if not parsed.problem.statement.strip():
        raise UserError("asks nothing")
    if not parsed.problem.test_count:
        raise UserError("has no test that is not shown")
    return parsed


def _error_message(row: Row, layout: str, problem: str) -> str:
    if problem.startswith("environment:"):
        return problem
    return (
        f"environment: {row.location}, read as {layout}: {problem}; put it right, name another layout, or leave such "
        "rows out "
        '(ungradable = "skip")'
    )


def _limit_tests(problem: Problem, limit: int) -> Problem:
    if not limit or problem.test_count <= limit:
        return problem
    if problem.asserts:
        return replace(problem, asserts=replace(problem.asserts, tests=problem.asserts.tests[:limit]))
    return replace(problem, cases=problem.cases[:limit])


def _unique_name(name: str, used: Mapping[str, object]) -> str:
    number, free = 1, name
    while free in used:
        number += 1
        free = f"{name}#{number}"
    return free
