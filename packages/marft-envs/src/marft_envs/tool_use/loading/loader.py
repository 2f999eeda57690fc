"""Reading of benchmark files by format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from marft.envs.text_tables import find_duplicate
from marft_envs.tool_use.loading.bfcl import read_bfcl_tasks
from marft_envs.tool_use.loading.files import Benchmark, read_benchmark_text
from marft_envs.tool_use.loading.tau import read_tau_tables, read_tau_tasks
from marft_envs.tool_use.loading.tau2 import read_tau2_tables, read_tau2_tasks

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
        ValueError: a file cannot be read, has another layout, or has two tasks with the same id. The message names the
            file, the position and the requirement.
    """
    if format == "bfcl":
        loaded_tasks = read_bfcl_tasks(tasks, answers)
    else:
        loaded_tasks = read_tau_tasks(tasks) if format == "tau" else read_tau2_tasks(tasks)
    if (name := find_duplicate(task.id for task in loaded_tasks)) is not None:
        raise ValueError(
            f"environment.data.tasks: {tasks} has two tasks of the id {name!r}, and one would be held to what the "
            "other asks; rename one, or leave it out"
        )
    tables_read = TABLE_READERS[format](database) if tables and format in TABLE_READERS else {}
    return Benchmark(loaded_tasks, tables_read, read_benchmark_text(policy) if policy else "")
