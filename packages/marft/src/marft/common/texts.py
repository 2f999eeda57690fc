"""Sanitized text from outside sources, safe to store and display."""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from typing import Any

from marft.common.reasoning import StopString

MAX_ERROR_LENGTH = 2_000  # maximum length of a stored error, in characters
CONTROL_CHARACTERS = {  # control characters of terminals and pages, and characters that change the text direction
    *range(0x20),
    *range(0x7F, 0xA0),
    0x061C,
    0x200E,
    0x200F,
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
} - {ord("\n"), ord("\t")}
REPLACEMENTS = dict.fromkeys(CONTROL_CHARACTERS, "\ufffd")


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, because UTF-8 cannot encode them.

    >>> replace_surrogates("half \\ud83d")
    'half ?'
    """
    return text.encode("utf-8", "replace").decode()


def sanitize(text: str) -> str:
    """Replace control characters for terminals and pages; line breaks and tabs stay.

    >>> sanitize("a\\x1b[2Jb\\u202ec\\n")
    'a�[2Jb�c\\n'
    """
    return replace_surrogates(text).translate(REPLACEMENTS)


def single_line(text: str) -> str:
    """Return the text on one line without control characters.

    >>> single_line("a\\n\\tb\\x1b[2J")
    'a b�[2J'
    """
    return " ".join(sanitize(text).split())


def parse_json_text(value: object) -> Any:
    """Parse JSON text; return other values unchanged."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def common_prefix(first: str, second: str) -> str:
    """Return the common prefix of two texts."""
    size = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    return first[:size]


def cut_at_stop(text: str, stops: Sequence[str | StopString]) -> str:
    """Return the text before the first stop string.

    >>> cut_at_stop("one. two! three", ("!", "."))
    'one'

    Args:
        stops: stop strings, and stop strings that count only outside reasoning.
    """
    positions = [index for stop in stops if (index := find_stop(text, stop)) >= 0]
    return text[: min(positions)] if positions else text


def find_stop(text: str, stop: str | StopString) -> int:
    """Return the first position for a stop string in a text, -1 if absent."""
    return stop.find(text) if isinstance(stop, StopString) else text.find(stop)


def truncate(text: str, limit: int = MAX_ERROR_LENGTH) -> str:
    """Truncate a text to ``limit`` characters and append the number left out.

    >>> truncate("a long story", 6)
    'a long … (6 more characters)'
    """
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit:,} more characters)"


def join_names(names: Sequence[str], limit: int = 5) -> str:
    """Join the first names, with the number of the others.

    >>> join_names(["a", "b", "c", "d"], limit=2)
    'a, b and 2 more'
    """
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def format_error(error: BaseException) -> str:
    """Return an error as text, ``ValueError: boom``, truncated, even if its own formatting fails."""
    try:
        text = "".join(traceback.format_exception_only(error)).strip()
    except BaseException:  # noqa: BLE001  third-party error: its own code runs here
        text = f"{type(error).__name__}, which cannot say what it is"
    return replace_surrogates(truncate(text))


def display_name(part: object) -> str:
    """Return a component's name in the recipe, or its class name."""
    name = getattr(part, "name", "")
    return name if isinstance(name, str) and name else type(part).__name__
