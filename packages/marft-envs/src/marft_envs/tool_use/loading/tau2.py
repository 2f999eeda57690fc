"""τ²-bench tasks (Barres et al. 2025): ``tasks.json`` with ``db.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft.common.types import Task
from marft_envs.tool_use.loading.files import field, json_of, listed, table, tables_in, texts

FORMAT = "tau2"
BASIS = ["DB", "COMMUNICATE"]  # default reward basis of a task
PARTS = {  # parts of a user scenario, in the order of the prompt
    "reason_for_call": "Why you call: {}",
    "known_info": "What you know: {}",
    "unknown_info": "What you do not know: {}",
    "task_instructions": "How to act: {}",
}


def tau2_tables(path: str) -> dict[str, dict[str, Any]]:
    """Read the tables in a ``db.json``.

    Raises:
        ValueError: the file has no users.
    """
    return tables_in(json_of(path), ("users",), path)


def tau2_tasks(path: str) -> list[Task]:
    """Read tasks from a file.

    The grade is based on the database. It also uses ``communicate_info`` if that is in the reward basis. Assertions for
    a model judge (``nl_assertions``) are not graded; the task's data lists them as ``not_checked``.

    Raises:
        ValueError: the file has another layout, or a task has its own initial state, tools for the user, or another
            reward basis.
    """
    found = json_of(path)
    rows = table(found, path).get("tasks") if isinstance(found, dict) else found
    if not isinstance(rows, list):
        raise ValueError(f"environment.data.tasks: {path} must be a list of tasks, or a table with one under 'tasks'")
    return [_task(table(row, path), f"{path}, task {number}") for number, row in enumerate(rows)]


def tau2_splits(path: str) -> dict[str, str]:
    """Read the split of each task id, ``train`` or ``test``, from a ``split_tasks.json``.

    Raises:
        ValueError: a list is missing.
    """
    found = table(json_of(path), path)
    return {f"{FORMAT}/{one}": split for split in ("train", "test") for one in field(found, split, list, path)}


def _judged(criteria: Mapping[str, Any], where: str) -> dict[str, list[str]]:
    """Return required outputs and assertions for a model judge, each if its kind is in ``reward_basis``."""
    basis = texts(criteria, "reward_basis", where) if criteria.get("reward_basis") is not None else BASIS
    unknown = [
        kind for kind, name in (("ACTION", "actions"), ("ENV_ASSERTION", "env_assertions"))
        if kind in basis and criteria.get(name)
    ]  # fmt: skip
    if "DB" not in basis or unknown:
        what = f"is rewarded by {unknown[0]}" if unknown else "is not rewarded by its database (DB)"
        raise ValueError(
            f"environment.data.tasks: {where} {what} (reward_basis), which is not so here: leave it out, or change its "
            "reward_basis"
        )
    outputs, judged = texts(criteria, "communicate_info", where), texts(criteria, "nl_assertions", where)
    return {
        "outputs": outputs if "COMMUNICATE" in basis else [],
        "not_checked": judged if "NL_ASSERTION" in basis else [],
    }


def _task(row: dict[str, Any], where: str) -> Task:
    name = str(field(row, "id", (str, int), where))
    scenario = field(row, "user_scenario", dict, where)
    criteria = field(row, "evaluation_criteria", dict, where)
    calls = []
    for number, action in enumerate(listed(criteria, "actions", where)):
        place = f"{where}, action {number}"
        made = table(action, place)
        if made.get("requestor", "assistant") != "assistant":
            raise ValueError(
                f"environment.data.tasks: {place} is the user's own ({made.get('name')}); tasks in which users have "
                "tools (telecom) cannot be played here: leave them out"
            )
        calls.append([field(made, "name", str, place), field(made, "arguments", dict, place)])
    if row.get("initial_state"):
        raise ValueError(
            f"environment.data.tasks: {where} begins in a state of its own (initial_state), which is not read here: "
            "write that state into a database of its own, and leave the key out"
        )
    words = _instruction(scenario, where)
    if not words.strip():
        raise ValueError(f"environment.data.tasks: {where} tells the user nothing; fill it in, or leave the task out")
    return Task(f"{FORMAT}/{name}", words, {"instruction": words, "calls": calls, **_judged(criteria, where)})


def _instruction(scenario: Mapping[str, Any], where: str) -> str:
    told = field(scenario, "instructions", (dict, str), where)
    parts = [told] if isinstance(told, str) else [
        words.format(told[key]) for key, words in PARTS.items() if told.get(key)
    ]  # fmt: skip
    persona = scenario.get("persona")
    return "\n".join([*([f"Who you are: {persona}"] if persona else []), *parts])
