"""Source location and origin of an error: file, line, and user code or MARFT."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path

from marft.common.packages import is_first_party_file
from marft.common.texts import format_error

STDLIB_FOLDERS = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
INSTALLED_FOLDERS = {"site-packages", "dist-packages"}


def error_location(error: BaseException) -> str:
    """Return the innermost line in the user's own code, as ``rewards.py:12``.

    If the error comes from an installed package, return the line of that package that MARFT called. Return "" if only
    MARFT was running.
    """
    if isinstance(error, SyntaxError) and isinstance(error.filename, str) and isinstance(error.lineno, int):
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    last = max((index for index, frame in enumerate(frames) if is_first_party_file(frame.filename)), default=-1)
    package_frames = [frame for frame in frames[last + 1 :] if _is_installed(frame.filename)]
    user_frames = [frame for frame in frames if not _is_not_user_code(frame.filename)]
    chosen = user_frames[-1] if user_frames else package_frames[0] if package_frames else None
    if chosen is None and isinstance(error.__cause__, StopIteration) and error.__cause__ is not error:
        # a coroutine cannot raise StopIteration: the RuntimeError that replaces it has it as its cause
        return error_location(error.__cause__)
    return f"{Path(chosen.filename).name}:{chosen.lineno}" if chosen else ""


def describe_error(error: BaseException) -> str:
    """Return an error with its location: ``KeyError: 'text' (rewards.py:12)``."""
    location = error_location(error)
    return format_error(error) + (f" ({location})" if location else "")


def _is_installed(filename: str) -> bool:
    return not INSTALLED_FOLDERS.isdisjoint(Path(filename).parts)


def source_location(function: object) -> str:
    """Return the source location of a function, method or class: ``environment.py:12``.

    A class has no line number. If the file is unknown, return the class name.
    """
    code = getattr(function, "__code__", None)
    if code is not None:
        return f"{Path(code.co_filename).name}:{code.co_firstlineno}"
    kind = function if isinstance(function, type) else type(function)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return Path(file).name if file else kind.__name__


def _is_not_user_code(filename: str) -> bool:
    """Return True for files outside the user's own code: installed packages, the standard library and MARFT."""
    path = Path(filename)
    return (
        _is_installed(filename)
        or is_first_party_file(path)
        or any(path.is_relative_to(folder) for folder in STDLIB_FOLDERS)
    )
