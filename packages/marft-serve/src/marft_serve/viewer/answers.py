"""Response bodies for the viewer's API, as tables for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from marft.common.metrics import CATALOGUE
from marft.runs.written import read_evaluation
from marft_serve.viewer import auditing, teams
from marft_serve.viewer import episode as of_episode
from marft_serve.viewer.browsing import Episodes, Wanted, listed
from marft_serve.viewer.library import Library, MissingError, Run
from marft_serve.viewer.shelf import Indexed

BETTER = {"higher": "up", "lower": "down", "": ""}
STEP = "step "  # prefix of a training step in a list with evaluations


def runs(library: Library) -> dict[str, Any]:
    """Return all runs with their latest metrics."""
    found = []
    for run in library.look():
        with suppress(MissingError):
            found.append(_run(run.look()))
    return {"runs": found}


def _run(run: Run) -> dict[str, Any]:
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
        "recorded": [int(name) for name in run.shelf.steps],
        "evaluations": list(run.shelf.evaluations),
        "worth": run.asked_worth(),
        "last": {name: value for name, value in (log.rows[-1] if log.rows else {}).items() if name != "step"},
        "guards": log.guards,
        "updated": run.updated(),
    }


def catalogue() -> dict[str, Any]:
    """Return the catalog with every metric, by name without ``agents/<role>/``."""
    return {
        "metrics": {
            metric.name: {
                "label": metric.label, "unit": metric.unit, "format": metric.format, "scope": list(metric.scopes),
                "better": BETTER[metric.better], "meaning": metric.meaning, "advice": metric.advice, "group": group,
            }
            for group, metrics in CATALOGUE.items()
            for metric in metrics
        }
    }  # fmt: skip


def metrics(run: Run, names: Sequence[str], since: int, points: int) -> dict[str, Any]:
    """Return time series for some metrics."""
    steps, series = run.log.series(names, since, points) if names else ([], {})
    return {"steps": steps, "series": series, "names": run.log.names()}


def steps(run: Run) -> dict[str, Any]:
    """Return the training steps with recorded episodes; counts are null until a file is indexed."""
    rows = []
    for one in run.shelf.known():
        file = one.of if isinstance(one, Indexed) else one
        table = one.table if isinstance(one, Indexed) else None
        rows.append(
            {
                "step": file.step,
                "episodes": len(table) if table is not None else None,
                "actions": sum(table["actions"].to_pylist()) if table is not None else None,
                "bytes": file.stamp.size,
                "credit": file.name in run.shelf.credits,
                "problem": one.problem if isinstance(one, Indexed) else "",
            }
        )
    return {"steps": rows}


def episodes(run: Run, step: str, wanted: Wanted, offset: int, limit: int) -> dict[str, Any]:
    """Return a page from the episodes in one step or evaluation, or in all indexed training steps."""
    if step:
        found, indexed, there = Episodes([run.episodes_of(step)]), 1, 1
    else:
        found, indexed, there = run.together()
    chosen = found.found(wanted, run.log.guards_at)
    rows = found.rows(chosen[offset : offset + limit])
    return {
        "total": len(chosen),
        "indexed": indexed,
        "files": there,
        "episodes": [listed(file, number, _guards(run, file)) for file, number in rows],
    }


def episode(run: Run, step: str, number: int) -> dict[str, Any]:
    """Return one complete episode."""
    file = run.episodes_of(step)
    one = of_episode.read(file, number)
    known = auditing.known_of(run, file, one.stream, one.task.id, one.sample)
    return of_episode.whole(run, file, number, one, known) | {"group": auditing.group_of(run, file, number)}


def prompt(run: Run, step: str, number: int, action: str) -> dict[str, Any]:
    """Return the prompt for an action."""
    one = of_episode.read(run.episodes_of(step), number)
    return of_episode.prompt_of(run, one, of_episode.action_of(one, action))


def tokens(run: Run, step: str, number: int, action: str) -> dict[str, Any]:
    """Return an action token by token."""
    file = run.episodes_of(step)
    one = of_episode.read(file, number)
    known = auditing.known_of(run, file, one.stream, one.task.id, one.sample)
    return of_episode.tokens(run, of_episode.action_of(one, action), known.get(action, {}))


def team(run: Run, step: str) -> dict[str, Any]:
    """Return the team and its communication graph."""
    if not step and not run.shelf.steps:
        return teams.team_of(run, None)
    return teams.team_of(run, run.episodes_of(step or run.last_recorded()))


def credit(run: Run, step: str) -> dict[str, Any]:
    """Return the credit audit for a recorded training step."""
    return auditing.audit(run, run.episodes_of(step or run.last_recorded()))


def beside(run: Run, task: str, a: str, b: str) -> dict[str, Any]:
    """Return one task's episodes at two checkpoints, from evaluations or recorded training steps."""
    names = [*run.shelf.evaluations, *(f"{STEP}{name}" for name in run.shelf.steps)]
    if not names:
        raise MissingError(f"{run.id} has no recorded episodes")
    sides = [run.episodes_of(name.removeprefix(STEP)) for name in (a or names[0], b or names[-1])]
    tasks = [dict.fromkeys(side.table["task"].to_pylist()) if side.table is not None else {} for side in sides]
    return {
        "tasks": [one for one in tasks[0] if one in tasks[1]],
        "checkpoints": names,
        "pair": list(_pair(run, names)),
        "a": _side(run, a or names[0], sides[0], task),
        "b": _side(run, b or names[-1], sides[1], task),
    }


def _pair(run: Run, names: Sequence[str]) -> tuple[str, str]:
    """Return the default pair to compare.

    The first choice is an evaluation of the base model or of the earliest checkpoint, and an evaluation of the
    latest checkpoint in the same mode. Evaluations with shuffled messages, on scenarios or with another team are
    left out, because they say nothing about training. Without two suitable evaluations, recorded steps are used.
    """
    plain: dict[str, tuple[tuple[int, str], str]] = {}  # by evaluation name: position of the checkpoint, and mode
    for name in run.shelf.evaluations:
        with suppress(ValueError):
            said = read_evaluation(run.folder.evaluations / f"{name}.json")
            if name == f"{said['checkpoint']}-{said['mode']}" and not said["shuffled_messages"]:
                place = 0 if said["checkpoint"] == "base" else 1
                plain[name] = (place, str(said["checkpoint"])), str(said["mode"])
    ordered = sorted(plain, key=lambda name: plain[name])
    for first in ordered:
        others = [name for name in ordered if plain[name][1] == plain[first][1] and name != first]
        if others:
            return first, others[-1]
    steps = [name for name in names if name.startswith(STEP)]
    left = [*ordered, *steps, *(name for name in names if name not in plain and name not in steps)]
    return left[0], steps[-1] if len(steps) > 1 else left[-1]


def _side(run: Run, name: str, file: Indexed, task: str) -> dict[str, Any]:
    numbers = [n for n, one in enumerate(file.table["task"].to_pylist()) if one == task] if file.table else []
    return {"name": name, "episodes": [listed(file, number, _guards(run, file)) for number in numbers]}


def _guards(run: Run, file: Indexed) -> list[str]:
    return run.log.guards_at(file.of.step) if isinstance(file.of.step, int) else []
