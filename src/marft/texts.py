"""Text of others, made safe to store and to show."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path

LONGEST = 2_000  # characters of an error that are kept
OBEYED = {  # by terminals and pages: control characters, and those that turn the direction of the text around them
    *range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A),
} - {ord("\n"), ord("\t")}  # fmt: skip
SHOWN = dict.fromkeys(OBEYED, "\ufffd")
LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
PLUMBING = (str(Path(__file__).with_name("game")), "<frozen")  # between a call and what is called


def storable(text: str) -> str:
    """The text without half characters, which no file takes.

    >>> storable("half \\ud83d")
    'half ?'
    """
    return text.encode("utf-8", "replace").decode()


def visible(text: str) -> str:
    """The text without what a terminal or a page would obey; line breaks and tabs stay.

    >>> visible("a\\x1b[2Jb\\u202ec\\n")
    'a�[2Jb�c\\n'
    """
    return storable(text).translate(SHOWN)


def one_line(text: str) -> str:
    """The text on one line, without what a terminal would obey.

    >>> one_line("a\\n\\tb\\x1b[2J")
    'a b�[2J'
    """
    return " ".join(visible(text).split())


def cut(text: str, most: int = LONGEST) -> str:
    """The beginning of a text, and how much of it is left out.

    >>> cut("a long story", 6)
    'a long … (6 more characters)'
    """
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"


def raised(error: BaseException) -> str:
    """What was raised, ``ValueError: boom``, also where the error cannot say it itself, or says too much."""
    try:
        said = "".join(traceback.format_exception_only(error)).strip()
    except BaseException:  # noqa: BLE001  somebody else's error, whose own code runs here
        said = f"{type(error).__name__}, which cannot say what it is"
    return storable(cut(said))


def place(error: BaseException) -> str:
    """Where somebody's code raised it, ``environment.py:12``; what the error went through in libraries comes second."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if not frames:
        return ""
    own = [f for f in frames if not f[0].startswith((*LIBRARIES, *PLUMBING)) and "site-packages" not in f[0]]
    innermost = frames[-1]
    if not own or own[-1] == innermost:
        return _named(innermost)
    return _named(own[-1]) if innermost[0].startswith(PLUMBING) else f"{_named(own[-1])}, in {_named(innermost)}"


def described(error: BaseException) -> str:
    """``ValueError: boom (environment.py:12)``: what was raised, and where."""
    where = place(error)
    return f"{raised(error)} ({where})" if where else raised(error)


def _named(frame: tuple[str, int]) -> str:
    file, line = frame
    return f"{Path(file).name}:{line}"


def name_of(part: object) -> str:
    """What a part is called in the recipe, or its class."""
    name = getattr(part, "name", "")
    return name if isinstance(name, str) and name else type(part).__name__


def defined(function: object) -> str:
    """Where a function, a method or a class is written, ``environment.py:12``, as far as it says so."""
    code = getattr(function, "__code__", None)
    if code is not None:
        return _named((code.co_filename, code.co_firstlineno))
    kind = function if isinstance(function, type) else type(function)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return Path(file).name if file else kind.__name__
