"""Reading of benchmark files by format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from marft.envs.text_tables import twice_in
from marft_envs.tool_use.loading.bfcl import bfcl_tasks
from marft_envs.tool_use.loading.files import Loaded, text_of
from marft_envs.tool_use.loading.tau import tau_tables, tau_tasks
from marft_envs.tool_use.loading.tau2 import tau2_tables, tau2_tasks

Format = Literal["tau", "tau2", "bfcl"]
TABLES: Mapping[str, Callable[[str], Mapping[str, Mapping[str, object]]]] = {"tau": tau_tables, "tau2": tau2_tables}

__all__ = ["Format", "Loaded", "load"]


def load(format: Format, tasks: str, database: str, answers: str, policy: str, tables: bool = True) -> Loaded:
    """Load tasks, database and rules.

    Args:
        format: benchmark format.
        tasks: path of the tasks.
        database: path of the tables; "" if the format has none.
        answers: path of the reference calls, if they are in a separate file.
        policy: path of the rules; "" for no rules.
        tables: True to read the tables too.

    Raises:
        ValueError: a file cannot be read, has another layout, or has two tasks with the same id. The message names the
            file, the position and the requirement.
    """
    if format == "bfcl":
        found = bfcl_tasks(tasks, answers)
    else:
        found = tau_tasks(tasks) if format == "tau" else tau2_tasks(tasks)
    if (name := twice_in(task.id for task in found)) is not None:
        raise ValueError(
            f"environment.data.tasks: {tasks} has two tasks of the id {name!r}, and one would be held to what the "
            "other asks; rename one, or leave it out"
        )
    read = TABLES[format](database) if tables and format in TABLES else {}
    return Loaded(found, read, text_of(policy) if policy else "")
