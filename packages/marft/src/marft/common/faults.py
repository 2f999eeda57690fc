"""Where something went wrong: the file and line in whose code, and which part of the run that was."""

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
    """``rewards.py:12``: the innermost line in the user's own code; "" where nothing but MARFT was running.

    Where that is an installed package, it is the line that MARFT called.
    """
    if isinstance(error, SyntaxError) and isinstance(error.filename, str) and isinstance(error.lineno, int):
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    last = max((index for index, frame in enumerate(frames) if is_our_file(frame.filename)), default=-1)
    called = [frame for frame in frames[last + 1 :] if _installed(frame.filename)]
    own = [frame for frame in frames if not _is_others(frame.filename)]
    chosen = own[-1] if own else called[0] if called else None
    if chosen is None and isinstance(error.__cause__, StopIteration) and error.__cause__ is not error:
        return place_of(error.__cause__)  # which no coroutine can raise: it comes as what it caused
    return f"{Path(chosen.filename).name}:{chosen.lineno}" if chosen else ""


def described(error: BaseException) -> str:
    """``KeyError: 'text' (rewards.py:12)``: what was raised, and where."""
    place = place_of(error)
    return raised(error) + (f" ({place})" if place else "")


def deliberate(error: BaseException) -> bool:
    """Whether it comes from a ``raise`` of MARFT's own, and not from something that MARFT called."""
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
    """Where a function, a method or a class is written, ``environment.py:12``, as far as it says so."""
    code = getattr(function, "__code__", None)
    if code is not None:
        return f"{Path(code.co_filename).name}:{code.co_firstlineno}"
    kind = function if isinstance(function, type) else type(function)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return Path(file).name if file else kind.__name__


def _is_others(filename: str) -> bool:
    """Return whether a file is installed, of the standard library, or of MARFT: not the user's own."""
    path = Path(filename)
    return _installed(filename) or is_our_file(path) or any(path.is_relative_to(folder) for folder in STANDARD)
