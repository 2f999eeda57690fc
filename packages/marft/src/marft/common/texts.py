"""Sanitized text from outside sources, safe to store and display."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from marft.common.thoughts import Said

LONGEST = 2_000  # maximum length of a stored error, in characters
OBEYED = {  # control characters of terminals and pages, and characters that change the text direction
    *range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A),
} - {ord("\n"), ord("\t")}  # fmt: skip
SHOWN = dict.fromkeys(OBEYED, "\ufffd")


def storable(text: str) -> str:
    """Replace lone surrogates, because UTF-8 cannot encode them.

    >>> storable("half \\ud83d")
    'half ?'
    """
    return text.encode("utf-8", "replace").decode()


def visible(text: str) -> str:
    """Replace control characters for terminals and pages; line breaks and tabs stay.

    >>> visible("a\\x1b[2Jb\\u202ec\\n")
    'a�[2Jb�c\\n'
    """
    return storable(text).translate(SHOWN)


def one_line(text: str) -> str:
    """Return the text on one line without control characters.

    >>> one_line("a\\n\\tb\\x1b[2J")
    'a b�[2J'
    """
    return " ".join(visible(text).split())


def until(text: str, stops: Sequence[str | Said]) -> str:
    """Return the text before the first stop string.

    >>> until("one. two! three", ("!", "."))
    'one'

    Args:
        stops: stop strings, and stop strings that count only outside reasoning.
    """
    found = [index for stop in stops if (index := place(text, stop)) >= 0]
    return text[: min(found)] if found else text


def place(text: str, mark: str | Said) -> int:
    """Return the first position for a stop string in a text, -1 if absent."""
    return mark.find(text) if isinstance(mark, Said) else text.find(mark)


def cut(text: str, most: int = LONGEST) -> str:
    """Truncate a text to ``most`` characters and append the number left out.

    >>> cut("a long story", 6)
    'a long … (6 more characters)'
    """
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"


def raised(error: BaseException) -> str:
    """Return an error as text, ``ValueError: boom``, truncated, even if its own formatting fails."""
    try:
        said = "".join(traceback.format_exception_only(error)).strip()
    except BaseException:  # noqa: BLE001  third-party error: its own code runs here
        said = f"{type(error).__name__}, which cannot say what it is"
    return storable(cut(said))


def name_of(part: object) -> str:
    """Return a component's name in the recipe, or its class name."""
    name = getattr(part, "name", "")
    return name if isinstance(name, str) and name else type(part).__name__
