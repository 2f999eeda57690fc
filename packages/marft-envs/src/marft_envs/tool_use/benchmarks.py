"""Loading of tasks from local files in public benchmark layouts. Python in them is parsed and never executed.

- τ-bench (Yao et al. 2024): Python files with ``Task(…)`` calls, JSON or JSONL.
- τ²-bench (Barres et al. 2025): ``tasks.json`` with ``db.json``.
- Multi-turn tasks from the Berkeley function-calling leaderboard (Patil et al.): JSONL with messages, an initial state,
  and calls written as Python.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from marft.common.atomic import read_text
from marft.common.error_origin import describe_error
from marft.common.errors import UserError
from marft.common.texts import truncate
from marft.common.types import Task
from marft.envs.table_files import find_duplicate
from marft_envs.tool_use.goals import Calls
from marft_envs.tool_use.toolbox import Database, Record, RecordView


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Tasks, their initial database, and rules shown to agents."""

    tasks: Sequence[Task]
    tables: Database
    policy: str


def reference_calls(data: RecordView) -> Calls:
    """Return a task's reference calls, in order."""
    return [call for turn in data["turns"] for call in turn] if "turns" in data else data["calls"]


def drop_overlapping(tasks: Iterable[Task], held_out: Iterable[Task]) -> list[Task]:
    """Drop tasks that share a request with a held-out task.

    Files in a benchmark often vary the same questions. Some tasks share only a single turn.
    """
    held_out_texts = {words for task in held_out for words in _request_texts(task)}
    return [task for task in tasks if held_out_texts.isdisjoint(_request_texts(task))]


def _request_texts(task: Task) -> set[str]:
    """Return the requests from every turn, without case and spacing."""
    return {" ".join(words.split()).casefold() for words in task.data.get("asks", [task.prompt])}


def read_benchmark_text(path: str) -> str:
    """Read a text file.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"environment.data: {path} cannot be read ({error}); give the path of the file") from error


def read_json(path: str) -> Any:
    """Read a JSON file.

    Raises:
        UserError: the file cannot be read, or is not JSON.
    """
    return parse_json(read_benchmark_text(path), path)


def parse_json(text: str, location: str) -> Any:
    """Parse JSON text.

    Raises:
        UserError: the text is not JSON; the message names ``location``.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"environment.data: {location} is no JSON: {error}") from error


def read_json_lines(path: str) -> list[tuple[str, Record]]:
    """Read the objects in a JSONL file, each with its position: ``tasks.json, line 3``.

    Raises:
        UserError: a line is not a JSON object.
    """
    rows = []
    for number, line in enumerate(read_benchmark_text(path).split("\n"), 1):
        if line.strip():
            location = f"{path}, line {number}"
            rows.append((location, require_table(parse_json(line, location), location)))
    return rows


def require_table(value: object, location: str) -> Record:
    """Return ``value`` if it is a table.

    Raises:
        UserError: the value is not a JSON object.
    """
    if not isinstance(value, dict):
        raise UserError(f"environment.data: {location} is {truncate(repr(value), 100)}, and must be a JSON object")
    return value


def require_field(row: RecordView, name: str, kind: type | tuple[type, ...], location: str) -> Any:
    """Return a required field from a table.

    Raises:
        UserError: the field is missing, or has another type.
    """
    value = row.get(name)
    if not isinstance(value, kind):
        names = " or ".join(type_item.__name__ for type_item in (kind if isinstance(kind, tuple) else (kind,)))
        value_text = truncate(repr(value), 100) if name in row else "missing"
        raise UserError(f"environment.data: {location}: {name!r} is {value_text}, and must be of type {names}")
    return value


def optional_list(row: RecordView, name: str, location: str) -> list[Any]:
    """Return a list field from a table; empty if missing or null.

    Raises:
        UserError: the field is not a list.
    """
    return [] if row.get(name) is None else list(require_field(row, name, list, location))


def text_list(row: RecordView, name: str, location: str) -> list[str]:
    """Return a list field as strings; numbers are converted.

    Raises:
        UserError: the field is not a list, or has an item that is neither text nor a number.
    """
    values = optional_list(row, name, location)
    bad_value = next(
        (item for item in values if isinstance(item, bool) or not isinstance(item, str | int | float)), None
    )
    if bad_value is not None:
        raise UserError(
            f"environment.data: {location}: {name!r} holds {truncate(repr(bad_value), 100)}, and must hold texts"
        )
    return [str(item) for item in values]


def check_records(tables: Database, names: Sequence[str], world: str, location: str) -> None:
    """Check that a world's tables exist and contain records.

    Raises:
        UserError: a table is missing, or has a value that is not a record.
    """
    missing = [name for name in names if name not in tables]
    if missing:
        raise UserError(
            f"environment.data.database: {location} has no table of {' and '.join(missing)}, which the world "
            f"{world!r} needs; give the database of that domain, or name the other world"
        )
    for name in names:
        for key, record in tables[name].items():
            require_table(record, f"{location}, {name}, {key!r}")


def require_tables(value: object, names: Sequence[str], location: str) -> dict[str, Record]:
    """Return the tables in a JSON value, each with records by key.

    Raises:
        UserError: the value is not an object, or a table in ``names`` is missing.
    """
    tables = require_table(value, location)
    if not set(names) <= tables.keys():
        raise UserError(f"environment.data: {location} has no {' or '.join(names)}; it must hold tables of these names")
    return {name: require_table(rows, f"{location}: {name}") for name, rows in tables.items() if isinstance(rows, dict)}


TABLES = ("users", "orders", "products", "flights", "reservations")


def read_tau_tables(folder: str) -> dict[str, Record]:
    """Read the tables in a domain's data folder.

    The files are users.json, and orders.json with products.json, or flights.json with reservations.json.

    Raises:
        UserError: users.json is missing, or a table cannot be read.
    """
    present = [name for name in TABLES if (Path(folder) / f"{name}.json").exists()]
    if "users" not in present:
        raise UserError(
            f"environment.data.database: {folder} has no users.json; give the folder tau_bench/envs/…/data of a domain"
        )
    paths = {name: str(Path(folder) / f"{name}.json") for name in present}
    return {name: require_table(read_json(path), path) for name, path in paths.items()}


def read_tau_tasks(path: str) -> list[Task]:
    """Read tasks from a file.

    Each task has an instruction for the user's role, reference calls, and texts that the user must receive.

    Raises:
        UserError: the file has another layout.
    """
    if path.endswith(".py"):
        rows = _read_python_tasks(path)
    elif path.endswith(".jsonl"):
        rows = read_json_lines(path)
    else:
        loaded = read_json(path)
        if not isinstance(loaded, list):
            raise UserError(f"environment.data.tasks: {path} must be a list of tasks")
        rows = [(f"{path}, task {number}", require_table(row, path)) for number, row in enumerate(loaded)]
    return [
        _parse_tau_task(row, location, f"{Path(path).stem}/{number}") for number, (location, row) in enumerate(rows)
    ]


def _parse_tau_task(row: Record, location: str, name: str) -> Task:
    words = require_field(row, "instruction", str, location)
    if not words.strip():
        raise UserError(
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


def _read_python_tasks(path: str) -> list[tuple[str, Record]]:
    """Return the arguments for each ``Task(…)`` call in a file."""
    try:
        tree = ast.parse(read_benchmark_text(path))
    except (SyntaxError, RecursionError, MemoryError) as error:
        problem = error.msg if isinstance(error, SyntaxError) else "it is nested too deep"
        raise UserError(f"environment.data.tasks: {path} is no Python: {problem}") from error
    task_calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_call_to(node, "Task")]
    if not task_calls:
        raise UserError(f"environment.data.tasks: {path} has no Task(…); give tasks_test.py of a domain, or JSON")
    return [(f"{path}, line {node.lineno}", _keyword_arguments(node, path)) for node in task_calls]


def _is_call_to(node: ast.Call, name: str) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == name


def _keyword_arguments(node: ast.Call, path: str) -> Record:
    try:
        return {word.arg: _literal_value(word.value) for word in node.keywords if word.arg}
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise UserError(f"environment.data.tasks: {path}, line {node.lineno}: {describe_error(error)}") from error


def _literal_value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and _is_call_to(node, "Action"):
        return {word.arg: _literal_value(word.value) for word in node.keywords if word.arg}
    if isinstance(node, ast.List):
        return [_literal_value(element) for element in node.elts]
    return ast.literal_eval(node)


FORMAT_NAME = "tau2"
DEFAULT_REWARD_BASIS = ["DB", "COMMUNICATE"]  # default reward basis of a task
SCENARIO_PARTS = {  # parts of a user scenario, in the order of the prompt
    "reason_for_call": "Why you call: {}",
    "known_info": "What you know: {}",
    "unknown_info": "What you do not know: {}",
    "task_instructions": "How to act: {}",
}


def read_tau2_tables(path: str) -> dict[str, Record]:
    """Read the tables in a ``db.json``.

    Raises:
        UserError: the file has no users.
    """
    return require_tables(read_json(path), ("users",), path)


def read_tau2_tasks(path: str) -> list[Task]:
    """Read tasks from a file.

    The grade is based on the database. It also uses ``communicate_info`` if that is in the reward basis. Assertions for
    a model judge (``nl_assertions``) are not graded; the task's data lists them as ``not_checked``.

    Raises:
        UserError: the file has another layout, or a task has its own initial state, tools for the user, or another
            reward basis.
    """
    loaded = read_json(path)
    rows = require_table(loaded, path).get("tasks") if isinstance(loaded, dict) else loaded
    if not isinstance(rows, list):
        raise UserError(f"environment.data.tasks: {path} must be a list of tasks, or a table with one under 'tasks'")
    return [_parse_tau2_task(require_table(row, path), f"{path}, task {number}") for number, row in enumerate(rows)]


def read_tau2_splits(path: str) -> dict[str, str]:
    """Read the split of each task id, ``train`` or ``test``, from a ``split_tasks.json``.

    Raises:
        UserError: a list is missing.
    """
    splits = require_table(read_json(path), path)
    return {
        f"{FORMAT_NAME}/{task_id}": split
        for split in ("train", "test")
        for task_id in require_field(splits, split, list, path)
    }


def _graded_parts(criteria: RecordView, location: str) -> dict[str, list[str]]:
    """Return required outputs and assertions for a model judge, each if its kind is in ``reward_basis``."""
    basis = (
        text_list(criteria, "reward_basis", location)
        if criteria.get("reward_basis") is not None
        else DEFAULT_REWARD_BASIS
    )
    unknown = [
        kind
        for kind, name in (("ACTION", "actions"), ("ENV_ASSERTION", "env_assertions"))
        if kind in basis and criteria.get(name)
    ]
    if "DB" not in basis or unknown:
        problem = f"is rewarded by {unknown[0]}" if unknown else "is not rewarded by its database (DB)"
        raise UserError(
            f"environment.data.tasks: {location} {problem} (reward_basis), which is not so here: leave it out, or "
            "change its reward_basis"
        )
    outputs, model_assertions = (
        text_list(criteria, "communicate_info", location),
        text_list(criteria, "nl_assertions", location),
    )
    return {
        "outputs": outputs if "COMMUNICATE" in basis else [],
        "not_checked": model_assertions if "NL_ASSERTION" in basis else [],
    }


def _parse_tau2_task(row: Record, location: str) -> Task:
    name = str(require_field(row, "id", (str, int), location))
    scenario = require_field(row, "user_scenario", dict, location)
    criteria = require_field(row, "evaluation_criteria", dict, location)
    calls = []
    for number, action in enumerate(optional_list(criteria, "actions", location)):
        place = f"{location}, action {number}"
        call = require_table(action, place)
        if call.get("requestor", "assistant") != "assistant":
            raise UserError(
                f"environment.data.tasks: {place} is the user's own ({call.get('name')}); tasks in which users have "
                "tools (telecom) cannot be played here: leave them out"
            )
        calls.append([require_field(call, "name", str, place), require_field(call, "arguments", dict, place)])
    if row.get("initial_state"):
        raise UserError(
            f"environment.data.tasks: {location} begins in a state of its own (initial_state), which is not read here: "
            "write that state into a database of its own, and leave the key out"
        )
    words = _build_instruction(scenario, location)
    if not words.strip():
        raise UserError(f"environment.data.tasks: {location} tells the user nothing; fill it in, or leave the task out")
    return Task(
        f"{FORMAT_NAME}/{name}", words, {"instruction": words, "calls": calls, **_graded_parts(criteria, location)}
    )


def _build_instruction(scenario: RecordView, location: str) -> str:
    instructions = require_field(scenario, "instructions", (dict, str), location)
    parts = (
        [instructions]
        if isinstance(instructions, str)
        else [words.format(instructions[key]) for key, words in SCENARIO_PARTS.items() if instructions.get(key)]
    )
    persona = scenario.get("persona")
    return "\n".join([*([f"Who you are: {persona}"] if persona else []), *parts])


LONG_CONTEXT_NAMES = ("long_context", "composite")  # parts of the ids of tasks with long states
CONTINUE_MESSAGE = "Go on."  # message in a turn without text
NEW_TOOLS_MESSAGE = "There are more tools now: {}."  # message in the turn that adds withheld tools


def read_bfcl_tasks(path: str, answers: str) -> list[Task]:
    """Read tasks from a file, with reference calls per turn from ``answers``.

    Raises:
        UserError: a row has another layout, or has no answer.
    """
    answers_by_id: dict[str, tuple[str, list[Any]]] = {}
    for location, row in read_json_lines(answers):
        if (name := require_field(row, "id", str, location)) in answers_by_id:
            raise UserError(
                f"environment.data.answers: {location}: {name!r} stands in {answers_by_id[name][0]} too; leave one out"
            )
        answers_by_id[name] = location, require_field(row, "ground_truth", list, location)
    tasks = []
    for location, row in read_json_lines(path):
        name = require_field(row, "id", str, location)
        if name not in answers_by_id:
            raise UserError(
                f"environment.data: {location}: {answers} has no {name!r}; give the file that belongs to it"
            )
        answer_location, turns = answers_by_id[name]
        if not all(isinstance(turn, list) and all(isinstance(text, str) for text in turn) for turn in turns):
            raise UserError(
                f"environment.data.answers: {answer_location}: each turn of 'ground_truth' must be a list of texts"
            )
        withheld_tools = _withheld_tools(row, location)
        user_texts = _user_texts(require_field(row, "question", list, location), location)
        messages = _turn_messages(user_texts, withheld_tools)
        if len(turns) != len(messages):
            raise UserError(
                f"environment.data.answers: {answer_location}: 'ground_truth' has {len(turns)} turns, and 'question' "
                f"of {location} {len(messages)}; give the file that belongs to it"
            )
        class_names = require_field(row, "involved_classes", list, location) and text_list(
            row, "involved_classes", location
        )
        data = {
            "messages": messages,
            "asks": [words for words in user_texts if words],
            "held_back": withheld_tools,
            "initial": require_field(row, "initial_config", dict, location),
            "classes": class_names,
            "excluded": text_list(row, "excluded_function", location),
            "long_context": any(kind in name.rpartition("_")[0] for kind in LONG_CONTEXT_NAMES),
            "turns": [[parse_call(text, answer_location) for text in turn] for turn in turns],
        }
        tasks.append(Task(name, messages[0], data))
    return tasks


def parse_call(text: str, location: str) -> list[Any]:
    """Parse a Python call with constant arguments.

    >>> parse_call("mv(source='a.txt', destination='b')", "")
    ['mv', {'source': 'a.txt', 'destination': 'b'}]

    Positional arguments get the names ``*0``, ``*1``, …

    Raises:
        UserError: the text is not a call with constant arguments.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if not isinstance(node, ast.Call):
            raise SyntaxError("no call")
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        named = {word.arg: ast.literal_eval(word.value) for word in node.keywords if word.arg}
        positional = {f"*{index}": ast.literal_eval(argument) for index, argument in enumerate(node.args)}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise UserError(
            f"environment.data.answers: {location}: {truncate(repr(text), 100)} is no call of a tool: "
            f"{describe_error(error)}"
        ) from error
    return [name, {**positional, **named}]


def _withheld_tools(row: Record, location: str) -> dict[str, list[str]]:
    """Return the tools that become available in a turn, by turn index from 0."""
    withheld = require_table(row.get("missed_function", {}), location)
    for turn in withheld:
        if not turn.isdecimal():
            raise UserError(
                f"environment.data: {location}: 'missed_function' has {truncate(repr(turn), 100)} for a turn"
            )
    return {turn: text_list(withheld, turn, location) for turn in withheld}


def _user_texts(question: list[Any], location: str) -> list[str]:
    """Return the user's text per turn; "" for a turn without text."""
    turns = []
    for turn in question:
        if not isinstance(turn, list):
            raise UserError(f"environment.data: {location}: each turn of 'question' must be a list of messages")
        turns.append(
            " ".join(filter(None, (str(require_table(message, location).get("content", "")) for message in turn)))
        )
    if not turns:
        raise UserError(f"environment.data: {location}: 'question' has no turns")
    return turns


def _turn_messages(user_texts: list[str], withheld: dict[str, list[str]]) -> list[str]:
    """Return the message shown to agents per turn: user text and new tools, or a request to continue."""
    new_tools = [withheld.get(str(number), []) for number in range(len(user_texts))]
    tool_messages = [NEW_TOOLS_MESSAGE.format(", ".join(names)) if names else "" for names in new_tools]
    return [" ".join(filter(None, parts)) or CONTINUE_MESSAGE for parts in zip(user_texts, tool_messages, strict=True)]


Format = Literal["tau", "tau2", "bfcl"]
TABLE_READERS: Mapping[str, Callable[[str], Mapping[str, Mapping[str, object]]]] = {
    "tau": read_tau_tables,
    "tau2": read_tau2_tables,
}

__all__ = ["Benchmark", "Format", "load_benchmark"]


def load_benchmark(
    format: Format, tasks: str, database: str, answers: str, policy: str, tables: bool = True
) -> Benchmark:
    """Load tasks, database and rules.

    Args:
        format: benchmark format.
        tasks: path of the tasks.
        database: path of the tables; "" if the format has none.
        answers: path of the reference calls, if they are in a separate file.
        policy: path of the rules; "" for no rules.
        tables: True to read the tables too.

    Raises:
        UserError: a file cannot be read, has another layout, or has two tasks with the same id. The message names the
            file, the position and the requirement.
    """
    if format == "bfcl":
        loaded_tasks = read_bfcl_tasks(tasks, answers)
    else:
        loaded_tasks = read_tau_tasks(tasks) if format == "tau" else read_tau2_tasks(tasks)
    if (name := find_duplicate(task.id for task in loaded_tasks)) is not None:
        raise UserError(
            f"environment.data.tasks: {tasks} has two tasks of the id {name!r}, and one would be held to what the "
            "other asks; rename one, or leave it out"
        )
    tables_read = TABLE_READERS[format](database) if tables and format in TABLE_READERS else {}
    return Benchmark(loaded_tasks, tables_read, read_benchmark_text(policy) if policy else "")
