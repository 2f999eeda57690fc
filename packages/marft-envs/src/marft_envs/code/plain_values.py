"""Encoding of plain values as text, for transfer into and out of the jail. Standard library only.

Plain values are numbers, texts, bytes, None, and lists, tuples, sets and dictionaries of plain values. An instance of a
subclass is encoded as its base type, without calling its methods. A custom ``__eq__`` is lost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

LARGE_INT = 1 << 63  # integers beyond this are in hexadecimal, which parses in linear time
MAX_DIGITS = 32  # maximum characters of any other number in JSON
MAX_COLLISIONS = 16  # maximum keys with the same hash; each further key is compared with all of them
NOT_FINITE = ("inf", "-inf", "nan")


def encode(value: object) -> str:
    """Encode a value as text.

    >>> encode([1, (2.5, "a"), {3: None}])
    '[1, {"t": [2.5, "a"]}, {"d": [[3, null]]}]'

    Raises:
        TypeError: the value contains an object that is not a plain value.
        RecursionError: the value is nested too deeply, or contains itself.
    """
    return json.dumps(_encode(value))


def decode(text: str) -> Any:
    """Decode a value from untrusted text, in linear time.

    Colliding keys and long decimal numbers are refused.

    Raises:
        ValueError: the text has no valid value.
    """
    try:
        return _decode(json.loads(text, parse_int=_parse_integer, parse_float=_parse_float))
    except (TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no value: {type(error).__name__}") from error


def values_equal(first: object, second: object, tolerance: float = 0.0, relative: float = 0.0) -> bool:
    """Return True if two plain values are equal in Python's sense.

    Next to a ``float``, numbers may differ by an absolute or a relative tolerance.

    >>> values_equal([0.1 + 0.2], [0.3]), values_equal([0.1 + 0.2], [0.3], 1e-9), values_equal((1, 2), [1, 2])
    (False, True, False)
    """
    try:
        return _values_equal(first, second, tolerance, relative)
    except RecursionError:
        return False


def tuples_to_lists(value: object) -> object:
    """Replace tuples with lists, as in JSON.

    >>> tuples_to_lists(((1, 2), {"a": (3,)}))
    [[1, 2], {'a': [3]}]
    """
    if isinstance(value, list | tuple):
        return [tuples_to_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: tuples_to_lists(item) for key, item in value.items()}
    return value


def safe_repr(value: object) -> str:
    """Return the ``repr``, or a placeholder for values with too many digits or too much nesting.

    >>> safe_repr([1, "a"]), safe_repr(10**5000)
    ("[1, 'a']", 'a value too long to show')
    """
    try:
        return repr(value)
    except (ValueError, RecursionError):
        return "a value too long to show"


def _values_equal(first: Any, second: Any, tolerance: float, relative: float) -> bool:
    if not tolerance and not relative:
        return bool(first == second)
    numbers = isinstance(first, int | float) and isinstance(second, int | float)
    if numbers and (isinstance(first, float) or isinstance(second, float)):
        try:
            return first == second or math.isclose(first, second, rel_tol=relative, abs_tol=tolerance)
        except OverflowError:  # an integer beyond the range of floats
            return False
    if type(first) is not type(second):
        return bool(first == second)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(
            _values_equal(a, b, tolerance, relative) for a, b in zip(first, second, strict=True)
        )
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(
            _values_equal(first[key], second[key], tolerance, relative) for key in first
        )
    return bool(first == second)


def _encode(value: Any) -> object:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        number = int.__add__(value, 0)
        return number if -LARGE_INT < number < LARGE_INT else {"i": int.__format__(number, "x")}
    if isinstance(value, float):
        real = float.__mul__(value, 1.0)
        return real if math.isfinite(real) else {"f": float.__repr__(real)}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return {"b": bytes.hex(value)}
    if isinstance(value, complex):
        return {"c": [_encode(complex.__getattribute__(value, part)) for part in ("real", "imag")]}
    if isinstance(value, dict):
        return {"d": [[_encode(key), _encode(item)] for key, item in dict.items(value)]}
    kinds: tuple[tuple[Any, str], ...] = ((list, ""), (tuple, "t"), (set, "s"), (frozenset, "z"))
    for kind, letter in kinds:
        if isinstance(value, kind):
            items = [_encode(item) for item in kind.__iter__(value)]
            return {letter: items} if letter else items
    raise TypeError(f"a {type(value).__name__} is no plain value")


def _decode(value: object) -> object:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((letter, inner),) = value.items()
    if letter == "i":
        return int(inner, 16)
    if letter == "f":
        if inner not in NOT_FINITE:
            raise ValueError(f"no number: {inner!r:.40}")
        return float(inner)
    if letter == "b":
        return bytes.fromhex(inner)
    items = _decode(inner)
    if not isinstance(items, list):
        raise TypeError(f"{letter} holds no list")
    if letter == "c":
        real, imaginary = items
        return complex(float(real), float(imaginary))
    if letter == "t":
        return tuple(items)
    _check_collisions(items if letter != "d" else (key for key, _ in items))
    return dict(items) if letter == "d" else {"s": set, "z": frozenset}[letter](items)


def _parse_integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("a whole number of too many digits")
    return int(digits)


def _parse_float(digits: str) -> float:
    if len(digits) > MAX_DIGITS:
        raise ValueError("a number of too many digits")
    return float(digits)


def _check_collisions(keys: Iterable[object]) -> None:
    """Refuse many keys with the same hash. Inserting n such keys into a table takes n² comparisons.

    Raises:
        ValueError: more than 16 keys have the same hash.
    """
    hashes = sorted(map(hash, keys))
    if any(first == second for first, second in zip(hashes, hashes[MAX_COLLISIONS:], strict=False)):
        raise ValueError(f"more than {MAX_COLLISIONS} keys of one hash")
