"""Response bodies for the viewer's API, as tables for JSON.

They cover runs, metrics, episodes, the team and its communication, evaluations, and the results of ``marft worth``.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, FiniteFloat, ValidationError

from marft.common import atomic
from marft.common.errors import UserError
from marft.common.metrics import CATALOG
from marft.common.texts import single_line
from marft.config.load import first_problem
from marft.evaluation.metric_tables import Cohort, MetricRow, build_metric_rows, cohort_fields, compute_cohort_metrics
from marft.runs.episode_files import open_parquet
from marft.runs.run_folder import read_evaluation
from marft_serve.viewer import credit_audit, episode_view
from marft_serve.viewer.episode_index import FileIndex
from marft_serve.viewer.episode_query import EpisodeQuery, EpisodeTable, build_list_entry
from marft_serve.viewer.library import Agent, Library, MissingError, Run

BETTER_DIRECTION = {"higher": "up", "lower": "down", "": ""}
STEP_PREFIX = "step "  # prefix of a training step in a list with evaluations
RESULT_FIELDS = (
    "checkpoint",
    "mode",
    "shuffled_messages",
    "tasks",
    "accuracy",
    "interval",
    "reward",
    "reward_interval",
    "passes",
)
Interval = tuple[FiniteFloat, FiniteFloat]


def get_runs(library: Library) -> dict[str, object]:
    """Return all runs with their latest metrics."""
    entries = []
    for run in library.refresh():
        with suppress(MissingError):
            entries.append(_build_run(run.refresh()))
    return {"runs": entries}


def _build_run(run: Run) -> dict[str, object]:
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
        "agents": [{k: v for k, v in agent.items() if k != "instructions"} for agent in run.agents],
        "recorded": [int(name) for name in run.index.steps],
        "evaluations": list(run.index.evaluations),
        "worth": run.get_worth_update_time(),
        "last": {name: value for name, value in (log.rows[-1] if log.rows else {}).items() if name != "step"},
        "guards": log.guards,
        "updated": run.get_update_time(),
    }


def get_catalog() -> dict[str, object]:
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


def get_metrics(run: Run, names: Sequence[str], since: int, points: int) -> dict[str, object]:
    """Return time series for some metrics."""
    steps, series = run.log.get_series(names, since, points) if names else ([], {})
    return {"steps": steps, "series": series, "names": run.log.get_metric_names()}


def get_steps(run: Run) -> dict[str, object]:
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


def get_episodes(run: Run, query: EpisodeQuery) -> dict[str, object]:
    """Return a page from the episodes in one step or evaluation, or in all indexed training steps."""
    if query.step:
        table, indexed_count, file_count = EpisodeTable([run.get_episodes(query.step)]), 1, 1
    else:
        table, indexed_count, file_count = run.get_indexed_episodes()
    numbers = table.search(query, run.log.get_active_guards)
    rows = table.find_rows(numbers[query.offset : query.offset + query.limit])
    return {
        "total": len(numbers),
        "indexed": indexed_count,
        "files": file_count,
        "episodes": [build_list_entry(file, number, run.get_active_guards(file)) for file, number in rows],
    }


def get_episode(run: Run, step: str, number: int) -> dict[str, object]:
    """Return one complete episode."""
    file = run.get_episodes(step)
    recorded = episode_view.load_episode(file, number)
    action_credit = credit_audit.load_credit(run, file, recorded)
    return episode_view.build_episode(run, file, number, recorded, action_credit) | {
        "group": credit_audit.find_group(run, file, number)
    }


def get_prompt(run: Run, step: str, number: int, action: str) -> dict[str, object]:
    """Return the prompt for an action."""
    recorded = episode_view.load_episode(run.get_episodes(step), number)
    return episode_view.build_prompt(run, recorded, episode_view.find_action(recorded, action))


def get_tokens(run: Run, step: str, number: int, action: str) -> dict[str, object]:
    """Return an action token by token."""
    file = run.get_episodes(step)
    recorded = episode_view.load_episode(file, number)
    credit = credit_audit.load_credit(run, file, recorded).get(action, {})
    return episode_view.build_tokens(run, episode_view.find_action(recorded, action), credit)


def get_team(run: Run, step: str) -> dict[str, object]:
    """Return the team and its communication graph."""
    if not step and not run.index.steps:
        return build_team(run, None)
    return build_team(run, run.get_episodes(step or run.get_last_step()))


def get_credit(run: Run, step: str) -> dict[str, object]:
    """Return the credit audit for a recorded training step."""
    return credit_audit.build_audit(run, run.get_episodes(step or run.get_last_step()))


def compare_checkpoints(run: Run, task: str, a: str, b: str) -> dict[str, object]:
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


def _build_side(run: Run, name: str, file: FileIndex, task: str) -> dict[str, object]:
    numbers = [n for n, row_task in enumerate(file.table["task"].to_pylist()) if row_task == task] if file.table else []
    return {
        "name": name,
        "episodes": [build_list_entry(file, number, run.get_active_guards(file)) for number in numbers],
    }


def get_evaluations(run: Run, by: str = "") -> dict[str, object]:
    """Return every evaluation with confidence intervals and trajectory metrics, results by cohort, and problems.

    Args:
        run: the run.
        by: field of the tasks that defines cohorts, from ``fields``; "" for no cohorts. An unknown field is reported
            as a problem.
    """
    loaded, problems = [], []
    for path in sorted(run.folder.evaluations.glob("*.json")):
        try:
            loaded.append((path.stem, read_evaluation(path)))
        except ValueError as error:
            problems.append(str(error))
    evaluations = [evaluation for _, evaluation in loaded]
    cohorts: list[Cohort] = []
    try:
        cohorts = compute_cohort_metrics(evaluations, by) if by else []
    except ValueError as error:
        problems.append(str(error))
    return {
        "evaluations": [
            {
                "name": name,
                **{key: evaluation.get(key) for key in RESULT_FIELDS},
                "episodes": name in run.index.evaluations,
            }
            for name, evaluation in loaded
        ],
        "trajectories": _build_rows(build_metric_rows(evaluations)),
        "fields": cohort_fields(evaluations),
        "cohorts": [
            {"name": cohort.name, "tasks": list(cohort.tasks), "rows": _build_rows(cohort.rows)} for cohort in cohorts
        ],
        "problems": problems,
    }


def _build_rows(rows: Sequence[MetricRow]) -> list[dict[str, object]]:
    return [{"label": row.label, "agent": row.agent, "cells": list(row.cells)} for row in rows]


class _Value(BaseModel):
    value: FiniteFloat
    interval: Interval | None = None
    difference: FiniteFloat | None = None
    difference_interval: Interval | None = None


class _Arm(BaseModel):
    part: str
    name: str
    values: dict[str, _Value]
    failed: int = 0
    attempts: int = 1
    tokens: FiniteFloat | None = None
    seconds: FiniteFloat | None = None


class _Share(BaseModel):
    agent: str
    actions: int
    contribution: _Value
    variance: _Value
    own: _Value | None = None


class _Action(BaseModel):
    id: str
    agent: str
    step: int
    index: int
    started: FiniteFloat
    ended: FiniteFloat
    sees: list[str]
    tokens: int
    text: str
    contribution: FiniteFloat | None
    resampled: list[FiniteFloat]


class _Episode(BaseModel):
    task: str
    prompt: str
    reward: FiniteFloat
    actions: list[_Action]


class _WorthFile(BaseModel):
    """Content read from ``worth.json``; files from earlier versions have no ``shown``."""

    headline: str = ""
    measure: Literal["accuracy", "reward"] = "accuracy"
    rows: list[_Arm] = []
    contributions: list[_Share] = []
    shown: list[_Episode] | None = None
    notes: list[str] = []


def get_worth(run: Run) -> dict[str, object]:
    """Return the results; None without results or with a damaged file, which ``problem`` reports."""
    path = run.folder.worth / "worth.json"
    results, problem = None, ""
    try:
        results = _WorthFile.model_validate(atomic.read_json(path)).model_dump()
    except FileNotFoundError:
        pass
    except ValidationError as error:
        problem = first_problem(error)
    except (OSError, ValueError) as error:
        problem = str(error)
    return {
        "found": results,
        "problem": f"{path} is damaged ({problem}): ask again; what was played before is read" if problem else "",
        "command": shlex.join(["marft", "worth", str(run.folder.path)]),
        "page": str(path.with_suffix(".html")),
    }


def build_team(run: Run, file: FileIndex | None) -> dict[str, object]:
    """Return the team with its activity in a recorded step.

    ``share`` of an edge is the fraction of the receiver's actions that saw an action of the sender.

    Raises:
        UserError: the file cannot be read.
    """
    action_counts, token_counts, seen_counts, receiver_counts = (
        _count_activity(file) if file else (Counter[str](), Counter[str](), Counter(), Counter())
    )
    roles = [agent["role"] for agent in run.agents]
    # agents of a program, or of another version of the recipe
    unknown_agents: list[Agent] = [
        {"role": role, "policy": "", "trained": False, "answers": False, "instructions": ""}
        for role in action_counts
        if role not in roles
    ]
    return {
        "step": file.file.step if file else None,
        "organization": run.organization,
        "agents": [
            {**agent, "actions": action_counts[agent["role"]], "tokens": token_counts[agent["role"]]}
            for agent in [*run.agents, *unknown_agents]
        ],
        "edges": [
            {
                "from": sender,
                "to": receiver,
                "count": count,
                "share": receiver_counts[sender, receiver] / action_counts[receiver],
            }
            for (sender, receiver), count in sorted(seen_counts.items())
        ],
    }


def _count_activity(
    file: FileIndex,
) -> tuple[Counter[str], Counter[str], Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Count actions and tokens by role, and visible actions by sender and receiver.

    For each pair of sender and receiver, the third count has the actions seen, and the fourth has the receiver's
    actions that saw any.
    """
    try:
        with open_parquet(file.file.path) as source:
            table = pq.read_table(source, columns=["agent", "sees", "tokens"], page_checksum_verification=True)
        sizes = pc.fill_null(pc.list_value_length(table["tokens"]), 0).to_pylist()
        rows = zip(table["agent"].to_pylist(), table["sees"].to_pylist(), sizes, strict=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the episodes of {file.file.path}: {single_line(str(error))}") from error
    action_counts, token_counts = Counter[str](), Counter[str]()
    seen_counts, receiver_counts = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for agent, sees, size in rows:
        if agent is not None:
            action_counts[agent] += 1
            token_counts[agent] += size
            sender_counts = Counter(action_id.split("/")[1] for action_id in sees or () if action_id.count("/") == 2)
            seen_counts.update({(sender, agent): count for sender, count in sender_counts.items()})
            receiver_counts.update((sender, agent) for sender in sender_counts)
    return action_counts, token_counts, seen_counts, receiver_counts
