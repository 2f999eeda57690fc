"""Text forms for observations: rounded numbers, named parts, and terminal colors as tags."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

MAX_NUMBERS = 2000  # maximum numbers in a text
COLOR_CODE = re.compile(r"\x1b\[([\d;]*)m")
COLORS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def format_value(value: Any, names: Sequence[str] = (), digits: int = 3) -> str:
    """Convert a value from any space to text.

    Args:
        value: the observation.
        names: names of the numbers in a row, or of the parts.
        digits: significant digits of numbers.

    Raises:
        ValueError: the value has too many numbers or an unsupported type.

    >>> print(format_value({"hand": (20, 7, 0), "at": np.array([0.12345, -1.0])}))
    hand: 20, 7, 0
    at: 0.123, -1
    """
    if isinstance(value, dict):
        return "\n".join(_with_title(str(name), format_value(part, digits=digits)) for name, part in value.items())
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list):
        parts = [format_value(part, digits=digits) for part in value]
        return _join_parts(parts, names)
    if not isinstance(value, np.ndarray | np.generic | int | float | bool):
        raise ValueError(
            f"a {type(value).__name__} cannot be told in words; give rendering = 'my_package.module:function'"
        )
    numbers = np.asarray(value)
    if numbers.size > MAX_NUMBERS:
        raise ValueError(
            f"{numbers.size:,} numbers ({' × '.join(map(str, numbers.shape))}) are no text that anybody reads; "
            "give rendering = 'my_package.module:function', which tells it in words"
        )
    if numbers.ndim == 0:
        return _format_number(numbers, digits)
    if numbers.ndim == 1:
        return _join_parts([_format_number(number, digits) for number in numbers], names)
    separator = "\n" if numbers.ndim == 2 else "\n\n"
    return separator.join(format_value(part, digits=digits) for part in numbers)


def strip_colors(text: str) -> str:
    r"""Replace terminal color codes in a text with tags.

    >>> strip_colors("\x1b[41mS\x1b[0mFF")
    '<on red>S</>FF'
    """
    return COLOR_CODE.sub(lambda match: _color_tag(match[1]), text).strip("\n")


def _color_tag(codes: str) -> str:
    names = []
    for code in codes.split(";"):
        number = int(code or 0)
        if 30 <= number % 60 <= 37:
            names.append(COLORS[number % 10])
        elif 40 <= number % 60 <= 47:
            names.append(f"on {COLORS[number % 10]}")
    return f"<{' '.join(names)}>" if names else "</>"


def _format_number(value: Any, digits: int) -> str:
    number = value.item() if isinstance(value, np.generic | np.ndarray) else value
    if isinstance(number, bool):
        return "yes" if number else "no"
    if isinstance(number, float):
        number += 0.0  # turns -0.0 into 0.0
    return f"{number:.{digits}g}" if isinstance(number, float) and abs(number) < 1e6 else f"{number}"


def _join_parts(parts: Sequence[str], names: Sequence[str]) -> str:
    if len(names) == len(parts):
        return "\n".join(_with_title(name, part) for name, part in zip(names, parts, strict=True))
    return ("\n" if any("\n" in part for part in parts) else ", ").join(parts)


def _with_title(name: str, text: str) -> str:
    return f"{name}:\n{text}" if "\n" in text else f"{name}: {text}"
