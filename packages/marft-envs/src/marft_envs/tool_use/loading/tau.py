"""τ-bench tasks (Yao et al. 2024): Python files with ``Task(…)`` calls, JSON or JSONL.

Python files are parsed and never executed.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from marft.common.faults import described
from marft.common.types import Task
from marft_envs.tool_use.loading.files import field, json_of, lines_of, table, text_of, texts

TABLES = ("users", "orders", "products", "flights", "reservations")


def tau_tables(folder: str) -> dict[str, dict[str, Any]]:
    """Read the tables in a domain's data folder.

    The files are users.json, and orders.json with products.json, or flights.json with reservations.json.

    Raises:
        ValueError: users.json is missing, or a table cannot be read.
    """
    there = [name for name in TABLES if (Path(folder) / f"{name}.json").exists()]
    if "users" not in there:
        raise ValueError(
            f"environment.data.database: {folder} has no users.json; give the folder tau_bench/envs/…/data of a domain"
        )
    paths = {name: str(Path(folder) / f"{name}.json") for name in there}
    return {name: table(json_of(path), path) for name, path in paths.items()}


def tau_tasks(path: str) -> list[Task]:
    """Read tasks from a file.

    Each task has an instruction for the user's role, reference calls, and texts that the user must receive.

    Raises:
        ValueError: the file has another layout.
    """
    if path.endswith(".py"):
        rows = _in_python(path)
    elif path.endswith(".jsonl"):
        rows = lines_of(path)
    else:
        found = json_of(path)
        if not isinstance(found, list):
            raise ValueError(f"environment.data.tasks: {path} must be a list of tasks")
        rows = [(f"{path}, task {number}", table(row, path)) for number, row in enumerate(found)]
    return [_task(row, where, f"{Path(path).stem}/{number}") for number, (where, row) in enumerate(rows)]


def _task(row: dict[str, Any], where: str, name: str) -> Task:
    words = field(row, "instruction", str, where)
    if not words.strip():
        raise ValueError(f"environment.data.tasks: {where}: 'instruction' is empty; fill it in, or leave the task out")
    calls = []
    for number, action in enumerate(field(row, "actions", list, where)):
        place = f"{where}, action {number}"
        made = table(action, place)
        if made.get("name") != "respond":
            calls.append([field(made, "name", str, place), field(made, "kwargs", dict, place)])
    data = {"instruction": words, "calls": calls, "outputs": texts(row, "outputs", where)}
    return Task(name, words, data)


def _in_python(path: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the arguments for each ``Task(…)`` call in a file."""
    try:
        tree = ast.parse(text_of(path))
    except (SyntaxError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else "it is nested too deep"
        raise ValueError(f"environment.data.tasks: {path} is no Python: {why}") from error
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is(node, "Task")]
    if not found:
        raise ValueError(f"environment.data.tasks: {path} has no Task(…); give tasks_test.py of a domain, or JSON")
    return [(f"{path}, line {node.lineno}", _arguments(node, path)) for node in found]


def _is(node: ast.Call, name: str) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == name


def _arguments(node: ast.Call, path: str) -> dict[str, Any]:
    try:
        return {word.arg: _value(word.value) for word in node.keywords if word.arg}
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"environment.data.tasks: {path}, line {node.lineno}: {described(error)}") from error


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and _is(node, "Action"):
        return {word.arg: _value(word.value) for word in node.keywords if word.arg}
    if isinstance(node, ast.List):
        return [_value(one) for one in node.elts]
    return ast.literal_eval(node)
