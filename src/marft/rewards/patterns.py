"""Regular expressions of recipes, matched against what models write: one that would search for ever is cut short."""

from __future__ import annotations

from typing import Annotated

import regex
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from marft.errors import EpisodeFailedError

LONGEST = 10_000  # characters of a pattern
SEARCH_SECONDS = 2.0  # through one text


def _is_an_expression(pattern: str) -> str:
    if len(pattern) > LONGEST:
        raise PydanticCustomError("pattern", "is longer than {most} characters", {"most": LONGEST})
    try:
        regex.compile(pattern)
    except regex.error as error:
        raise PydanticCustomError("pattern", "no regular expression: {error}", {"error": str(error)}) from error
    return pattern


Pattern = Annotated[str, AfterValidator(_is_an_expression)]


def holds(pattern: str, text: str) -> bool:
    """Whether the pattern is found in a text.

    Raises:
        EpisodeFailedError: that cannot be told in time.
    """
    try:
        return regex.search(pattern, text, timeout=SEARCH_SECONDS) is not None
    except TimeoutError:
        raise _late(pattern) from None


def last_group(pattern: str, text: str) -> str | None:
    """The first group of the pattern's last match, or all of the match where there is no group; None without a match.

    Raises:
        EpisodeFailedError: that cannot be told in time.
    """
    said: str | None = None
    try:
        for found in regex.finditer(pattern, text, timeout=SEARCH_SECONDS):
            said = found.group(1 if found.re.groups else 0)
    except TimeoutError:
        raise _late(pattern) from None
    return said


def _late(pattern: str) -> EpisodeFailedError:
    took = f"the regular expression {pattern!r} searched a text for over {SEARCH_SECONDS:g} s"
    return EpisodeFailedError("timed_out", f"{took}; write it without a repeat inside a repeat")
