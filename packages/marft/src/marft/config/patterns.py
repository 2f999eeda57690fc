"""Regular expressions in recipes, matched against model output with a timeout."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import regex
from pydantic import AfterValidator, Strict
from pydantic_core import PydanticCustomError

from marft.common.errors import EpisodeFailedError
from marft.config.settings import check_names

MAX_PATTERN_LENGTH = 2_000  # maximum length of a pattern in characters
SEARCH_SECONDS = 2.0  # timeout of one search in seconds
MAX_PATTERN_SIZE = 100_000  # maximum parts of a pattern with its counted repeats expanded, as compiled
_PARTS = re.compile(
    r"(?P<opens>\()|(?P<closes>\))|\{(?P<least>\d*)(?:,(?P<most>\d*))?\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*+\]?|.", re.DOTALL
)


def check_pattern(pattern: str) -> str:
    """Return a valid pattern.

    Raises:
        PydanticCustomError: the pattern is no regular expression, or needs too much memory to compile.
    """
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise PydanticCustomError("pattern", "is longer than {most} characters", {"most": MAX_PATTERN_LENGTH})
    if _pattern_size(pattern) > MAX_PATTERN_SIZE:
        raise PydanticCustomError(
            "pattern",
            "counts up to more than {most} parts; write * or +, or smaller numbers in its braces",
            {"most": f"{MAX_PATTERN_SIZE:,}"},
        )
    try:
        regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError) as error:
        message = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise PydanticCustomError(
            "pattern", "{pattern} is no regular expression: {error}", {"pattern": repr(pattern)[:200], "error": message}
        ) from error
    return pattern


Pattern = Annotated[str, AfterValidator(check_pattern)]
Patterns = Annotated[tuple[Pattern, ...], Strict(False), AfterValidator(check_names)]


def _pattern_size(pattern: str) -> int:
    """Return the number of parts in a pattern with its counted repeats expanded.

    >>> _pattern_size("ab"), _pattern_size("a{3}b")
    (2, 4)
    >>> _pattern_size("(?:a|b){2,5}") > 10, _pattern_size("(a{100}){100}") > 10_000
    (True, True)
    """
    groups = [[0, 0]]  # per open group: total size, and size of the last part, which a repeat applies to
    for part in _PARTS.finditer(pattern):
        if part["opens"]:
            groups.append([0, 1])
        elif part["least"] is not None and (part["least"] or part["most"]):
            groups[-1][1] *= max(1, int(part["most"] or part["least"]))
        else:
            size = sum(groups.pop()) if part["closes"] and len(groups) > 1 else 1
            groups[-1] = [sum(groups[-1]), size]
    return sum(map(sum, groups))


def find_matches(pattern: str, text: str, ignore_case: bool = False) -> Iterator[regex.Match[str]]:
    """Yield the pattern's matches in a text.

    Raises:
        EpisodeFailedError: the search exceeds its time or memory limit.
    """
    try:
        yield from regex.finditer(pattern, text, regex.IGNORECASE if ignore_case else 0, timeout=SEARCH_SECONDS)
    except TimeoutError:
        raise _timeout_error(pattern) from None
    except MemoryError:
        raise EpisodeFailedError("failed", f"the regular expression {pattern!r} needs too much memory") from None


def contains_match(pattern: str, text: str) -> bool:
    """Return True if the pattern matches anywhere in a text.

    Raises:
        EpisodeFailedError: the search exceeds its time or memory limit.
    """
    return next(find_matches(pattern, text), None) is not None


def find_last_group(pattern: str, text: str) -> str | None:
    """Return the first group in the pattern's last match, or the whole match without groups; None without a match.

    Raises:
        EpisodeFailedError: the search exceeds its time or memory limit.
    """
    group: str | None = None
    for match in find_matches(pattern, text):
        group = match.group(1 if match.re.groups else 0)
    return group


def _timeout_error(pattern: str) -> EpisodeFailedError:
    message = f"the regular expression {pattern!r} searched a text for over {SEARCH_SECONDS:g} s"
    return EpisodeFailedError("timed_out", f"{message}; write it without a repeat inside a repeat")
