"""``marft export``: write a checkpoint of a run as a self-contained folder, atomically."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import tomli_w

from marft.common import atomic
from marft.common.errors import UserError
from marft.common.log import get_logger
from marft.common.user_modules import MANIFEST, is_export
from marft.common.version import __version__
from marft.config.load import to_toml
from marft.config.python_objects import MissingObjectError
from marft.config.run import CheckpointSettings, RunSettings
from marft.config.team_changes import TeamChange, apply_team_change, describe_team_change
from marft.runs.changes import iterate_texts
from marft.runs.checkpoints import CheckpointManager
from marft.runs.episode_files import read_rows
from marft.runs.export.manifest import CARD, RECIPE, list_files, list_unlisted, write_manifest
from marft.runs.export.model_card import render_model_card
from marft.runs.export.recipe import PLACEHOLDER, ExportRecipe, export_recipe, find_versions, format_key, trust_flag
from marft.runs.export.weights import WeightExporter
from marft.runs.run_folder import RunFolder
from marft.runs.state import CheckpointRecord, read_record

logger = get_logger(__name__)
TEXT_SUFFIXES = (".json", ".toml", ".md", ".jinja", ".py", ".txt")
TABLE_PARSERS: Mapping[str, Callable[[str], object]] = {".json": json.loads, ".toml": tomllib.loads}
EVALUATION_KEYS = (
    "checkpoint",
    "mode",
    "split",
    "shuffled_messages",
    "tasks",
    "failed",
    "unknown",
    "accuracy",
    "interval",
    "reward",
    "reward_interval",
)
CHANGE_KEYS = ("name", "digest", "organization", "added", "removed")


@dataclass(frozen=True, slots=True)
class PathReference:
    """Reference to a training-machine folder in an exported file.

    Args:
        file: file name in the export.
        key: key or line in the file.
        folder: folder of the training machine.
    """

    file: str
    key: str
    folder: str

    @property
    def location(self) -> str:
        """Key or line, and file."""
        return f"{self.key} of {self.file}"

    def describe(self, source: Path | None) -> str:
        """Return the note for the user who exports.

        Args:
            source: local file that the exported file was copied from; None if it was generated.
        """
        source_hint = "it in the recipe, train" if self.file == RECIPE else str(source or "what it is made from")
        return (
            f"{self.location} names {self.folder}, a folder of this machine: others can read that in the export, and "
            f"have no such folder. If either matters, change {source_hint} and export again"
        )


def list_local_folders(folder: RunFolder, recipe: Mapping[str, Any]) -> list[str]:
    """Return local folders related to a run: the recipe's, the run's, the home folder and local models."""
    models = [model["path"] for model in recipe["models"].values()]
    folders = [recipe.get("recipe_folder", ""), str(folder.path.resolve()), str(Path.home()), *models]
    return [folder_path for folder_path in (path.rstrip("/") for path in folders) if folder_path.startswith("/")]


def find_folder_references(export: Path, folders: Sequence[str]) -> Iterator[PathReference]:
    """Yield the places in an export that name a folder or a path inside it; the innermost folder counts."""
    longest_first = sorted(folders, key=len, reverse=True)
    pattern = re.compile("(?:" + "|".join(map(re.escape, longest_first)) + r")(?![\w-])")
    for name in list_files(export) if folders else ():
        file = export / name
        if file.suffix in TEXT_SUFFIXES and file.name not in (MANIFEST, "tokenizer.json"):
            text = file.read_text(encoding="utf-8", errors="replace")
            match = pattern.search(text)
            if match:
                for at, place in _find_matches(text, file.suffix, pattern):
                    yield PathReference(name, at, place[0])


def _find_matches(text: str, suffix: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield matching keys in a table, or matching lines in other text."""
    try:
        table = TABLE_PARSERS[suffix](text) if suffix in TABLE_PARSERS else None
    except ValueError:  # an invalid file of the user
        table = None
    rows = (
        ((f"line {number}", line) for number, line in enumerate(text.splitlines(), 1))
        if table is None
        else ((format_key(key), value) for key, value in iterate_texts(table))
    )
    for at, row in rows:
        match = pattern.search(row)
        if match:
            yield at, match


def export_run(
    folder: RunFolder,
    checkpoint: str,
    output: Path | None = None,
    *,
    merged: bool = False,
    overwrite: bool = False,
    target_team: TeamChange | None = None,
) -> Path:
    """Export a checkpoint of a run and return the folder.

    Args:
        checkpoint: ``best``, ``last``, a step or ``step_000050``.
        output: target folder; None: ``exports/<run>``.
        merged: also export each base model with the adapter merged, for programs without adapter support.
        overwrite: overwrite another export.
        target_team: reorganization of the exported team; None exports the team as trained.

    Raises:
        UserError: the checkpoint does not exist or is damaged, its agents cannot play as ``target_team``, or other
            files are in the target folder.
    """
    name = folder.path.resolve().name
    target = output or Path("exports") / (f"{name}-as-{target_team.name}" if target_team else name)
    _check_target(target, overwrite)
    name = f"step_{int(checkpoint):06d}" if checkpoint.isdecimal() else checkpoint
    record = read_record(CheckpointManager(folder, CheckpointSettings()).find(name))
    trained = _read_recipe(record)
    run = apply_team_change(trained, target_team) if target_team else trained
    changed = describe_team_change(trained, run, target_team) if target_team else {}
    recipe = tomllib.loads(to_toml(run))
    learned_instructions = {
        old_roles.role: old_roles.instructions
        for old_roles in (record.state.prompts.current_versions() if record.state.prompts else ())
    }
    old_roles = changed.get("told", {role: role for role in learned_instructions})
    for agent in recipe["agents"]:
        agent["instructions"] = learned_instructions.get(old_roles.get(agent["role"], ""), agent["instructions"])
    export = export_recipe(recipe, Path(run.recipe_folder or "."))
    atomic.remove_stale_dirs(target.parent)
    with atomic.new_folder(target) as staging:
        _copy_files(export, staging)
        weights = WeightExporter(run, record, export, staging)
        weights.write(merged)
        (staging / RECIPE).write_text(tomli_w.dumps(export.table, multiline_strings=True), encoding="utf-8")
        references = list(find_folder_references(staging, list_local_folders(folder, recipe)))
        table = _build_manifest(folder, record, recipe, export, weights, changed)
        if not table["evaluations"]:
            suffix = f" as {target_team.name}" if target_team else ""
            flag = f" --team-file {target_team.name}.toml" if target_team else ""
            logger.warning(
                f"no evaluation of {record.path.name}{suffix} is saved, so the model card has no figures; first:  "
                f"marft eval {folder.path} --checkpoint base,{record.path.name}{flag}"
            )
        manifest = write_manifest(staging, table)
        locations = [reference.location for reference in references]
        has_environment = export.table["environment"]["name"] != PLACEHOLDER
        card = render_model_card(manifest, target.resolve().name, trust_flag(export.table), locations, has_environment)
        (staging / CARD).write_text(card, encoding="utf-8")
    for sentence in export.omitted:
        logger.warning(f"left out: {sentence}")
    for reference in references:
        logger.warning(reference.describe(export.find_source(reference.file)))
    return target


def _read_recipe(record: CheckpointRecord) -> RunSettings:
    """Return the recipe saved with a checkpoint.

    Raises:
        UserError: the recipe cannot be read, or refers to Python objects that an export cannot contain.
    """
    try:
        return record.read_recipe()
    except MissingObjectError as error:
        names = ", ".join(f"{name} ({location})" for location, name in error.missing.items())
        raise UserError(
            f"{record.path} cannot be exported: others read an export from files, and what was given in Python lies in "
            f"none: {names}. Put it into a module that can be imported (my_module.py beside the recipe), name it in "
            f"the recipe (my_module:{next(iter(error.missing.values()))}), train from that recipe, and export that run"
        ) from error


def _check_target(target: Path, overwrite: bool) -> None:
    """Check a target folder before an export.

    Raises:
        UserError: the folder is in use; only another export may be overwritten, and only with ``overwrite``.
    """
    if not target.exists() and not target.is_symlink():
        return
    if target.is_symlink() or not target.is_dir() or (any(target.iterdir()) and not is_export(target)):
        raise UserError(f"{target} is no export of MARFT's, and nothing else is written over; choose --output")
    if any(target.iterdir()) and not overwrite:
        raise UserError(
            f"{target} holds an export already; choose --output, or let this one take its place (--overwrite)"
        )
    for file in list_unlisted(target) if target.is_dir() else ():
        raise UserError(
            f"{target} holds what the export there did not bring: {file}. Move that away, or choose --output"
        )


def _copy_files(export: ExportRecipe, staging: Path) -> None:
    for name, source in {**export.code, **export.copied}.items():
        target = staging / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        elif source.is_file():
            shutil.copyfile(source, target)
        else:
            raise UserError(f"{source} is not there any more, and the team needs it")


def _build_manifest(
    folder: RunFolder,
    record: CheckpointRecord,
    recipe: Mapping[str, Any],
    export: ExportRecipe,
    weights: WeightExporter,
    changed: Mapping[str, Any],
) -> dict[str, object]:
    state, table = record.state, export.table
    return {
        "marft": __version__,
        "name": table["name"],
        "made": date.today().isoformat(),
        "checkpoint": {"name": record.path.name, "step": state.step, "environment_steps": state.environment_steps},
        "organization": table["team"],
        "channel": table["channel"],
        "agents": table["agents"],
        "reorganized": {key: changed[key] for key in CHANGE_KEYS if key in changed},
        "sees": {} if changed else _find_visible_agents(folder),
        "tools": table.get("tools", {}),
        "policies": {name: entry.model_dump() for name, entry in weights.policies.items()},
        "models": {name: entry.model_dump() for name, entry in weights.models.items()},
        "evaluations": list(_select_evaluations(folder, record.path.name, changed.get("digest", ""))),
        "training": _training_settings(recipe),
        "paths": export.paths,
        "code": sorted(export.code),
        "requires": find_versions(export.packages),
        "left_out": export.omitted,
    }


def _training_settings(recipe: Mapping[str, Any]) -> dict[str, object]:
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


def _select_evaluations(folder: RunFolder, checkpoint: str, digest: str) -> Iterator[dict[str, Any]]:
    """Yield the evaluations for the checkpoint and its base.

    Nothing is yielded if the checkpoint was not evaluated.

    Args:
        digest: digest of the team's reorganization; "" for the team as trained.
    """
    evaluations: list[dict[str, Any]] = folder.read_evaluations(scenarios=True)
    selected = [
        e for e in evaluations if e.get("reorganized", {}).get("digest", "") == digest and not e.get("scenarios")
    ]
    if any(evaluation["checkpoint"] == checkpoint for evaluation in selected):
        for evaluation in selected:
            if evaluation["checkpoint"] in ("base", checkpoint):
                yield {key: evaluation[key] for key in EVALUATION_KEYS if key in evaluation}


def _find_visible_agents(folder: RunFolder) -> dict[str, list[str]]:
    """Return the agents that each agent saw in the last recorded episodes; empty without recordings."""
    seen: dict[str, set[str]] = {}
    for row in read_rows(folder.find_recorded(0)) if folder.recorded_steps() else ():
        if row["agent"] is not None:
            visible: Any = row["sees"]
            seen.setdefault(str(row["agent"]), set()).update(name.split("/")[1] for name in visible)
    return {role: sorted(visible) for role, visible in sorted(seen.items())}
