"""Recipe for serving a team: only what its agents need, without environment, rewards and algorithm."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from marft.common.errors import UserError
from marft.common.texts import format_error
from marft.common.types import Task
from marft.common.user_modules import is_export
from marft.config.interfaces.environment import Environment, Session, Split
from marft.config.load import parse_recipe
from marft.config.recipe_checks import ENVIRONMENT_TOOLS
from marft.config.run import CheckpointSettings, RunSettings
from marft.runs.checkpoints import CheckpointManager
from marft.runs.export.manifest import Export, load_export
from marft.runs.export.recipe import read_recipe_table
from marft.runs.run_files import RECIPE_FILE
from marft.runs.run_folder import RunFolder
from marft.runs.state import read_record

SERVING_KEYS = (
    "name",
    "seed",
    "recipe_folder",
    "device",
    "threads",
    "models",
    "policies",
    "tools",
    "agents",
    "team",
    "channel",
    "engine",
    "shadow",
)


class Questions(Environment):
    """Placeholder for a recipe's environment; each request brings its own task."""

    one_step: ClassVar[bool] = True

    def tasks(self, split: Split) -> list[Task]:  # noqa: ARG002
        """Return no tasks."""
        return []

    def start(self, task: Task, seed: int) -> Session:  # noqa: ARG002
        """Raise an error.

        Raises:
            UserError: always; requests do not use this environment.
        """
        raise UserError("a team that is served is asked by requests")


@dataclass(frozen=True, slots=True)
class ServedTeam:
    """Team to serve.

    Args:
        run: the recipe for serving.
        checkpoint: checkpoint with the trained weights; None if the recipe itself names the weights.
        export: the export; None for a run.
    """

    run: RunSettings
    checkpoint: Path | None = None
    export: Export | None = None


def load_served_team(
    path: Path, checkpoint: str, overrides: Sequence[str] = (), trust_code: bool = False
) -> ServedTeam:
    """Load the description of a team from a run or an export.

    Args:
        path: run folder or export.
        checkpoint: for a run: ``best``, ``last``, a step or ``step_000050``.
        overrides: overrides of the recipe.
        trust_code: True to accept code in an export.

    Raises:
        UserError: the path is neither a run nor an export, it is damaged, or its team cannot be served.
    """
    if is_export(path):
        export = load_export(path)
        recipe = read_recipe_table(export, trust_code)
        try:
            table = build_served_table(recipe)
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: its recipe is none that MARFT writes ({format_error(error)})") from error
        return ServedTeam(parse_recipe(table, overrides, str(path)), export=export)
    folder = RunFolder.open(path)
    name = f"step_{int(checkpoint):06d}" if checkpoint.isdecimal() else checkpoint
    record = read_record(CheckpointManager(folder, CheckpointSettings()).find(name))
    table = build_served_table(tomllib.loads((record.path / RECIPE_FILE).read_text(encoding="utf-8")))
    return ServedTeam(parse_recipe(table, overrides, str(path)), checkpoint=record.path)


def _drop_unused_policies(table: dict[str, Any]) -> dict[str, Any]:
    """Remove unused policies and their models from the tables.

    Unused policies belong to no agent: helper models, and models that only write instructions. Models with other
    users stay.
    """
    used = {agent["policy"] for agent in table["agents"]}
    policies = {name: policy for name, policy in table["policies"].items() if name in used}
    models = {policy["model"] for policy in policies.values()}
    unused_models = {policy["model"] for name, policy in table["policies"].items() if name not in used} - models
    remaining_models = {name: model for name, model in table["models"].items() if name not in unused_models}
    return {**table, "policies": policies, "models": remaining_models}


def build_served_table(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's tables for serving, with continuous admission and without grading.

    Raises:
        UserError: an agent uses tools from the environment's sessions.
    """
    for agent in recipe["agents"]:
        if ENVIRONMENT_TOOLS in agent.get("tools", ()):
            raise UserError(
                f"agents.{agent['role']}.tools: those of the environment belong to its sessions, and a team that is "
                "served has none; export a team without them"
            )
    table = _drop_unused_policies({key: recipe[key] for key in SERVING_KEYS if key in recipe})
    rollout = recipe.get("rollout", {})
    table["rollout"] = {"timeout_seconds": rollout["timeout_seconds"]} if "timeout_seconds" in rollout else {}
    table["environment"] = {"name": "marft_serve.serving.settings:Questions"}
    engine = {"kind": "local", **recipe.get("engine", {})}
    table["engine"] = {**engine, "admission": "continuous"} if engine["kind"] == "local" else engine
    return table
