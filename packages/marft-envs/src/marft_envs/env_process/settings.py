"""Shared settings for environments in a separate Python: its path and the timeout."""

from __future__ import annotations

import os
from typing import ClassVar

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from marft.config.plugin_types import EnvironmentPart
from marft.config.settings import NonEmptyString, Positive


class SubprocessEnvironmentPart(EnvironmentPart):
    """Base class for an environment in a separate Python, because its package needs other library versions."""

    install_command: ClassVar[str]  # command that creates such a Python environment, for error messages

    python: NonEmptyString  # path to the Python executable of an environment that has the package
    timeout_seconds: Positive = 120.0  # timeout of a request; the process is ended after it

    @field_validator("python")
    @classmethod
    def _check_python(cls, python: str) -> str:
        if not os.path.isfile(expand_home(python)):  # noqa: PTH113  returns False for a path that is too long
            words = {"python": python, "installs": cls.install_command}
            raise PydanticCustomError("python", "there is no {python}; make one:  {installs}", words)
        return python


def expand_home(path: str) -> str:
    """Expand a leading ``~`` in a path; paths with unknown users stay unchanged."""
    return os.path.expanduser(path)  # noqa: PTH111
