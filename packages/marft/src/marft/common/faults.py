"""Source location and origin of an error: file, line, and user code or MARFT."""

from __future__ import annotations

import dis
import sys
import sysconfig
import traceback
from pathlib import Path

from marft.common.ownership import is_our_file
from marft.common.texts import raised

STANDARD = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
INSTALLED = {"site-packages", "dist-packages"}


def place_of(error: BaseException) -> str:
    """Return the innermost line in the user's own code, as ``rewards.py:12``.

    If the error comes from an installed package, return the line of that package that MARFT called. Return "" if only
    MARFT was running.
    """
    if isinstance(error, SyntaxError) and isinstance(error.filename, str) and isinstance(error.lineno, int):
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    last = max((index for index, frame in enumerate(frames) if is_our_file(frame.filename)), default=-1)
    called = [frame for frame in frames[last + 1 :] if _installed(frame.filename)]
    own = [frame for frame in frames if not _is_others(frame.filename)]
    chosen = own[-1] if own else called[0] if called else None
    if chosen is None and isinstance(error.__cause__, StopIteration) and error.__cause__ is not error:
        # a coroutine cannot raise StopIteration: the RuntimeError that replaces it has it as its cause
        return place_of(error.__cause__)
    return f"{Path(chosen.filename).name}:{chosen.lineno}" if chosen else ""


def described(error: BaseException) -> str:
    """Return an error with its location: ``KeyError: 'text' (rewards.py:12)``."""
    place = place_of(error)
    return raised(error) + (f" ({place})" if place else "")


def deliberate(error: BaseException) -> bool:
    """Return True if a ``raise`` statement in MARFT's own code raised the error.

    The result is False if a call made by MARFT raised it. An error without a traceback counts as deliberate.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return True
    code = last.tb_frame.f_code
    raised_here = dis.opname[code.co_code[last.tb_lasti]] == "RAISE_VARARGS"
    return raised_here and is_our_file(code.co_filename)


def _installed(filename: str) -> bool:
    return not INSTALLED.isdisjoint(Path(filename).parts)


def defined(function: object) -> str:
    """Return the source location of a function, method or class: ``environment.py:12``.

    A class has no line number. If the file is unknown, return the class name.
    """
    code = getattr(function, "__code__", None)
    if code is not None:
        return f"{Path(code.co_filename).name}:{code.co_firstlineno}"
    kind = function if isinstance(function, type) else type(function)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return Path(file).name if file else kind.__name__


def _is_others(filename: str) -> bool:
    """Return True for files outside the user's own code: installed packages, the standard library and MARFT."""
    path = Path(filename)
    return _installed(filename) or is_our_file(path) or any(path.is_relative_to(folder) for folder in STANDARD)
