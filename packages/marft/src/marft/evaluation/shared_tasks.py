"""Runs that were evaluated on the same tasks, and runs that were not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marft.common.texts import single_line
from marft.evaluation.column_tables import short_names
from marft.runs.run_folder import RunFolder

TaskSet = frozenset[tuple[str, str]]  # task IDs with digests; "" if an evaluation has none


def describe_different_tasks(folders: Sequence[RunFolder]) -> str:
    """Return a sentence about runs that were evaluated on different tasks; "" if all tasks are the same."""
    names = short_names([str(folder.path) for folder in folders])
    groups: dict[TaskSet, list[str]] = {}
    environments: dict[TaskSet, str] = {}
    evaluations = [folder.read_evaluations() for folder in folders]
    with_digests = all(evaluation.get("prompts") for of_run in evaluations for evaluation in of_run)
    for folder, name, of_run in zip(folders, names, evaluations, strict=True):
        tasks = _collect_tasks(of_run, with_digests)
        groups.setdefault(tasks, []).append(single_line(name))
        environments.setdefault(tasks, _environment_name(folder))
    if len(groups) < 2:
        return ""
    described = [
        f"{', '.join(dict.fromkeys(members))} ({len(tasks)} tasks of {single_line(environments[tasks])})"
        for tasks, members in groups.items()
    ]
    comparable = [list(dict.fromkeys(members)) for members in groups.values() if len(set(members)) > 1]
    pairs = "; ".join(" with ".join(members) for members in comparable)
    advice = f"Compare only {pairs}." if pairs else "None of these can be compared with another."
    shared = frozenset.intersection(*groups)
    if shared:
        advice += f" All have {len(shared)} tasks in common: evaluate them again with the same --tasks."
    return f"Evaluated on different tasks: {'; '.join(described)}. {advice}"


def _collect_tasks(evaluations: Sequence[Mapping[str, Any]], with_digests: bool) -> TaskSet:
    """Return all tasks of a run's evaluations, scored or not."""
    return frozenset(
        (task, str(evaluation.get("prompts", {}).get(task, "")) if with_digests else "")
        for evaluation in evaluations
        for name in ("prompts", "rewards", "outcomes")
        for task in evaluation.get(name, {})
    )


def _environment_name(folder: RunFolder) -> str:
    environment = (folder.read_recipe().model_extra or {}).get("environment", {})
    return str(environment.get("name", "")) if isinstance(environment, Mapping) else ""
