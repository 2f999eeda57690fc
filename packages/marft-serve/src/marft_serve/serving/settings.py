"""Recipe for serving a team: only what its agents need, without environment, rewards and algorithm."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from marft.agents.environment import Session, Split
from marft.common.texts import raised
from marft.common.types import Task
from marft.common.user_modules import is_export
from marft.config.load import parse_recipe
from marft.config.parts import EnvironmentPart
from marft.config.references import ENVIRONMENT
from marft.config.run import CheckpointSettings, RunSettings
from marft.runs.checkpoints import RECIPE, Checkpoints, read_record
from marft.runs.export.loading import recipe_of
from marft.runs.export.manifest import Export, load_export
from marft.runs.folder import RunFolder

ACTED_WITH = (
    "name", "seed", "recipe_folder", "device", "threads", "models", "policies", "tools", "agents", "team", "channel",
    "engine", "shadow",
)  # fmt: skip


class Questions(EnvironmentPart):
    """Placeholder for a recipe's environment; each request brings its own task."""

    one_step: ClassVar[bool] = True

    def tasks(self, split: Split) -> list[Task]:  # noqa: ARG002
        """Return no tasks."""
        return []

    def start(self, task: Task, seed: int) -> Session:  # noqa: ARG002
        """Raise an error.

        Raises:
            ValueError: always; requests do not use this environment.
        """
        raise ValueError("a team that is served is asked by requests")


@dataclass(frozen=True, slots=True)
class Served:
    """Team to serve.

    Args:
        run: the recipe for serving.
        checkpoint: checkpoint with the trained weights; None if the recipe itself names the weights.
        export: the export; None for a run.
    """

    run: RunSettings
    checkpoint: Path | None = None
    export: Export | None = None


def served(path: Path, checkpoint: str, overrides: Sequence[str] = (), trust_code: bool = False) -> Served:
    """Load the description of a team from a run or an export.

    Args:
        path: run folder or export.
        checkpoint: for a run: ``best``, ``last``, a step or ``step_000050``.
        overrides: overrides of the recipe.
        trust_code: True to accept code in an export.

    Raises:
        ValueError: the path is neither a run nor an export, it is damaged, or its team cannot be served.
    """
    if is_export(path):
        export = load_export(path)
        recipe = recipe_of(export, trust_code)
        try:
            table = served_table(recipe)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: its recipe is none that MARFT writes ({raised(error)})") from error
        return Served(parse_recipe(table, overrides, str(path)), export=export)
    folder = RunFolder.open(path)
    name = f"step_{int(checkpoint):06d}" if checkpoint.isdecimal() else checkpoint
    record = read_record(Checkpoints(folder, CheckpointSettings()).find(name))
    table = served_table(tomllib.loads((record.path / RECIPE).read_text(encoding="utf-8")))
    return Served(parse_recipe(table, overrides, str(path)), checkpoint=record.path)


def _without_askers(table: dict[str, Any]) -> dict[str, Any]:
    """Remove unused policies and their models from the tables.

    Unused policies belong to no agent: helper models, and models that only write instructions. Models with other
    users stay.
    """
    acting = {agent["policy"] for agent in table["agents"]}
    policies = {name: policy for name, policy in table["policies"].items() if name in acting}
    models = {policy["model"] for policy in policies.values()}
    gone = {policy["model"] for name, policy in table["policies"].items() if name not in acting} - models
    kept = {name: model for name, model in table["models"].items() if name not in gone}
    return {**table, "policies": policies, "models": kept}


def served_table(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's tables for serving, with continuous admission and without grading.

    Raises:
        ValueError: an agent uses tools from the environment's sessions.
    """
    for agent in recipe["agents"]:
        if ENVIRONMENT in agent.get("tools", ()):
            raise ValueError(
                f"agents.{agent['role']}.tools: those of the environment belong to its sessions, and a team that is "
                "served has none; export a team without them"
            )
    table = _without_askers({key: recipe[key] for key in ACTED_WITH if key in recipe})
    rollout = recipe.get("rollout", {})
    table["rollout"] = {key: rollout[key] for key in ("timeout_seconds",) if key in rollout}
    table["environment"] = {"name": "marft_serve.serving.settings:Questions"}
    engine = {"kind": "local", **recipe.get("engine", {})}
    table["engine"] = {**engine, "admission": "continuous"} if engine["kind"] == "local" else engine
    return table
