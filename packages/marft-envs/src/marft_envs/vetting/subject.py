"""What is looked at: an environment, and the team that it is played with."""

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
TOGETHER = ("parallel",)  # organizations in which those who act in a step do not hear each other
READ: TypeAdapter[EnvironmentPart] = TypeAdapter(EnvironmentPlugin)


@dataclass(frozen=True, slots=True)
class Subject:
    """An environment and its team.

    Args:
        profiles: of a recipe's agents; (): nobody has said who plays it.
        most_steps: of an episode, where a recipe says so.
        unheard: agents of a step do not hear each other.
        sees: what they hear of earlier steps, as the organization ``turns`` has it.
        remembering: roles that remember what they were told and said.
        folder: a recipe's, where its modules and tables are.
        terms: a recipe's reward terms, by name.
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
        """What another process makes the same environment of; None where it lies in no module."""
        written = self.environment.model_dump(mode="json")
        if not self.environment._name or written["name"].startswith(MARK):
            return None
        return written if _same_when_read(written, self.environment, self.folder) else None


def of_recipe(run: RunSettings, folder: str = "") -> Subject:
    """The environment of a recipe, with its team."""
    profiles = tuple(agent.profile for agent in run.agents)
    unheard = run.team.name in TOGETHER or getattr(run.team, "order", "") == "together"
    sees = getattr(run.team, "sees", "nothing")
    remembering = frozenset(agent.role for agent in run.agents if agent.memory != "none")
    folder = folder or str(Path.cwd())
    given = cast("Sequence[Term]", run.rewards)
    terms = dict(zip(names_of(given), given, strict=True))
    return Subject(run.environment, profiles, run.rollout.max_steps, unheard, str(sees), remembering, folder, terms)


def subject_of(target: str, keys: Mapping[str, Any] = {}) -> Subject:
    """What a text names: a recipe in a file, a bundled recipe, a built-in or registered environment, an import path.

    Args:
        keys: of the environment, ``{"lines": 3}``.

    Raises:
        ValueError: nothing goes by that name, or a key cannot be used.
    """
    path = Path(target)
    if path.is_file() or target in bundled_names() or path.suffix == ".toml":
        folder = str(path.parent.resolve()) if path.is_file() else ""
        return of_recipe(load_recipe(path, (), {"environment": keys} if keys else {}), folder)
    return of_table({"name": target, **keys}, str(Path.cwd()))


def of_object(environment: EnvironmentPart) -> Subject:
    """An environment that was made in Python: by the name of its class, where any process finds it by that, and its
    keys are all that it holds."""
    private = {*(environment.__pydantic_private__ or {})} - {"_kind", "_name"}
    if environment._name or private or {*vars(environment)} - {*type(environment).model_fields}:
        return Subject(environment)
    written = {**_keys(environment), "name": name_of(type(environment))}
    if isinstance(written["name"], Given) or not _same_when_read(written, environment, ""):
        return Subject(environment)
    return of_table(written, "")


def name_of(kind: type[EnvironmentPart]) -> str:
    """The import path of a class that any process can import; else what it was given as."""
    found = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None)
    return f"{kind.__module__}:{kind.__qualname__}" if found is kind and kind.__module__ != "__main__" else Given(kind)


def of_table(table: Mapping[str, Any], folder: str) -> Subject:
    """An environment as it stands in a recipe.

    Raises:
        ValueError: there is none of that name, or a key cannot be used.
    """
    look_for_modules_in(folder)
    try:
        environment = READ.validate_python(dict(table), context={FOLDER: folder})
    except ValidationError as error:
        raise ValueError(f"environment {str(table['name'])!r}:\n{explain(error, table)}") from None
    return Subject(environment, folder=folder)


def _same_when_read(table: Mapping[str, Any], environment: EnvironmentPart, folder: str) -> bool:
    """Whether reading what it is written down as gives it again: an object may hold more than its keys say."""
    try:
        again = of_table(table, folder).environment
    except ValueError:
        return False
    return type(again) is type(environment) and json.dumps(_keys(again)) == json.dumps(_keys(environment))


def _keys(environment: EnvironmentPart) -> dict[str, Any]:
    written = environment.model_dump(mode="json")
    return {key: written[key] for key in type(environment).model_fields}
