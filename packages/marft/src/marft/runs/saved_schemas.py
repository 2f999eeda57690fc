"""Schemas for saved recipes and evaluations, readable without the named plugins."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from marft.common import atomic
from marft.config.guards import GuardSettings
from marft.config.load import first_problem


class _SavedModel(BaseModel):
    """Base schema with some checked keys. Other keys are kept."""

    model_config = ConfigDict(extra="allow")


class _SavedAlgorithm(_SavedModel):
    name: str
    level: str


class _SavedAgent(_SavedModel):
    role: str


class _SavedTraining(_SavedModel):
    steps: int


class SavedRecipe(_SavedModel):
    """Schema for saved recipes, for readers without their plugins."""

    algorithm: _SavedAlgorithm
    agents: list[_SavedAgent]
    training: _SavedTraining
    guards: GuardSettings = GuardSettings()


class _SavedEvaluation(_SavedModel):
    """Schema for saved evaluations. Earlier versions did not save all fields."""

    checkpoint: str
    mode: str
    shuffled_messages: bool
    tasks: int
    unknown: int = 0
    accuracy: float | None = None
    interval: tuple[float, float] | None = None
    reward: float | None = None
    reward_interval: tuple[float, float] | None = None
    outcomes: dict[str, bool | float] = {}
    attempts: int = 1
    passes: dict[str, tuple[float, tuple[float, float]]] = {}
    scenarios: dict[str, str] = {}
    prompts: dict[str, str] = {}
    measured: dict[str, dict[str, tuple[float, float]]] = {}
    fields: dict[str, dict[str, str]] = {}
    rewards: dict[str, float] = {}
    examples: list[dict[str, Any]] = []
    tools: dict[str, dict[str, dict[str, Any]]] | None = None
    reorganized: dict[str, Any] = {}


def read_recipe(path: Path) -> SavedRecipe:
    """Read the recipe of a run without importing its plugins.

    Raises:
        ValueError: the file is not a recipe.
    """
    try:
        return SavedRecipe.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        problem = first_problem(error)
    except (OSError, ValueError, RecursionError) as error:
        problem = str(error)
    raise ValueError(f"cannot read {path}: {problem}")


def read_evaluation(path: Path) -> dict[str, Any]:
    """Read a saved evaluation.

    Raises:
        ValueError: the file cannot be read.
    """
    try:
        return _SavedEvaluation.model_validate(atomic.read_json(path)).model_dump(exclude_unset=True)
    except ValidationError as error:
        problem = first_problem(error)
    except (OSError, ValueError) as error:
        problem = str(error)
    raise ValueError(f"{path} is damaged ({problem}); delete it and evaluate again")


def read_headline(path: Path) -> str:
    """Return the headline in a ``worth.json`` of ``marft worth``; "" if missing or unreadable."""
    try:
        table = atomic.read_json(path)
    except (OSError, ValueError):
        return ""
    headline = table.get("headline", "") if isinstance(table, dict) else ""
    return headline if isinstance(headline, str) else ""
