"""Score parsing: judge replies → scores from 0 to 1."""

from __future__ import annotations

import json
import re
import string

from marft.config.patterns import last_group

MARKS = "*_`~$"  # Markdown characters around a number
NUMBER = rf"[{MARKS}]*+([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))[{MARKS}]*+"
ALONE = re.compile(rf"[#>\s]*+{NUMBER}(?:\s*(?:/|\bout\s+of\b|\bof\b)\s*{NUMBER})?\s*\.?", re.IGNORECASE)


def read_score(reply: str, scale: tuple[float, float], pattern: str = "", json_field: str = "") -> float | None:
    r"""Return the score in a reply, from 0 to 1; None if missing, outside the scale or ambiguous.

    Args:
        scale: the numbers that mean 0 and 1.
        pattern: regular expression; the first group of its last match (or the whole match) is the number. "": the last
            line is the number, alone or with the highest score after it, such as "7", "**7**", "7/10" or "7 out of 10".
        json_field: field of a JSON object in the reply that holds the number.

    Raises:
        EpisodeFailedError: the pattern search timed out.

    >>> read_score("Clear, but wrong in the end.\n3 out of 10", (0, 10))
    0.3
    >>> read_score('{"score": 7}', (0, 10), json_field="score")
    0.7
    """
    low, high = scale
    highest = max(scale)
    number = _field(reply, json_field) if json_field else _last(reply, pattern) if pattern else _alone(reply, highest)
    if number is None or not min(scale) <= number <= highest:
        return None
    return (number - low) / (high - low)


def _alone(reply: str, highest: float) -> float | None:
    """Return the number on the last line. The result is None if the line has other content."""
    said = ALONE.fullmatch(reply.rstrip(MARKS + string.whitespace).rpartition("\n")[2])
    if said is None or (said[2] is not None and float(said[2]) != highest):
        return None
    return float(said[1])


def _last(reply: str, pattern: str) -> float | None:
    try:
        return float(last_group(pattern, reply) or "")
    except ValueError:
        return None


def _field(reply: str, name: str) -> float | None:
    start, end = reply.find("{"), reply.rfind("}")
    try:
        table = json.loads(reply[start : end + 1])
        number = table.get(name) if isinstance(table, dict) else None
        return float(number) if isinstance(number, int | float) and not isinstance(number, bool) else None
    except (ValueError, RecursionError, OverflowError):
        return None
