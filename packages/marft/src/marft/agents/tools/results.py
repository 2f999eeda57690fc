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
)
from itertools import islice
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import PydanticUserError, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

MAX_ITEMS = 100_000  # maximum items read from a generator
WRAPPERS = (Awaitable, Coroutine, AsyncGenerator, AsyncIterable, AsyncIterator)
TYPES_WITHOUT_JSON = (Callable, type)  # pydantic has a schema for these types, but no JSON form
RETURN_HINT = "return text, numbers, lists, dictionaries, a dataclass or a pydantic model"


async def result_text(result: object) -> str:
    """Return a result as text. Awaitables are awaited, generators are collected.

    Raises:
        ValueError: the result has no JSON form, or yields more than ``MAX_ITEMS`` items.
    """
    if isinstance(result, Awaitable):
        result = await result
    if isinstance(result, AsyncIterable):
        items: list[object] = []
        async for item in result:
            items.append(_check_count(item, len(items)))
        result = items
    if isinstance(result, Iterator):
        result = _to_python(result)  # up to MAX_ITEMS items
    if isinstance(result, str):
        return result if type(result) is str else str(to_jsonable_python(result))
    try:
        return json.dumps(to_jsonable_python(result, fallback=_to_python), ensure_ascii=False)
    except (PydanticSerializationError, UnicodeDecodeError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"the tool returned a {type(result).__name__} that is no JSON ({error}); {RETURN_HINT}"
        ) from error


def check_return_type(annotation: Any) -> None:
    """Check the return annotation of a tool.

    Raises:
        ValueError: no value of that type has a JSON form.
    """
    if not _has_json_form(annotation):
        type_name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
        raise ValueError(f"it returns {type_name}, which cannot be written as JSON; {RETURN_HINT}")


def _has_json_form(annotation: Any) -> bool:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _has_json_form(arguments[0])
    if origin in (Union, UnionType):
        return any(map(_has_json_form, arguments))
    if origin in WRAPPERS:
        return all(map(_has_json_form, arguments[-1:] if origin is Coroutine else arguments[:1]))
    if annotation in TYPES_WITHOUT_JSON or origin in TYPES_WITHOUT_JSON:
        return False
    try:
        TypeAdapter(annotation)
    except (PydanticSchemaGenerationError, PydanticUserError):
        if origin is not None:
            item_types = [
                argument for argument in arguments if argument is not Ellipsis and not isinstance(argument, list)
            ]
            return _is_list_like(origin) and (hasattr(origin, "tolist") or all(map(_has_json_form, item_types)))
        return not isinstance(annotation, type) or _is_list_like(annotation) or _is_interface(annotation)
    return True


def _is_list_like(kind: Any) -> bool:
    """Return true if values of a type become lists: arrays and iterables."""
    return hasattr(kind, "tolist") or (isinstance(kind, type) and issubclass(kind, Iterable))


def _is_interface(kind: type) -> bool:
    """Return true if a type only describes an interface: abstract classes and protocols."""
    return inspect.isabstract(kind) or bool(getattr(kind, "_is_protocol", False))


def _to_python(value: Any) -> Any:
    """Convert a value unknown to pydantic.

    NumPy scalars and arrays, pandas columns (missing values become None) and other iterables become Python values.

    Raises:
        TypeError: the value has no JSON form.
        ValueError: an iterable yields more than ``MAX_ITEMS`` items.
    """
    to_list, is_missing = getattr(value, "tolist", None), getattr(value, "isna", None)
    if callable(to_list) and not isinstance(value, type):
        if not callable(is_missing):
            return to_list()
        return [None if missing else item for item, missing in zip(to_list(), is_missing().tolist(), strict=True)]
    if isinstance(value, Iterable) and not isinstance(value, type):
        items = value.items() if hasattr(value, "items") else value
        checked_items = [_check_count(item, place) for place, item in enumerate(islice(iter(items), MAX_ITEMS + 1))]
        return dict(checked_items) if hasattr(value, "items") else checked_items
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def _check_count(item: Any, place: int) -> Any:
    if place >= MAX_ITEMS:
        raise ValueError(f"it yields more than {MAX_ITEMS:,} items")
    return item
