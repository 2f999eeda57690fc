"""``marft export``: write a checkpoint of a run as a self-contained folder, atomically."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import tomli_w

from marft.common import atomic
from marft.common.user_modules import is_export
from marft.common.version import __version__
from marft.config.given import NotGivenError
from marft.config.load import to_toml
from marft.config.reorganizing import Reorganization, changes_of_team, reorganized
from marft.config.run import CheckpointSettings, RunSettings
from marft.runs.checkpoints import Checkpoints, Record, read_record
from marft.runs.episodes import read_rows
from marft.runs.export.card import model_card
from marft.runs.export.manifest import CARD, RECIPE, others_in, write_manifest
from marft.runs.export.places import known_places, named_in
from marft.runs.export.recipe import Shipped, shipped, trust_flag
from marft.runs.export.weights import Weights
from marft.runs.folder import RunFolder

EVALUATED = (
    "checkpoint", "mode", "split", "shuffled_messages", "tasks", "failed", "unknown", "accuracy", "interval", "reward",
    "reward_interval",
)  # fmt: skip
REORGANIZED = ("name", "digest", "organization", "added", "removed")


def export_run(
    folder: RunFolder, checkpoint: str, output: Path | None = None, *, merged: bool = False, force: bool = False,
    into: Reorganization | None = None, note: Callable[[str], None] = lambda _: None,
) -> Path:  # fmt: skip
    """Export a checkpoint of a run and return the folder.

    Args:
        checkpoint: ``best``, ``last``, a step or ``step_000050``.
        output: target folder; None: ``exports/<run>``.
        merged: also export each base model with the adapter merged, for programs without adapter support.
        force: overwrite another export.
        into: reorganization of the exported team; None exports the team as trained.
        note: receives messages for the user.

    Raises:
        ValueError: the checkpoint does not exist or is damaged, its agents cannot play as ``into``, or other files are
            in the target folder.
    """
    name = folder.path.resolve().name
    target = output or Path("exports") / (f"{name}-as-{into.name}" if into else name)
    _check_free(target, force)
    name = f"step_{int(checkpoint):06d}" if checkpoint.isdecimal() else checkpoint
    record = read_record(Checkpoints(folder, CheckpointSettings()).find(name))
    trained = _recipe_of(record)
    run = reorganized(trained, into) if into else trained
    changed = changes_of_team(trained, run, into) if into else {}
    recipe = tomllib.loads(to_toml(run))
    learned = {told.role: told.instructions for told in (record.state.profiles.told() if record.state.profiles else ())}
    told = changed.get("told", {role: role for role in learned})
    for agent in recipe["agents"]:
        agent["instructions"] = learned.get(told.get(agent["role"], ""), agent["instructions"])
    out = shipped(recipe, Path(run.recipe_folder or "."))
    atomic.remove_abandoned(target.parent)
    with atomic.new_folder(target) as draft:
        _copy(out, draft)
        weights = Weights(run, record, out, draft)
        weights.write(merged)
        (draft / RECIPE).write_text(tomli_w.dumps(out.table, multiline_strings=True), encoding="utf-8")
        named = list(named_in(draft, known_places(folder, recipe)))
        table = _manifest(folder, record, recipe, out, weights, changed)
        if not table["evaluations"]:
            of, asked = (f" as {into.name}", f" --as {into.name}.toml") if into else ("", "")
            note(
                f"no evaluation of {record.path.name}{of} is saved, so the model card has no figures; first:  "
                f"marft eval {folder.path} --checkpoint base,{record.path.name}{asked}"
            )
        write_manifest(draft, table)
        card = model_card(table, target.resolve().name, trust_flag(out.table), [one.where for one in named])
        (draft / CARD).write_text(card, encoding="utf-8")
    for sentence in out.left_out:
        note(f"left out: {sentence}")
    for one in named:
        note(one.sentence(out.source(one.file)))
    return target


def _recipe_of(record: Record) -> RunSettings:
    """Return the recipe saved with a checkpoint.

    Raises:
        ValueError: the recipe cannot be read, or refers to Python objects that an export cannot contain.
    """
    try:
        return record.recipe()
    except NotGivenError as error:
        names = ", ".join(f"{name} ({place})" for place, name in error.missing.items())
        raise ValueError(
            f"{record.path} cannot be exported: others read an export from files, and what was given in Python lies in "
            f"none: {names}. Put it into a module that can be imported (my_module.py beside the recipe), name it in "
            f"the recipe (my_module:{next(iter(error.missing.values()))}), train from that recipe, and export that run"
        ) from error


def _check_free(target: Path, force: bool) -> None:
    """Check a target folder before an export.

    Raises:
        ValueError: the folder is in use; only another export may be overwritten, and only with ``force``.
    """
    if not target.exists() and not target.is_symlink():
        return
    if target.is_symlink() or not target.is_dir() or (any(target.iterdir()) and not is_export(target)):
        raise ValueError(f"{target} is no export of MARFT's, and nothing else is written over; choose --output")
    if any(target.iterdir()) and not force:
        raise ValueError(f"{target} holds an export already; choose --output, or let this one take its place (--force)")
    for other in others_in(target) if target.is_dir() else ():
        raise ValueError(
            f"{target} holds what the export there did not bring: {other}. Move that away, or choose --output"
        )


def _copy(out: Shipped, draft: Path) -> None:
    for name, source in {**out.code, **out.copied}.items():
        place = draft / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        elif source.is_file():
            shutil.copyfile(source, place)
        else:
            raise ValueError(f"{source} is not there any more, and the team needs it")


def _manifest(
    folder: RunFolder,
    record: Record,
    recipe: Mapping[str, Any],
    out: Shipped,
    weights: Weights,
    changed: Mapping[str, Any],
) -> dict[str, Any]:
    state, table = record.state, out.table
    return {
        "marft": __version__,
        "name": table["name"],
        "made": date.today().isoformat(),
        "checkpoint": {
            "name": record.path.name, "step": state.step, "environment_steps": state.environment_steps,
        },
        "organization": table["team"],
        "channel": table["channel"],
        "agents": table["agents"],
        "reorganized": {key: changed[key] for key in REORGANIZED if key in changed},
        "sees": {} if changed else _seen(folder),
        "tools": table.get("tools", {}),
        "policies": {name: entry.model_dump() for name, entry in weights.policies.items()},
        "models": {name: entry.model_dump() for name, entry in weights.models.items()},
        "evaluations": list(_evaluations(folder, record.path.name, changed.get("digest", ""))),
        "training": _training(recipe),
        "paths": out.paths,
        "code": sorted(out.code),
        "requires": out.requires(),
        "left_out": out.left_out,
    }  # fmt: skip


def _training(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return training settings for the model card."""
    rollout, environment = recipe["rollout"], recipe["environment"]
    return {
        "algorithm": recipe["algorithm"]["name"],
        "level": recipe["algorithm"]["level"],
        "learning_rate": recipe["algorithm"]["optimizer"]["learning_rate"],
        "tasks_per_step": rollout["tasks_per_step"],
        "samples_per_task": rollout["samples_per_task"],
        "environment": environment["name"],
        "seed": recipe["seed"],
        "trained": [name for name, policy in recipe["policies"].items() if policy["train"] != "frozen"],
    }


def _evaluations(folder: RunFolder, checkpoint: str, digest: str) -> Iterator[dict[str, Any]]:
    """Yield the evaluations for the checkpoint and its base.

    Nothing is yielded if the checkpoint was not evaluated.

    Args:
        digest: digest of the team's reorganization; "" for the team as trained.
    """
    every: list[dict[str, Any]] = folder.read_evaluations(scenarios=True)
    found = [
        one for one in every if one.get("reorganized", {}).get("digest", "") == digest and not one.get("scenarios")
    ]
    if any(evaluation["checkpoint"] == checkpoint for evaluation in found):
        for evaluation in found:
            if evaluation["checkpoint"] in ("base", checkpoint):
                yield {key: evaluation[key] for key in EVALUATED if key in evaluation}


def _seen(folder: RunFolder) -> dict[str, list[str]]:
    """Return the agents that each agent saw in the last recorded episodes; empty without recordings."""
    seen: dict[str, set[str]] = {}
    for row in read_rows(folder.recorded(0)) if folder.recorded_steps() else ():
        if row["agent"] is not None:
            others: Any = row["sees"]
            seen.setdefault(str(row["agent"]), set()).update(name.split("/")[1] for name in others)
    return {role: sorted(others) for role, others in sorted(seen.items())}
