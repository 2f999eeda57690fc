"""Tool calls from names and arguments: values from plain text, limits, and error calls."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping
from typing import Any

from marft.common.errors import UserError
from marft.common.texts import parse_json_text, replace_surrogates
from marft.common.types import ToolCall
from marft.inference.schema_checks import resolve_reference

MAX_DEPTH = 64  # maximum nesting of a call's arguments
# longest value, in characters, that is parsed as a Python literal
MAX_PYTHON_LITERAL = 100_000
_WHITESPACE = re.compile(r"\s*+")


def build_tool_call(name: str, arguments: object) -> ToolCall:
    """Build a tool call from an agent's name and arguments; arguments are stored as JSON."""
    decoded = parse_json_text(arguments)
    if exceeds_depth(decoded, MAX_DEPTH):
        return build_error_call("", f"its arguments are nested more than {MAX_DEPTH} deep")
    try:
        written = json.dumps(decoded, allow_nan=False, ensure_ascii=False)
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    except ValueError:
        return build_error_call("", "its arguments hold a number that is not finite, which JSON has not")
    except TypeError as error:
        return build_error_call(repr(arguments), f"its arguments are no JSON: {error}")
    if not name:
        return build_error_call(text, "it names no tool")
    # lone surrogates pass only as JSON escapes
    if replace_surrogates(name + text) != name + text or replace_surrogates(written) != written:
        return build_error_call(name + text, "it holds half a character")
    return ToolCall(name, text)


def exceeds_depth(value: object, depth: int) -> bool:
    """Return True if tables and lists nest so that a value is ``depth`` levels below the outermost."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth == 0 or any(exceeds_depth(child, depth - 1) for child in inner)


def build_error_call(text: str, reason: str) -> ToolCall:
    """Build an error call for unreadable text; its output tells the agent the reason."""
    return ToolCall(
        "", replace_surrogates(text), output=replace_surrogates(f"this call could not be read: {reason}"), error=True
    )


def decode_value(text: str, schema: object) -> object:
    """Return an argument's value from its plain text.

    >>> decode_value("3", {"type": "string"}), decode_value("3", {"type": "integer"}), decode_value("True", None)
    ('3', 3, True)

    Args:
        schema: JSON schema of the parameter. Without one, text that is no JSON is a string.
    """
    types = schema_types(schema)
    if types == {"string"}:
        return text
    try:
        value = json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        value = _decode_python_literal(text)
    return text if "string" in types and json_type(value) not in types else value


def parameter_schema(parameters: Mapping[str, Any], key: str) -> object:
    """Return the schema of a tool's parameter, with a reference replaced by its target; None without one."""
    properties = parameters.get("properties")
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    reference = schema.get("$ref") if isinstance(schema, Mapping) else None
    return resolve_reference(reference, parameters) if isinstance(reference, str) else schema


def schema_types(schema: object) -> set[str]:
    """Return the JSON types that a schema allows; empty if it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    declared = schema.get("type", ())
    names = declared if isinstance(declared, list | tuple) else (declared,)
    types = {name for name in names if isinstance(name, str)}
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key)
        types |= set[str]().union(*map(schema_types, choices)) if isinstance(choices, list) else set()
    values = schema.get("enum")
    if not types and isinstance(values, list):
        types = set(map(json_type, values))
    return types | {"integer"} if "number" in types else types


def json_type(value: object) -> str:
    """Return the name of a value's JSON type."""
    names = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
    return names.get(type(value), "null")


def _reject_constant(name: str) -> object:
    """Reject Infinity and NaN, which JSON does not have.

    Raises:
        UserError: always.
    """
    raise UserError(f"{name} is no JSON")


def _decode_python_literal(text: str) -> object:
    """Return the value of a Python literal, as some templates write it; the text itself if it is none."""
    if len(text) > MAX_PYTHON_LITERAL or not re.match(r"\s*(?:[\[{(]|True\s*\Z|False\s*\Z|None\s*\Z)", text):
        return text
    try:
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
            value: object = json.loads(json.dumps(ast.literal_eval(text.strip())))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text
    return value


def decode_json(text: str, start: int) -> tuple[Any, int, str]:
    """Parse JSON after ``start``; return the value, its end offset and "", or None, its start and the problem."""
    start = skip_whitespace(text, start)
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        return None, start, str(error)
    return value, end, ""


def skip_whitespace(text: str, start: int) -> int:
    """Return the offset of the next character that is no white space."""
    return _WHITESPACE.match(text, start).end()  # type: ignore[union-attr]  # the pattern matches ""
