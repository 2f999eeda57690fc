"""Values as text, and back: what crosses the wall of the jail. Standard library alone; the jail uses it too.

Only plain values have a text: numbers, texts, bytes, None, and lists, tuples, sets and tables of them. What derives
from one of these is written as that one, without asking it: an ``__eq__`` of its own stays behind.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

LARGE = 1 << 63  # whole numbers beyond it are written in hexadecimal, which is read in linear time
LONGEST_NUMBER = 32  # characters of any other number, as JSON writes it
MOST_ALIKE = 16  # keys of one hash: each further one is compared with all of them
NOT_FINITE = ("inf", "-inf", "nan")


def encode(value: object) -> str:
    """The text of a value.

    >>> encode([1, (2.5, "a"), {3: None}])
    '[1, {"t": [2.5, "a"]}, {"d": [[3, null]]}]'

    Raises:
        TypeError: it holds what is no plain value.
        RecursionError: it lies too deep, or in itself.
    """
    return json.dumps(_written(value))


def decode(text: str) -> Any:
    """The value of a text, whoever wrote it, in linear time: no keys that collide, no decimal number of many digits.

    Raises:
        ValueError: it is the text of no value.
    """
    try:
        return _read(json.loads(text, parse_int=_integer, parse_float=_real))
    except (TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no value: {type(error).__name__}") from error


def same(one: object, other: object, tolerance: float = 0.0, relative: float = 0.0) -> bool:
    """Whether two plain values are equal, as Python has it; numbers beside a ``float`` may differ by a tolerance,
    absolutely, or by a relative one.

    >>> same([0.1 + 0.2], [0.3]), same([0.1 + 0.2], [0.3], 1e-9), same((1, 2), [1, 2])
    (False, True, False)
    """
    try:
        return _same(one, other, tolerance, relative)
    except RecursionError:
        return False


def unified(value: Any) -> Any:
    """The value with lists in the place of tuples, as JSON has it.

    >>> unified(((1, 2), {"a": (3,)}))
    [[1, 2], {'a': [3]}]
    """
    if isinstance(value, list | tuple):
        return [unified(item) for item in value]
    if isinstance(value, dict):
        return {key: unified(item) for key, item in value.items()}
    return value


def shown(value: object) -> str:
    """The value in Python's words, or what stands for one that has none: too many digits, or too deep.

    >>> shown([1, "a"]), shown(10**5000)
    ("[1, 'a']", 'a value too long to show')
    """
    try:
        return repr(value)
    except (ValueError, RecursionError):
        return "a value too long to show"


def _same(one: Any, other: Any, tolerance: float, relative: float) -> bool:
    if not tolerance and not relative:
        return bool(one == other)
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    if numbers and (isinstance(one, float) or isinstance(other, float)):
        try:
            return one == other or math.isclose(one, other, rel_tol=relative, abs_tol=tolerance)
        except OverflowError:  # a whole number beyond all floats
            return False
    if type(one) is not type(other):
        return bool(one == other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(_same(a, b, tolerance, relative) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key], tolerance, relative) for key in one)
    return bool(one == other)


def _written(value: Any) -> object:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        number = int.__add__(value, 0)
        return number if -LARGE < number < LARGE else {"i": int.__format__(number, "x")}
    if isinstance(value, float):
        real = float.__mul__(value, 1.0)
        return real if math.isfinite(real) else {"f": float.__repr__(real)}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return {"b": bytes.hex(value)}
    if isinstance(value, complex):
        return {"c": [_written(complex.__getattribute__(value, part)) for part in ("real", "imag")]}
    if isinstance(value, dict):
        return {"d": [[_written(key), _written(item)] for key, item in dict.items(value)]}
    kinds: tuple[tuple[Any, str], ...] = ((list, ""), (tuple, "t"), (set, "s"), (frozenset, "z"))
    for kind, letter in kinds:
        if isinstance(value, kind):
            items = [_written(item) for item in kind.__iter__(value)]
            return {letter: items} if letter else items
    raise TypeError(f"a {type(value).__name__} is no plain value")


def _read(found: Any) -> Any:
    if isinstance(found, list):
        return [_read(item) for item in found]
    if not isinstance(found, dict):
        return found
    ((letter, inner),) = found.items()
    if letter == "i":
        return int(inner, 16)
    if letter == "f":
        if inner not in NOT_FINITE:
            raise ValueError(f"no number: {inner!r:.40}")
        return float(inner)
    if letter == "b":
        return bytes.fromhex(inner)
    items = _read(inner)
    if not isinstance(items, list):
        raise TypeError(f"{letter} holds no list")
    if letter == "c":
        real, imaginary = items
        return complex(float(real), float(imaginary))
    if letter == "t":
        return tuple(items)
    _refuse_collisions(items if letter != "d" else (key for key, _ in items))
    return dict(items) if letter == "d" else {"s": set, "z": frozenset}[letter](items)


def _integer(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError("a whole number of too many digits")
    return int(digits)


def _real(digits: str) -> float:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError("a number of too many digits")
    return float(digits)


def _refuse_collisions(keys: Iterable[Any]) -> None:
    """
    Raises:
        ValueError: many keys have one hash: to put n of them into a table takes n² comparisons.
    """
    hashes = sorted(map(hash, keys))
    if any(one == other for one, other in zip(hashes, hashes[MOST_ALIKE:], strict=False)):
        raise ValueError(f"more than {MOST_ALIKE} keys of one hash")
