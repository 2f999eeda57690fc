"""Text of others, made safe to store and to show."""

from __future__ import annotations

import traceback
import unicodedata


def storable(text: str) -> str:
    """The text without half characters, which no file takes.

    >>> storable("half \\ud83d")
    'half ?'
    """
    return text.encode("utf-8", "replace").decode()


def visible(text: str) -> str:
    """The text without what a terminal would obey: control characters other than line breaks and tabs.

    >>> visible("a\\x1b[2Jb\\n")
    'a�[2Jb\\n'
    """
    return "".join("�" if unicodedata.category(c) == "Cc" and c not in "\n\t" else c for c in storable(text))


def cut(text: str, most: int) -> str:
    """The beginning of a text, and how much of it is left out.

    >>> cut("a long story", 6)
    'a long … (6 more characters)'
    """
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"


def raised(error: BaseException) -> str:
    """What was raised, ``ValueError: boom``, also where the error cannot say it itself."""
    return storable("".join(traceback.format_exception_only(error)).strip())
