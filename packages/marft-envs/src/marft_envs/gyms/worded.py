"""Text forms for observations: rounded numbers, named parts, and terminal colors as tags."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

MOST = 2000  # maximum numbers in a text
COLOURED = re.compile(r"\x1b\[([\d;]*)m")
COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def worded(value: Any, names: Sequence[str] = (), digits: int = 3) -> str:
    """Convert a value from any space to text.

    Args:
        value: the observation.
        names: names of the numbers in a row, or of the parts.
        digits: significant digits of numbers.

    Raises:
        ValueError: the value has too many numbers or an unsupported type.

    >>> print(worded({"hand": (20, 7, 0), "at": np.array([0.12345, -1.0])}))
    hand: 20, 7, 0
    at: 0.123, -1
    """
    if isinstance(value, dict):
        return "\n".join(_titled(str(name), worded(part, digits=digits)) for name, part in value.items())
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list):
        parts = [worded(part, digits=digits) for part in value]
        return _listed(parts, names)
    if not isinstance(value, np.ndarray | np.generic | int | float | bool):
        raise ValueError(
            f"a {type(value).__name__} cannot be told in words; give rendering = 'my_package.module:function'"
        )
    numbers = np.asarray(value)
    if numbers.size > MOST:
        raise ValueError(
            f"{numbers.size:,} numbers ({' × '.join(map(str, numbers.shape))}) are no text that anybody reads; "
            "give rendering = 'my_package.module:function', which tells it in words"
        )
    if numbers.ndim == 0:
        return _number(numbers, digits)
    if numbers.ndim == 1:
        return _listed([_number(each, digits) for each in numbers], names)
    separator = "\n" if numbers.ndim == 2 else "\n\n"
    return separator.join(worded(part, digits=digits) for part in numbers)


def plain(text: str) -> str:
    r"""Replace terminal color codes in a text with tags.

    >>> plain("\x1b[41mS\x1b[0mFF")
    '<on red>S</>FF'
    """
    return COLOURED.sub(lambda match: _tag(match[1]), text).strip("\n")


def _tag(codes: str) -> str:
    names = []
    for code in codes.split(";"):
        number = int(code or 0)
        if 30 <= number % 60 <= 37:
            names.append(COLOURS[number % 10])
        elif 40 <= number % 60 <= 47:
            names.append(f"on {COLOURS[number % 10]}")
    return f"<{' '.join(names)}>" if names else "</>"


def _number(value: Any, digits: int) -> str:
    number = value.item() if isinstance(value, np.generic | np.ndarray) else value
    if isinstance(number, bool):
        return "yes" if number else "no"
    if isinstance(number, float):
        number += 0.0  # turns -0.0 into 0.0
    return f"{number:.{digits}g}" if isinstance(number, float) and abs(number) < 1e6 else f"{number}"


def _listed(parts: Sequence[str], names: Sequence[str]) -> str:
    if len(names) == len(parts):
        return "\n".join(_titled(name, part) for name, part in zip(names, parts, strict=True))
    return ("\n" if any("\n" in part for part in parts) else ", ").join(parts)


def _titled(name: str, text: str) -> str:
    return f"{name}:\n{text}" if "\n" in text else f"{name}: {text}"
