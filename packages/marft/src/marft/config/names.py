"""User-chosen names for models, policies, tools, roles and runs. They become names of files or columns."""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

MAX_NAME_LENGTH = 64  # maximum length in characters; file systems allow 255 bytes, and MARFT adds words around the name
DEVICE_NAMES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)  # reserved device names of Windows
INVALID_CHARACTERS = '/ \\ : * ? " < > |'


def check_name(name: str) -> str:
    """Return a valid name for a model, a policy or a tool source.

    >>> check_name("reasoner-2")
    'reasoner-2'

    Raises:
        PydanticCustomError: the name cannot be a folder, part of a metric's name, or a key on the command line.
    """
    if not name or any(not (c.isalnum() or c in "_-") for c in name) or name.startswith("-"):
        raise _name_error("must consist of letters, digits, _ and -, and not begin with -")
    return _check_length(name)


def check_role(name: str) -> str:
    """Return a valid role; organizations use it as an attribute: ``agents.planner``.

    Raises:
        PydanticCustomError: the role is no Python identifier, or cannot be part of a metric's name.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise _name_error(
            "a role is a name that organizations call: letters, digits and _, not first a digit or _, and no word of "
            "Python's own"
        )
    return _check_length(name)


def check_run_name(name: str) -> str:
    """Return a valid name for a run's folder.

    Raises:
        PydanticCustomError: the name cannot be a folder, on this system or another.
    """
    if not name or not name.isprintable() or set(name) & set(INVALID_CHARACTERS.split()):
        raise _name_error(f"must be usable as a folder name: no control characters, and none of {INVALID_CHARACTERS}")
    if name[0] in ".- " or name[-1] in ". ":
        raise _name_error(
            "must be usable as a folder name: not begin with '.', '-' or a space, nor end with '.' or a space"
        )
    return _check_length(name)


def name_conflicts(kind: str, names: Iterable[str]) -> Iterable[str]:
    """Yield a message for each pair with equal names on some file systems.

    Such names differ only in case or in Unicode composition.
    """
    by_key: dict[str, str] = {}
    for name in names:
        first = by_key.setdefault(unicodedata.normalize("NFKC", name).casefold(), name)
        if first != name:
            yield f"{kind}: {first!r} and {name!r} are one file's name on some systems; rename one"


def _check_length(name: str) -> str:
    if len(name) > MAX_NAME_LENGTH or len(name.encode("utf-8", "replace")) > 2 * MAX_NAME_LENGTH:
        raise _name_error(f"must have at most {MAX_NAME_LENGTH} characters")
    if DEVICE_NAMES.match(name):
        raise _name_error("is the name of a device on some systems; take another")
    return name


def _name_error(reason: str) -> PydanticCustomError:
    return PydanticCustomError("name", "{why}", {"why": reason})


Name = Annotated[str, AfterValidator(check_name)]
Role = Annotated[str, AfterValidator(check_role)]
RunName = Annotated[str, AfterValidator(check_run_name)]
