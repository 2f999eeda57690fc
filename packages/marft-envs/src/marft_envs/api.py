"""Python API for checking an environment before training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft.cli.python.asked import is_path
from marft.cli.python.commands import load_recipe
from marft.config.parts import EnvironmentPart
from marft.config.run import RunSettings
from marft_envs.vetting.limits import Limits
from marft_envs.vetting.subject import Subject, name_of, of_object, of_recipe, of_table, subject_of

if TYPE_CHECKING:
    from marft_envs.vetting.findings import Report

Asked = str | Path | Mapping[str, Any] | RunSettings | EnvironmentPart | type[EnvironmentPart]


def check_environment(environment: Asked, /, *, limits: Mapping[str, Any] = {}, **keys: Any) -> Report:
    """Check an environment for faults: load it, play it with several scripted players, and replay the episodes.

    Args:
        environment: its name, an import path, a recipe, the ``environment`` table of a recipe, a class, or an object.
        limits: fields of :class:`marft_envs.vetting.limits.Limits`, such as ``{"tasks": 2, "processes": False}``.
        keys: settings of the environment. They override those in ``environment``.

    ::

        report = marft_envs.check_environment(Mine, size=3)
        assert report.passed, str(report)

    Returns:
        The findings of all checks.

    Raises:
        ValueError: the environment does not exist, or a key or a limit is invalid.
    """
    from marft_envs.vetting.check import check

    try:
        held_to = Limits(**limits)
    except TypeError as error:
        raise ValueError(f"limits: {error}") from None
    return check(_subject(environment, keys), held_to)


def _subject(environment: object, keys: dict[str, Any]) -> Subject:
    if isinstance(environment, EnvironmentPart):
        if keys:
            raise ValueError(f"{environment.name} is an object; set {', '.join(keys)} there, or give its class")
        return of_object(environment)
    if isinstance(environment, type) and issubclass(environment, EnvironmentPart):
        return of_table({"name": name_of(environment), **keys}, str(Path.cwd()))
    if isinstance(environment, RunSettings) or (isinstance(environment, Mapping) and "environment" in environment):
        return of_recipe(load_recipe(environment, {"environment": keys} if keys else ()))
    if isinstance(environment, Mapping) and "name" in environment:
        return of_table({**environment, **keys}, str(Path.cwd()))
    if is_path(environment):
        return subject_of(str(environment), keys)
    raise ValueError(
        "an environment is its name, an import path, a recipe, a table with a name, a class that derives from "
        f"marft.EnvironmentPart, or an object of one; this is of type {type(environment).__name__}"
    )
