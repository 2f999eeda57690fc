"""From what a judge replies to a score from 0 to 1."""

from __future__ import annotations

import json
import re

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def read_score(reply: str, scale: tuple[float, float], pattern: str = "", json_field: str = "") -> float | None:
    """The score in a reply, from 0 to 1; None where there is none on the scale.

    Args:
        scale: the numbers that mean 0 and 1.
        pattern: the first group of its last match (or all of it) is the number; "": the last number of the reply,
            where "7/10" and "7 out of 10" say 7.
        json_field: the number is this field of a JSON object in the reply.

    >>> read_score("Clear, but wrong in the end. 3 out of 10", (0, 10))
    0.3
    >>> read_score('{"score": 7}', (0, 10), json_field="score")
    0.7
    """
    low, high = scale
    number = _field(reply, json_field) if json_field else _last(reply, pattern) if pattern else _number(reply, high)
    if number is None or not min(low, high) <= number <= max(low, high):
        return None
    return (number - low) / (high - low)


def _number(reply: str, highest: float) -> float | None:
    said = re.sub(rf"(?:/|\bout of\b)\s*{highest:g}(?![\d.]*\d)", "", reply)
    numbers = NUMBER.findall(said)
    return float(numbers[-1]) if numbers else None


def _last(reply: str, pattern: str) -> float | None:
    found = list(re.finditer(pattern, reply))
    if not found:
        return None
    said = found[-1].group(1) if found[-1].re.groups else found[-1].group()
    try:
        return float(said)
    except (TypeError, ValueError):
        return None


def _field(reply: str, name: str) -> float | None:
    start, end = reply.find("{"), reply.rfind("}")
    try:
        table = json.loads(reply[start : end + 1])
    except (ValueError, RecursionError):
        return None
    number = table.get(name) if isinstance(table, dict) else None
    return float(number) if isinstance(number, int | float) and not isinstance(number, bool) else None
