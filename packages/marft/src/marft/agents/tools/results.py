"""Text form for Python tool results: strings unchanged, other values in pydantic's JSON form."""

from __future__ import annotations

import inspect
import json
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
)  # fmt: skip
from itertools import islice
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import PydanticUserError, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

MOST_ITEMS = 100_000  # maximum items read from a generator
WRAPPERS = (Awaitable, Coroutine, AsyncGenerator, AsyncIterable, AsyncIterator)
WITHOUT_TEXT = (Callable, type)  # pydantic has a schema for these types, but no JSON form
GIVE = "return text, numbers, lists, dictionaries, a dataclass or a pydantic model"


async def text_of(result: object) -> str:
    """Return a result as text. Awaitables are awaited, generators are collected.

    Raises:
        ValueError: the result has no JSON form, or yields more than ``MOST_ITEMS`` items.
    """
    if isinstance(result, Awaitable):
        result = await result
    if isinstance(result, AsyncIterable):
        found: list[object] = []
        async for item in result:
            found.append(_within(item, len(found)))
        result = found
    if isinstance(result, Iterator):
        result = _plain(result)  # up to MOST_ITEMS items
    if isinstance(result, str):
        return result if type(result) is str else str(to_jsonable_python(result))
    try:
        return json.dumps(to_jsonable_python(result, fallback=_plain), ensure_ascii=False)
    except (PydanticSerializationError, UnicodeDecodeError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the tool returned a {type(result).__name__} that is no JSON ({error}); {GIVE}") from error


def refuse_return(annotation: Any) -> None:
    """Check the return annotation of a tool.

    Raises:
        ValueError: no value of that type has a JSON form.
    """
    if not _may_be_text(annotation):
        shown = annotation.__name__ if isinstance(annotation, type) else str(annotation)
        raise ValueError(f"it returns {shown}, which cannot be written as JSON; {GIVE}")


def _may_be_text(annotation: Any) -> bool:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _may_be_text(arguments[0])
    if origin in (Union, UnionType):
        return any(map(_may_be_text, arguments))
    if origin in WRAPPERS:
        return all(map(_may_be_text, arguments[-1:] if origin is Coroutine else arguments[:1]))
    if annotation in WITHOUT_TEXT or origin in WITHOUT_TEXT:
        return False
    try:
        TypeAdapter(annotation)
    except (PydanticSchemaGenerationError, PydanticUserError):
        if origin is not None:
            known = [argument for argument in arguments if argument is not Ellipsis and not isinstance(argument, list)]
            return _can_be_listed(origin) and (hasattr(origin, "tolist") or all(map(_may_be_text, known)))
        return not isinstance(annotation, type) or _can_be_listed(annotation) or _is_open(annotation)
    return True


def _can_be_listed(kind: Any) -> bool:
    """Return true if values of a type become lists: arrays and iterables."""
    return hasattr(kind, "tolist") or (isinstance(kind, type) and issubclass(kind, Iterable))


def _is_open(kind: type) -> bool:
    """Return true if a type only describes an interface: abstract classes and protocols."""
    return inspect.isabstract(kind) or bool(getattr(kind, "_is_protocol", False))


def _plain(value: Any) -> Any:
    """Convert a value unknown to pydantic.

    NumPy scalars and arrays, pandas columns (missing values become None) and other iterables become Python values.

    Raises:
        TypeError: the value has no JSON form.
        ValueError: an iterable yields more than ``MOST_ITEMS`` items.
    """
    tolist, isna = getattr(value, "tolist", None), getattr(value, "isna", None)
    if callable(tolist) and not isinstance(value, type):
        if not callable(isna):
            return tolist()
        return [None if missing else item for item, missing in zip(tolist(), isna().tolist(), strict=True)]
    if isinstance(value, Iterable) and not isinstance(value, type):
        items = value.items() if hasattr(value, "items") else value
        found = [_within(item, place) for place, item in enumerate(islice(iter(items), MOST_ITEMS + 1))]
        return dict(found) if hasattr(value, "items") else found
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def _within(item: Any, place: int) -> Any:
    if place >= MOST_ITEMS:
        raise ValueError(f"it yields more than {MOST_ITEMS:,} items")
    return item
