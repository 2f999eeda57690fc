"""Subject for checks: an environment and its team; and the limits of the checks."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from marft.common.errors import UserError
from marft.common.types import AgentProfile
from marft.config.bundled import bundled_names
from marft.config.interfaces.environment import Environment
from marft.config.interfaces.reward import RewardTerm
from marft.config.load import format_errors, load_recipe
from marft.config.paths import RECIPE_FOLDER, register_module_folder
from marft.config.plugins import find_plugin
from marft.config.python_objects import PLACEHOLDER_PREFIX, ObjectPlaceholder
from marft.config.run import RunSettings
from marft.rewards.terms import unique_names


@dataclass(frozen=True, slots=True)
class Limits:
    """Amount of play, and thresholds for findings. Times are wall-clock seconds."""

    tasks: int = 4  # number of training tasks to play
    held_out_tasks: int = 1  # number of validation tasks, and of test tasks, to play
    max_steps: int = 200  # maximum steps per episode, unless the recipe sets its own
    max_median_seconds: float = 0.1  # maximum median time of a kind of call
    max_call_seconds: float = 1.0  # maximum time of any call
    max_load_seconds: float = 60.0  # maximum time to load the tasks of all splits
    max_blocking_seconds: float = 0.01  # maximum time that a call blocks its thread without awaiting
    call_timeout_seconds: float = 20.0  # timeout of a call
    max_observation_chars: int = 20_000  # maximum characters of an observation, as a single agent sees it
    min_similarity: float = 0.8  # minimum Jaccard similarity of near-duplicates, without common shingles
    max_compared_tasks: int = 2000  # maximum tasks per split in the near-duplicate search
    use_processes: bool = True  # True to repeat episodes in new processes


SINGLE_PROFILE = AgentProfile("solver")


@dataclass(frozen=True, slots=True)
class CheckTarget:
    """Environment with its team.

    Args:
        environment: environment to check.
        profiles: profiles of a recipe's agents; () if unknown.
        max_steps: maximum steps per episode, from a recipe; 0 if unknown.
        no_step_messages: True if agents of the same step do not receive each other's messages.
        visible: messages of earlier steps that agents receive, as in the organization ``turns``.
        memory_roles: roles with memory.
        writes_prompts: True if the organization writes the agents' prompts itself.
        folder: folder of the recipe, with its modules and tables.
        terms: reward terms of the recipe, by name.
    """

    environment: Environment
    profiles: tuple[AgentProfile, ...] = ()
    max_steps: int = 0
    no_step_messages: bool = False
    visible: str = "none"
    memory_roles: frozenset[str] = frozenset()
    writes_prompts: bool = False
    folder: str = ""
    terms: Mapping[str, RewardTerm] = field(default_factory=dict)

    @property
    def settings_table(self) -> dict[str, object] | None:
        """Return settings for the same environment in another process; None if it is not importable."""
        settings = self.environment.model_dump(mode="json")
        if not self.environment._name or settings["name"].startswith(PLACEHOLDER_PREFIX):
            return None
        return settings if _is_restorable(settings, self.environment, self.folder) else None


def target_from_recipe(run: RunSettings, folder: str = "") -> CheckTarget:
    """Return the subject for a recipe."""
    profiles = tuple(agent.profile for agent in run.agents)
    no_step_messages = run.team.no_step_messages or getattr(run.team, "order", "") == "simultaneous"
    visible = getattr(run.team, "visible", "none")
    memory_roles = frozenset(agent.role for agent in run.agents if agent.memory != "none")
    folder = folder or str(Path.cwd())
    reward_terms = run.rewards
    terms = dict(zip(unique_names(reward_terms), reward_terms, strict=True))
    return CheckTarget(
        run.environment,
        profiles,
        run.rollout.max_steps,
        no_step_messages,
        str(visible),
        memory_roles,
        run.team.writes_prompts,
        folder,
        terms,
    )


def find_target(target: str, keys: Mapping[str, object] = {}) -> CheckTarget:
    """Find a subject by recipe file, bundled recipe, environment name or import path.

    Args:
        target: path, name or import path.
        keys: settings of the environment, such as ``{"lines": 3}``.

    Raises:
        UserError: the name is unknown, or a setting is invalid.
    """
    path = Path(target)
    if _is_recipe(target):
        folder = str(path.parent.resolve()) if path.is_file() else ""
        return target_from_recipe(load_recipe(path, (), {"environment": keys} if keys else {}), folder)
    return target_from_table({"name": target, **keys}, str(Path.cwd()))


def find_keys(target: str) -> frozenset[str]:
    """Return the keys of a subject's environment.

    Args:
        target: as in :func:`find_target`; where it cannot be found, there are no keys.
    """
    try:
        if _is_recipe(target):
            return frozenset(type(load_recipe(Path(target)).environment).model_fields)
        register_module_folder(str(Path.cwd()))
        return frozenset(find_plugin("environments", target, {RECIPE_FOLDER: str(Path.cwd())}).model_fields)
    except ValueError:
        return frozenset()


def _is_recipe(target: str) -> bool:
    path = Path(target)
    return path.is_file() or target in bundled_names() or path.suffix == ".toml"


def target_from_object(environment: Environment) -> CheckTarget:
    """Return the subject for an environment created in Python.

    If other processes can import the class, and the settings describe the whole object, the subject uses the import
    path. Otherwise it uses the object.
    """
    private = {*(environment.__pydantic_private__ or {})} - {"_kind", "_name"}
    if environment._name or private or {*vars(environment)} - {*type(environment).model_fields}:
        return CheckTarget(environment)
    settings = {**_settings_values(environment), "name": importable_name(type(environment))}
    if isinstance(settings["name"], ObjectPlaceholder) or not _is_restorable(settings, environment, ""):
        return CheckTarget(environment)
    return target_from_table(settings, "")


def importable_name(kind: type[Environment]) -> str:
    """Return an importable class's import path; else a reference to the inline class."""
    module_attribute = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None)
    return (
        f"{kind.__module__}:{kind.__qualname__}"
        if module_attribute is kind and kind.__module__ != "__main__"
        else ObjectPlaceholder(kind)
    )


def target_from_table(table: Mapping[str, object], folder: str) -> CheckTarget:
    """Return the subject for an environment's recipe table.

    Raises:
        UserError: the name is unknown, or a setting is invalid.
    """
    register_module_folder(folder)
    try:
        environment = Environment.model_validate(dict(table), context={RECIPE_FOLDER: folder})
    except ValidationError as error:
        raise UserError(f"environment {str(table['name'])!r}:\n{format_errors(error, table)}") from None
    return CheckTarget(environment, folder=folder)


def _is_restorable(table: Mapping[str, object], environment: Environment, folder: str) -> bool:
    """Return True if the settings recreate an equal environment. An object may have state beyond its settings."""
    try:
        restored = target_from_table(table, folder).environment
    except ValueError:
        return False
    return type(restored) is type(environment) and json.dumps(_settings_values(restored)) == json.dumps(
        _settings_values(environment)
    )


def _settings_values(environment: Environment) -> dict[str, object]:
    settings = environment.model_dump(mode="json")
    return {key: settings[key] for key in type(environment).model_fields}
