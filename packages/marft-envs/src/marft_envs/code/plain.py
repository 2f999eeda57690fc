"""Encoding of plain values as text, for transfer into and out of the jail. Standard library only.

Plain values are numbers, texts, bytes, None, and lists, tuples, sets and dictionaries of plain values. An instance of a
subclass is encoded as its base type, without calling its methods. A custom ``__eq__`` is lost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

LARGE = 1 << 63  # integers beyond this are in hexadecimal, which parses in linear time
LONGEST_NUMBER = 32  # maximum characters of any other number in JSON
MOST_ALIKE = 16  # maximum keys with the same hash; each further key is compared with all of them
NOT_FINITE = ("inf", "-inf", "nan")


def encode(value: object) -> str:
    """Encode a value as text.

    >>> encode([1, (2.5, "a"), {3: None}])
    '[1, {"t": [2.5, "a"]}, {"d": [[3, null]]}]'

    Raises:
        TypeError: the value contains an object that is not a plain value.
        RecursionError: the value is nested too deeply, or contains itself.
    """
    return json.dumps(_written(value))


def decode(text: str) -> Any:
    """Decode a value from untrusted text, in linear time.

    Colliding keys and long decimal numbers are refused.

    Raises:
        ValueError: the text has no valid value.
    """
    try:
        return _read(json.loads(text, parse_int=_integer, parse_float=_real))
    except (TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no value: {type(error).__name__}") from error


def same(one: object, other: object, tolerance: float = 0.0, relative: float = 0.0) -> bool:
    """Return True if two plain values are equal in Python's sense.

    Next to a ``float``, numbers may differ by an absolute or a relative tolerance.

    >>> same([0.1 + 0.2], [0.3]), same([0.1 + 0.2], [0.3], 1e-9), same((1, 2), [1, 2])
    (False, True, False)
    """
    try:
        return _same(one, other, tolerance, relative)
    except RecursionError:
        return False


def unified(value: Any) -> Any:
    """Replace tuples with lists, as in JSON.

    >>> unified(((1, 2), {"a": (3,)}))
    [[1, 2], {'a': [3]}]
    """
    if isinstance(value, list | tuple):
        return [unified(item) for item in value]
    if isinstance(value, dict):
        return {key: unified(item) for key, item in value.items()}
    return value


def shown(value: object) -> str:
    """Return the ``repr``, or a placeholder for values with too many digits or too much nesting.

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
        except OverflowError:  # an integer beyond the range of floats
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
    """Refuse many keys with the same hash. Inserting n such keys into a table takes n² comparisons.

    Raises:
        ValueError: more than 16 keys have the same hash.
    """
    hashes = sorted(map(hash, keys))
    if any(one == other for one, other in zip(hashes, hashes[MOST_ALIKE:], strict=False)):
        raise ValueError(f"more than {MOST_ALIKE} keys of one hash")
