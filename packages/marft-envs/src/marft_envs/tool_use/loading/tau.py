"""τ-bench tasks (Yao et al. 2024): Python files with ``Task(…)`` calls, JSON or JSONL.

Python files are parsed and never executed.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from marft.common.error_origin import describe_error
from marft.common.types import Task
from marft_envs.tool_use.loading.files import (
    read_benchmark_text,
    read_json,
    read_json_lines,
    require_field,
    require_table,
    text_list,
)

TABLES = ("users", "orders", "products", "flights", "reservations")


def read_tau_tables(folder: str) -> dict[str, dict[str, Any]]:
    """Read the tables in a domain's data folder.

    The files are users.json, and orders.json with products.json, or flights.json with reservations.json.

    Raises:
        ValueError: users.json is missing, or a table cannot be read.
    """
    present = [name for name in TABLES if (Path(folder) / f"{name}.json").exists()]
    if "users" not in present:
        raise ValueError(
            f"environment.data.database: {folder} has no users.json; give the folder tau_bench/envs/…/data of a domain"
        )
    paths = {name: str(Path(folder) / f"{name}.json") for name in present}
    return {name: require_table(read_json(path), path) for name, path in paths.items()}


def read_tau_tasks(path: str) -> list[Task]:
    """Read tasks from a file.

    Each task has an instruction for the user's role, reference calls, and texts that the user must receive.

    Raises:
        ValueError: the file has another layout.
    """
    if path.endswith(".py"):
        rows = _read_python_tasks(path)
    elif path.endswith(".jsonl"):
        rows = read_json_lines(path)
    else:
        loaded = read_json(path)
        if not isinstance(loaded, list):
            raise ValueError(f"environment.data.tasks: {path} must be a list of tasks")
        rows = [(f"{path}, task {number}", require_table(row, path)) for number, row in enumerate(loaded)]
    return [_parse_task(row, location, f"{Path(path).stem}/{number}") for number, (location, row) in enumerate(rows)]


def _parse_task(row: dict[str, Any], location: str, name: str) -> Task:
    words = require_field(row, "instruction", str, location)
    if not words.strip():
        raise ValueError(
            f"environment.data.tasks: {location}: 'instruction' is empty; fill it in, or leave the task out"
        )
    calls = []
    for number, action in enumerate(require_field(row, "actions", list, location)):
        place = f"{location}, action {number}"
        call = require_table(action, place)
        if call.get("name") != "respond":
            calls.append([require_field(call, "name", str, place), require_field(call, "kwargs", dict, place)])
    data = {"instruction": words, "calls": calls, "outputs": text_list(row, "outputs", location)}
    return Task(name, words, data)


def _read_python_tasks(path: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the arguments for each ``Task(…)`` call in a file."""
    try:
        tree = ast.parse(read_benchmark_text(path))
    except (SyntaxError, RecursionError, MemoryError) as error:
        problem = error.msg if isinstance(error, SyntaxError) else "it is nested too deep"
        raise ValueError(f"environment.data.tasks: {path} is no Python: {problem}") from error
    task_calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_call_to(node, "Task")]
    if not task_calls:
        raise ValueError(f"environment.data.tasks: {path} has no Task(…); give tasks_test.py of a domain, or JSON")
    return [(f"{path}, line {node.lineno}", _keyword_arguments(node, path)) for node in task_calls]


def _is_call_to(node: ast.Call, name: str) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == name


def _keyword_arguments(node: ast.Call, path: str) -> dict[str, Any]:
    try:
        return {word.arg: _literal_value(word.value) for word in node.keywords if word.arg}
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"environment.data.tasks: {path}, line {node.lineno}: {describe_error(error)}") from error


def _literal_value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and _is_call_to(node, "Action"):
        return {word.arg: _literal_value(word.value) for word in node.keywords if word.arg}
    if isinstance(node, ast.List):
        return [_literal_value(element) for element in node.elts]
    return ast.literal_eval(node)
