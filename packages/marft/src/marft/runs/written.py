"""Schemas for saved recipes and evaluations, readable without the named plugins."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from marft.common import atomic
from marft.config.guards import GuardSettings
from marft.config.load import first_problem


class _Whole(BaseModel):
    """Base schema with some checked keys. Other keys are kept."""

    model_config = ConfigDict(extra="allow")


class _Named(_Whole):
    name: str
    level: str


class _Seat(_Whole):
    role: str


class _Length(_Whole):
    steps: int


class WrittenRecipe(_Whole):
    """Schema for saved recipes, for readers without their plugins."""

    algorithm: _Named
    agents: list[_Seat]
    training: _Length
    guards: GuardSettings = GuardSettings()


class _Evaluated(_Whole):
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


def read_recipe(path: Path) -> WrittenRecipe:
    """Read the recipe of a run without importing its plugins.

    Raises:
        ValueError: the file is not a recipe.
    """
    try:
        return WrittenRecipe.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        why = first_problem(error)
    except (OSError, ValueError, RecursionError) as error:
        why = str(error)
    raise ValueError(f"cannot read {path}: {why}")


def read_evaluation(path: Path) -> dict[str, Any]:
    """Read a saved evaluation.

    Raises:
        ValueError: the file cannot be read.
    """
    try:
        return _Evaluated.model_validate(atomic.read_json(path)).model_dump(exclude_unset=True)
    except ValidationError as error:
        why = first_problem(error)
    except (OSError, ValueError) as error:
        why = str(error)
    raise ValueError(f"{path} is damaged ({why}); delete it and evaluate again")


def read_headline(path: Path) -> str:
    """Return the headline in a ``worth.json`` of ``marft worth``; "" if missing or unreadable."""
    try:
        found = atomic.read_json(path)
    except (OSError, ValueError):
        return ""
    said = found.get("headline", "") if isinstance(found, dict) else ""
    return said if isinstance(said, str) else ""
