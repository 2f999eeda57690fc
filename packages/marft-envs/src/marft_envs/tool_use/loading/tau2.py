"""τ²-bench tasks (Barres et al. 2025): ``tasks.json`` with ``db.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft.common.types import Task
from marft_envs.tool_use.loading.files import (
    optional_list,
    read_json,
    require_field,
    require_table,
    require_tables,
    text_list,
)

FORMAT_NAME = "tau2"
DEFAULT_REWARD_BASIS = ["DB", "COMMUNICATE"]  # default reward basis of a task
SCENARIO_PARTS = {  # parts of a user scenario, in the order of the prompt
    "reason_for_call": "Why you call: {}",
    "known_info": "What you know: {}",
    "unknown_info": "What you do not know: {}",
    "task_instructions": "How to act: {}",
}


def read_tau2_tables(path: str) -> dict[str, dict[str, Any]]:
    """Read the tables in a ``db.json``.

    Raises:
        ValueError: the file has no users.
    """
    return require_tables(read_json(path), ("users",), path)


def read_tau2_tasks(path: str) -> list[Task]:
    """Read tasks from a file.

    The grade is based on the database. It also uses ``communicate_info`` if that is in the reward basis. Assertions for
    a model judge (``nl_assertions``) are not graded; the task's data lists them as ``not_checked``.

    Raises:
        ValueError: the file has another layout, or a task has its own initial state, tools for the user, or another
            reward basis.
    """
    loaded = read_json(path)
    rows = require_table(loaded, path).get("tasks") if isinstance(loaded, dict) else loaded
    if not isinstance(rows, list):
        raise ValueError(f"environment.data.tasks: {path} must be a list of tasks, or a table with one under 'tasks'")
    return [_parse_task(require_table(row, path), f"{path}, task {number}") for number, row in enumerate(rows)]


def read_tau2_splits(path: str) -> dict[str, str]:
    """Read the split of each task id, ``train`` or ``test``, from a ``split_tasks.json``.

    Raises:
        ValueError: a list is missing.
    """
    splits = require_table(read_json(path), path)
    return {
        f"{FORMAT_NAME}/{task_id}": split
        for split in ("train", "test")
        for task_id in require_field(splits, split, list, path)
    }


def _graded_parts(criteria: Mapping[str, Any], location: str) -> dict[str, list[str]]:
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
        raise ValueError(
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


def _parse_task(row: dict[str, Any], location: str) -> Task:
    name = str(require_field(row, "id", (str, int), location))
    scenario = require_field(row, "user_scenario", dict, location)
    criteria = require_field(row, "evaluation_criteria", dict, location)
    calls = []
    for number, action in enumerate(optional_list(criteria, "actions", location)):
        place = f"{location}, action {number}"
        call = require_table(action, place)
        if call.get("requestor", "assistant") != "assistant":
            raise ValueError(
                f"environment.data.tasks: {place} is the user's own ({call.get('name')}); tasks in which users have "
                "tools (telecom) cannot be played here: leave them out"
            )
        calls.append([require_field(call, "name", str, place), require_field(call, "arguments", dict, place)])
    if row.get("initial_state"):
        raise ValueError(
            f"environment.data.tasks: {location} begins in a state of its own (initial_state), which is not read here: "
            "write that state into a database of its own, and leave the key out"
        )
    words = _build_instruction(scenario, location)
    if not words.strip():
        raise ValueError(
            f"environment.data.tasks: {location} tells the user nothing; fill it in, or leave the task out"
        )
    return Task(
        f"{FORMAT_NAME}/{name}", words, {"instruction": words, "calls": calls, **_graded_parts(criteria, location)}
    )


def _build_instruction(scenario: Mapping[str, Any], location: str) -> str:
    instructions = require_field(scenario, "instructions", (dict, str), location)
    parts = (
        [instructions]
        if isinstance(instructions, str)
        else [words.format(instructions[key]) for key, words in SCENARIO_PARTS.items() if instructions.get(key)]
    )
    persona = scenario.get("persona")
    return "\n".join([*([f"Who you are: {persona}"] if persona else []), *parts])
