"""Where something went wrong: the file and line in whose code, and which part of the run that was."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from marft.texts import raised

OURS = Path(__file__).parent
STANDARD = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
INSTALLED = {"site-packages", "dist-packages"}


def place_of(error: BaseException) -> str:
    """``rewards.py:12``: the innermost line in the user's own code; "" where nothing but MARFT was running.

    Where that is an installed package, it is the line that MARFT called.
    """
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    last = max((place for place, frame in enumerate(frames) if _within(frame.filename, (OURS,))), default=-1)
    called = [frame for frame in frames[last + 1 :] if _installed(frame.filename)]
    own = [frame for frame in frames if not (_installed(frame.filename) or _within(frame.filename, (OURS, *STANDARD)))]
    chosen = own[-1] if own else called[0] if called else None
    return f"{Path(chosen.filename).name}:{chosen.lineno}" if chosen else ""


def described(error: BaseException) -> str:
    """``KeyError: 'text' (rewards.py:12)``: what was raised, and where."""
    place = place_of(error)
    return raised(error) + (f" ({place})" if place else "")


def _installed(filename: str) -> bool:
    return not INSTALLED.isdisjoint(Path(filename).parts)


def _within(filename: str, folders: tuple[Path, ...]) -> bool:
    return any(Path(filename).is_relative_to(folder) for folder in folders)
