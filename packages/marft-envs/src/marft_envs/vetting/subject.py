"""Subject for checks: an environment and its team."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from marft.common.types import Profile
from marft.config.bundled import bundled_names
from marft.config.folders import FOLDER, look_for_modules_in
from marft.config.given import MARK, Given
from marft.config.load import explain, load_recipe
from marft.config.parts import EnvironmentPart, EnvironmentPlugin
from marft.config.run import RunSettings
from marft.rewards.terms import Term, names_of

ALONE = Profile("solver")
TOGETHER = ("parallel",)  # organizations in which agents of the same step do not receive each other's messages
READ: TypeAdapter[EnvironmentPart] = TypeAdapter(EnvironmentPlugin)


@dataclass(frozen=True, slots=True)
class Subject:
    """Environment with its team.

    Args:
        environment: environment to check.
        profiles: profiles of a recipe's agents; () if unknown.
        most_steps: maximum steps per episode, from a recipe; 0 if unknown.
        unheard: True if agents of the same step do not receive each other's messages.
        sees: messages of earlier steps that agents receive, as in the organization ``turns``.
        remembering: roles with memory.
        folder: folder of the recipe, with its modules and tables.
        terms: reward terms of the recipe, by name.
    """

    environment: EnvironmentPart
    profiles: tuple[Profile, ...] = ()
    most_steps: int = 0
    unheard: bool = False
    sees: str = "nothing"
    remembering: frozenset[str] = frozenset()
    folder: str = ""
    terms: Mapping[str, Term] = field(default_factory=dict)

    @property
    def table(self) -> dict[str, Any] | None:
        """Return settings for the same environment in another process; None if it is not importable."""
        written = self.environment.model_dump(mode="json")
        if not self.environment._name or written["name"].startswith(MARK):
            return None
        return written if _same_when_read(written, self.environment, self.folder) else None


def of_recipe(run: RunSettings, folder: str = "") -> Subject:
    """Return the subject for a recipe."""
    profiles = tuple(agent.profile for agent in run.agents)
    unheard = run.team.name in TOGETHER or getattr(run.team, "order", "") == "together"
    sees = getattr(run.team, "sees", "nothing")
    remembering = frozenset(agent.role for agent in run.agents if agent.memory != "none")
    folder = folder or str(Path.cwd())
    given = cast("Sequence[Term]", run.rewards)
    terms = dict(zip(names_of(given), given, strict=True))
    return Subject(run.environment, profiles, run.rollout.max_steps, unheard, str(sees), remembering, folder, terms)


def subject_of(target: str, keys: Mapping[str, Any] = {}) -> Subject:
    """Find a subject by recipe file, bundled recipe, environment name or import path.

    Args:
        target: path, name or import path.
        keys: settings of the environment, such as ``{"lines": 3}``.

    Raises:
        ValueError: the name is unknown, or a setting is invalid.
    """
    path = Path(target)
    if path.is_file() or target in bundled_names() or path.suffix == ".toml":
        folder = str(path.parent.resolve()) if path.is_file() else ""
        return of_recipe(load_recipe(path, (), {"environment": keys} if keys else {}), folder)
    return of_table({"name": target, **keys}, str(Path.cwd()))


def of_object(environment: EnvironmentPart) -> Subject:
    """Return the subject for an environment created in Python.

    If other processes can import the class, and the settings describe the whole object, the subject uses the import
    path. Otherwise it uses the object.
    """
    private = {*(environment.__pydantic_private__ or {})} - {"_kind", "_name"}
    if environment._name or private or {*vars(environment)} - {*type(environment).model_fields}:
        return Subject(environment)
    written = {**_keys(environment), "name": name_of(type(environment))}
    if isinstance(written["name"], Given) or not _same_when_read(written, environment, ""):
        return Subject(environment)
    return of_table(written, "")


def name_of(kind: type[EnvironmentPart]) -> str:
    """Return an importable class's import path; else a reference to the inline class."""
    found = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None)
    return f"{kind.__module__}:{kind.__qualname__}" if found is kind and kind.__module__ != "__main__" else Given(kind)


def of_table(table: Mapping[str, Any], folder: str) -> Subject:
    """Return the subject for an environment's recipe table.

    Raises:
        ValueError: the name is unknown, or a setting is invalid.
    """
    look_for_modules_in(folder)
    try:
        environment = READ.validate_python(dict(table), context={FOLDER: folder})
    except ValidationError as error:
        raise ValueError(f"environment {str(table['name'])!r}:\n{explain(error, table)}") from None
    return Subject(environment, folder=folder)


def _same_when_read(table: Mapping[str, Any], environment: EnvironmentPart, folder: str) -> bool:
    """Return True if the settings recreate an equal environment. An object may have state beyond its settings."""
    try:
        again = of_table(table, folder).environment
    except ValueError:
        return False
    return type(again) is type(environment) and json.dumps(_keys(again)) == json.dumps(_keys(environment))


def _keys(environment: EnvironmentPart) -> dict[str, Any]:
    written = environment.model_dump(mode="json")
    return {key: written[key] for key in type(environment).model_fields}
