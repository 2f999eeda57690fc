"""From what a judge replies to a score from 0 to 1."""

from __future__ import annotations

import json
import re
import string

from marft.config.patterns import last_group

MARKS = "*_`~$"  # of markdown, around a number
NUMBER = rf"[{MARKS}]*+([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))[{MARKS}]*+"
ALONE = re.compile(rf"[#>\s]*+{NUMBER}(?:\s*(?:/|\bout\s+of\b|\bof\b)\s*{NUMBER})?\s*\.?", re.IGNORECASE)


def read_score(reply: str, scale: tuple[float, float], pattern: str = "", json_field: str = "") -> float | None:
    """The score in a reply, from 0 to 1; None where there is none on the scale, or where it is not plain which it is.

    Args:
        scale: the numbers that mean 0 and 1.
        pattern: the first group of its last match (or all of it) is the number; "": the last line is the number,
            alone or with the highest one behind it: "7", "**7**", "7/10", "7 out of 10".
        json_field: the number is this field of a JSON object in the reply.

    Raises:
        EpisodeFailedError: the pattern searches for too long.

    >>> read_score("Clear, but wrong in the end.\\n3 out of 10", (0, 10))
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
    """The number that the last line consists of."""
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
