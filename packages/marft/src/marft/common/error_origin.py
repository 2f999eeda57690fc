"""Source location and origin of an error: file, line, and user code or MARFT."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path
from types import CodeType

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
    code, line = _origin(error)
    return f"{Path(code.co_filename).name}:{line}" if code else ""


def error_function(error: BaseException) -> str:
    """Return the function of :func:`error_location`, as ``Median.assign``; "" if only MARFT was running."""
    code, _ = _origin(error)
    return code.co_qualname.replace("<locals>.", "") if code else ""


def _origin(error: BaseException) -> tuple[CodeType | None, int]:
    """Return the code and line of the user, else of the package that MARFT called; None if only MARFT was running."""
    lines = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    lines = [(code, line) for code, line in lines if not code.co_filename.startswith("<")]
    last = max((index for index, (code, _) in enumerate(lines) if is_first_party_file(code.co_filename)), default=-1)
    package_lines = [(code, line) for code, line in lines[last + 1 :] if _is_installed(code.co_filename)]
    user_lines = [(code, line) for code, line in lines if not _is_not_user_code(code.co_filename)]
    if user_lines or package_lines:
        return user_lines[-1] if user_lines else package_lines[0]
    if isinstance(error.__cause__, StopIteration) and error.__cause__ is not error:
        # a coroutine cannot raise StopIteration: the RuntimeError that replaces it has it as its cause
        return _origin(error.__cause__)
    return None, 0


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
