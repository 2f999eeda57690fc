"""Python API for checking an environment before training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft.cli.python.arguments import is_path
from marft.cli.python.commands import load_recipe
from marft.common.errors import UserError
from marft.config.interfaces.environment import Environment
from marft.config.run import RunSettings
from marft_envs.env_check.target import (
    CheckTarget,
    Limits,
    find_target,
    importable_name,
    target_from_object,
    target_from_recipe,
    target_from_table,
)

if TYPE_CHECKING:
    from marft_envs.env_check.report import Report

EnvironmentSpec = str | Path | Mapping[str, object] | RunSettings | Environment | type[Environment]


def check_environment(environment: EnvironmentSpec, /, *, limits: Mapping[str, Any] = {}, **keys: Any) -> Report:
    """Check an environment for faults: load it, play it with several scripted players, and replay the episodes.

    Args:
        environment: its name, an import path, a recipe, the ``environment`` table of a recipe, a class, or an object.
        limits: fields of :class:`marft_envs.env_check.target.Limits`, such as ``{"tasks": 2, "use_processes": False}``.
        keys: settings of the environment. They override those in ``environment``.

    ::

        report = marft_envs.check_environment(Mine, size=3)
        assert report.passed, str(report)

    Returns:
        The findings of all checks.

    Raises:
        UserError: the environment does not exist, or a key or a limit is invalid.
    """
    from marft_envs.env_check.runner import run_checks

    try:
        limits_object = Limits(**limits)
    except TypeError as error:
        raise UserError(f"limits: {error}") from None
    return run_checks(_find_target(environment, keys), limits_object)


def _find_target(environment: object, keys: dict[str, object]) -> CheckTarget:
    if isinstance(environment, Environment):
        if keys:
            raise UserError(f"{environment.name} is an object; set {', '.join(keys)} there, or give its class")
        return target_from_object(environment)
    if isinstance(environment, type) and issubclass(environment, Environment):
        return target_from_table({"name": importable_name(environment), **keys}, str(Path.cwd()))
    if isinstance(environment, RunSettings) or (isinstance(environment, Mapping) and "environment" in environment):
        return target_from_recipe(load_recipe(environment, {"environment": keys} if keys else ()))
    if isinstance(environment, Mapping) and "name" in environment:
        return target_from_table({**environment, **keys}, str(Path.cwd()))
    if is_path(environment):
        return find_target(str(environment), keys)
    raise UserError(
        "an environment is its name, an import path, a recipe, a table with a name, a class that derives from "
        f"marft.Environment, or an object of one; this is of type {type(environment).__name__}"
    )
