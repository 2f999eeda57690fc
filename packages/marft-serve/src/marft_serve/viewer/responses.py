"""Response bodies for the viewer's API, as tables for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from marft.common.metrics import CATALOG
from marft.runs.saved_schemas import read_evaluation
from marft_serve.viewer import credit_audit, teams
from marft_serve.viewer import episode_view as of_episode
from marft_serve.viewer.episode_index import FileIndex
from marft_serve.viewer.episode_query import EpisodeQuery, EpisodeTable, build_list_entry
from marft_serve.viewer.library import Library, MissingError, Run

BETTER_DIRECTION = {"higher": "up", "lower": "down", "": ""}
STEP_PREFIX = "step "  # prefix of a training step in a list with evaluations


def get_runs(library: Library) -> dict[str, Any]:
    """Return all runs with their latest metrics."""
    entries = []
    for run in library.refresh():
        with suppress(MissingError):
            entries.append(_build_run(run.refresh()))
    return {"runs": entries}


def _build_run(run: Run) -> dict[str, Any]:
    algorithm, log = run.recipe.algorithm, run.log
    return {
        "id": run.id,
        "name": run.folder.path.resolve().name,
        "path": str(run.folder.path),
        "algorithm": algorithm.name,
        "level": algorithm.level,
        "state": run.state(),
        "step": log.step,
        "steps": run.recipe.training.steps,
        "agents": [{k: agent[k] for k in ("role", "policy", "trained", "answers")} for agent in run.agents],
        "recorded": [int(name) for name in run.index.steps],
        "evaluations": list(run.index.evaluations),
        "worth": run.get_worth_time(),
        "last": {name: value for name, value in (log.rows[-1] if log.rows else {}).items() if name != "step"},
        "guards": log.guards,
        "updated": run.get_update_time(),
    }


def get_catalog() -> dict[str, Any]:
    """Return the catalog with every metric, by name without ``agents/<role>/``."""
    return {
        "metrics": {
            metric.name: {
                "label": metric.label,
                "unit": metric.unit,
                "format": metric.format,
                "scope": list(metric.scopes),
                "better": BETTER_DIRECTION[metric.better],
                "meaning": metric.description,
                "advice": metric.hint,
                "group": group,
            }
            for group, metrics in CATALOG.items()
            for metric in metrics
        }
    }


def get_metrics(run: Run, names: Sequence[str], since: int, points: int) -> dict[str, Any]:
    """Return time series for some metrics."""
    steps, series = run.log.get_series(names, since, points) if names else ([], {})
    return {"steps": steps, "series": series, "names": run.log.get_metric_names()}


def get_steps(run: Run) -> dict[str, Any]:
    """Return the training steps with recorded episodes; counts are null until a file is indexed."""
    rows = []
    for index in run.index.list_steps():
        file = index.file if isinstance(index, FileIndex) else index
        table = index.table if isinstance(index, FileIndex) else None
        rows.append(
            {
                "step": file.step,
                "episodes": len(table) if table is not None else None,
                "actions": sum(table["actions"].to_pylist()) if table is not None else None,
                "bytes": file.version.size,
                "credit": file.name in run.index.credit_files,
                "problem": index.problem if isinstance(index, FileIndex) else "",
            }
        )
    return {"steps": rows}


def get_episodes(run: Run, step: str, query: EpisodeQuery, offset: int, limit: int) -> dict[str, Any]:
    """Return a page from the episodes in one step or evaluation, or in all indexed training steps."""
    if step:
        table, indexed_count, file_count = EpisodeTable([run.get_episodes(step)]), 1, 1
    else:
        table, indexed_count, file_count = run.indexed_episodes()
    numbers = table.search(query, run.log.get_guards)
    rows = table.find_rows(numbers[offset : offset + limit])
    return {
        "total": len(numbers),
        "indexed": indexed_count,
        "files": file_count,
        "episodes": [build_list_entry(file, number, _get_guards(run, file)) for file, number in rows],
    }


def get_episode(run: Run, step: str, number: int) -> dict[str, Any]:
    """Return one complete episode."""
    file = run.get_episodes(step)
    recorded = of_episode.load_episode(file, number)
    action_credit = credit_audit.load_credit(run, file, recorded.stream, recorded.task.id, recorded.sample)
    return of_episode.build_episode(run, file, number, recorded, action_credit) | {
        "group": credit_audit.find_group(run, file, number)
    }


def get_prompt(run: Run, step: str, number: int, action: str) -> dict[str, Any]:
    """Return the prompt for an action."""
    recorded = of_episode.load_episode(run.get_episodes(step), number)
    return of_episode.build_prompt(run, recorded, of_episode.find_action(recorded, action))


def get_tokens(run: Run, step: str, number: int, action: str) -> dict[str, Any]:
    """Return an action token by token."""
    file = run.get_episodes(step)
    recorded = of_episode.load_episode(file, number)
    action_credit = credit_audit.load_credit(run, file, recorded.stream, recorded.task.id, recorded.sample)
    return of_episode.build_tokens(run, of_episode.find_action(recorded, action), action_credit.get(action, {}))


def get_team(run: Run, step: str) -> dict[str, Any]:
    """Return the team and its communication graph."""
    if not step and not run.index.steps:
        return teams.build_team(run, None)
    return teams.build_team(run, run.get_episodes(step or run.get_last_step()))


def get_credit(run: Run, step: str) -> dict[str, Any]:
    """Return the credit audit for a recorded training step."""
    return credit_audit.build_audit(run, run.get_episodes(step or run.get_last_step()))


def compare_checkpoints(run: Run, task: str, a: str, b: str) -> dict[str, Any]:
    """Return one task's episodes at two checkpoints, from evaluations or recorded training steps."""
    names = [*run.index.evaluations, *(f"{STEP_PREFIX}{name}" for name in run.index.steps)]
    if not names:
        raise MissingError(f"{run.id} has no recorded episodes")
    sides = [run.get_episodes(name.removeprefix(STEP_PREFIX)) for name in (a or names[0], b or names[-1])]
    tasks = [dict.fromkeys(side.table["task"].to_pylist()) if side.table is not None else {} for side in sides]
    return {
        "tasks": [shared_task for shared_task in tasks[0] if shared_task in tasks[1]],
        "checkpoints": names,
        "pair": list(_find_default_pair(run, names)),
        "a": _build_side(run, a or names[0], sides[0], task),
        "b": _build_side(run, b or names[-1], sides[1], task),
    }


def _find_default_pair(run: Run, names: Sequence[str]) -> tuple[str, str]:
    """Return the default pair to compare.

    The first choice is an evaluation of the base model or of the earliest checkpoint, and an evaluation of the
    latest checkpoint in the same mode. Evaluations with shuffled messages, on scenarios or with another team are
    left out, because they say nothing about training. Without two suitable evaluations, recorded steps are used.
    """
    candidates: dict[str, tuple[tuple[int, str], str]] = {}  # by evaluation name: position of the checkpoint, and mode
    for name in run.index.evaluations:
        with suppress(ValueError):
            evaluation = read_evaluation(run.folder.evaluations / f"{name}.json")
            if name == f"{evaluation['checkpoint']}-{evaluation['mode']}" and not evaluation["shuffled_messages"]:
                rank = 0 if evaluation["checkpoint"] == "base" else 1
                candidates[name] = (rank, str(evaluation["checkpoint"])), str(evaluation["mode"])
    ordered = sorted(candidates, key=lambda name: candidates[name])
    for first in ordered:
        later = [name for name in ordered if candidates[name][1] == candidates[first][1] and name != first]
        if later:
            return first, later[-1]
    steps = [name for name in names if name.startswith(STEP_PREFIX)]
    fallback = [*ordered, *steps, *(name for name in names if name not in candidates and name not in steps)]
    return fallback[0], steps[-1] if len(steps) > 1 else fallback[-1]


def _build_side(run: Run, name: str, file: FileIndex, task: str) -> dict[str, Any]:
    numbers = [n for n, row_task in enumerate(file.table["task"].to_pylist()) if row_task == task] if file.table else []
    return {"name": name, "episodes": [build_list_entry(file, number, _get_guards(run, file)) for number in numbers]}


def _get_guards(run: Run, file: FileIndex) -> list[str]:
    return run.log.get_guards(file.file.step) if isinstance(file.file.step, int) else []
