"""Score parsing: judge replies → scores from 0 to 1."""

from __future__ import annotations

import json
import re
import string

from marft.config.patterns import find_last_group

MARKDOWN_CHARS = "*_`~$"  # Markdown characters around a number
NUMBER = rf"[{MARKDOWN_CHARS}]*+([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))[{MARKDOWN_CHARS}]*+"
SCORE_LINE = re.compile(rf"[#>\s]*+{NUMBER}(?:\s*(?:/|\bout\s+of\b|\bof\b)\s*{NUMBER})?\s*\.?", re.IGNORECASE)


def parse_score(reply: str, scale: tuple[float, float], pattern: str = "", json_field: str = "") -> float | None:
    r"""Return the score in a reply, from 0 to 1; None if missing, outside the scale or ambiguous.

    Args:
        scale: the numbers that mean 0 and 1.
        pattern: regular expression; the first group of its last match (or the whole match) is the number. "": the last
            line is the number, alone or with the highest score after it, such as "7", "**7**", "7/10" or "7 out of 10".
        json_field: field of a JSON object in the reply that holds the number.

    Raises:
        EpisodeFailedError: the pattern search timed out.

    >>> parse_score("Clear, but wrong in the end.\n3 out of 10", (0, 10))
    0.3
    >>> parse_score('{"score": 7}', (0, 10), json_field="score")
    0.7
    """
    low, high = scale
    highest = max(scale)
    number = (
        _score_in_json(reply, json_field)
        if json_field
        else _score_by_pattern(reply, pattern)
        if pattern
        else _score_on_last_line(reply, highest)
    )
    if number is None or not min(scale) <= number <= highest:
        return None
    return (number - low) / (high - low)


def _score_on_last_line(reply: str, highest: float) -> float | None:
    """Return the number on the last line. The result is None if the line has other content."""
    match = SCORE_LINE.fullmatch(reply.rstrip(MARKDOWN_CHARS + string.whitespace).rpartition("\n")[2])
    if match is None or (match[2] is not None and float(match[2]) != highest):
        return None
    return float(match[1])


def _score_by_pattern(reply: str, pattern: str) -> float | None:
    try:
        return float(find_last_group(pattern, reply) or "")
    except ValueError:
        return None


def _score_in_json(reply: str, name: str) -> float | None:
    start, end = reply.find("{"), reply.rfind("}")
    try:
        table = json.loads(reply[start : end + 1])
        number = table.get(name) if isinstance(table, dict) else None
        return float(number) if isinstance(number, int | float) and not isinstance(number, bool) else None
    except (ValueError, RecursionError, OverflowError):
        return None
