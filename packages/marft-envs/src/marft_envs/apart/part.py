"""What environments of other packages have in common: the Python that they run on, and how long they may take."""

from __future__ import annotations

import os
from typing import ClassVar

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from marft.config.parts import EnvironmentPart
from marft.config.settings import Filled, Positive


class ApartPart(EnvironmentPart):
    """An environment of a package that is on a Python of its own: it wants other versions of libraries."""

    installs: ClassVar[str]  # what makes such a Python, in words

    python: Filled  # of a Python environment that has the package
    timeout_seconds: Positive = 120.0  # that it may take to answer; then its process is ended

    @field_validator("python")
    @classmethod
    def _is_there(cls, python: str) -> str:
        if not os.path.isfile(at_home(python)):  # noqa: PTH113  no path is too long
            words = {"python": python, "installs": cls.installs}
            raise PydanticCustomError("python", "there is no {python}; make one:  {installs}", words)
        return python


def at_home(path: str) -> str:
    """A path in which ``~`` is the user's folder; users that nobody knows stay as they are."""
    return os.path.expanduser(path)  # noqa: PTH111
