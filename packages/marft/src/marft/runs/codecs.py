"""Arrow codecs derived from Python types. A new field needs no other change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa

from marft.common.texts import replace_surrogates


class Codec(NamedTuple):
    """Arrow type for a Python type, with conversions in both directions.

    >>> get_codec(tuple[int, ...]).arrow
    ListType(list<item: int64>)
    """

    arrow: pa.DataType
    write: Callable[[Any], object]
    read: Callable[[Any], Any]


def get_codec(hint: object) -> Codec:
    """Return the codec for a type.

    Supported are numbers, text, bytes, booleans, literals, arrays, ``X | None``, ``tuple[X, ...]``, mappings from text,
    and dataclasses or named tuples of these.

    Raises:
        TypeError: the type is not supported.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _SCALARS:
        return _SCALARS[hint]
    if origin is Literal:
        return _SCALARS[str]
    if origin in (Union, UnionType) and NoneType in arguments and len(arguments) == 2:
        return _optional(get_codec(next(argument for argument in arguments if argument is not NoneType)))
    if origin is np.ndarray:
        return _array(get_args(arguments[1])[0])
    if origin is tuple and arguments[1:] == (...,):
        return _sequence(get_codec(arguments[0]))
    if origin is Mapping and arguments[0] is str:
        return _mapping(get_codec(arguments[1]))
    if isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "_fields")):
        return _record(hint)
    raise TypeError(f"{hint} has no column")


def get_codecs(cls: type) -> dict[str, Codec]:
    """Return the codec for each field of a dataclass or named tuple, in order.

    Raises:
        TypeError: a field's type is not supported.
    """
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls)] if is_dataclass(cls) else list(getattr(cls, "_fields", ()))
    return {name: get_codec(hints[name]) for name in names}


def _identity(value: object) -> object:
    return value


_SCALARS: dict[object, Codec] = {
    str: Codec(pa.string(), replace_surrogates, _identity),
    int: Codec(pa.int64(), _identity, _identity),
    float: Codec(pa.float64(), _identity, _identity),
    bool: Codec(pa.bool_(), _identity, _identity),
    bytes: Codec(pa.binary(), _identity, _identity),
}


def _optional(inner: Codec) -> Codec:
    def skip_none(convert: Callable[[object], object]) -> Callable[[object], object]:
        return lambda value: None if value is None else convert(value)

    return Codec(inner.arrow, skip_none(inner.write), skip_none(inner.read))


def _array(dtype: type[np.generic]) -> Codec:
    return Codec(pa.list_(pa.from_numpy_dtype(dtype)), _identity, lambda values: np.array(values, dtype))


def _sequence(inner: Codec) -> Codec:
    return Codec(
        pa.list_(inner.arrow),
        lambda values: [inner.write(value) for value in values],
        lambda values: tuple(inner.read(value) for value in values),
    )


def _mapping(inner: Codec) -> Codec:
    return Codec(
        pa.map_(pa.string(), inner.arrow),
        lambda table: [(replace_surrogates(key), inner.write(value)) for key, value in table.items()],
        lambda pairs: {key: inner.read(value) for key, value in pairs},
    )


def _record(cls: type) -> Codec:
    """Return the codec for a class; fields missing in older rows get their defaults."""
    parts = get_codecs(cls)
    return Codec(
        pa.struct([(name, part.arrow) for name, part in parts.items()]),
        lambda value: {name: part.write(getattr(value, name)) for name, part in parts.items()},
        lambda row: cls(**{name: part.read(row[name]) for name, part in parts.items() if name in row}),
    )
