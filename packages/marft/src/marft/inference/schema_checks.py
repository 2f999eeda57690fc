"""JSON schemas as grammars: checked for size, self-contained references and finite values; written for llguidance.

Engines in other environments import this module: it needs only the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote

from marft.common.errors import UserError
from marft.common.texts import replace_surrogates, truncate

MAX_CHARACTERS = 2**16  # maximum size of a schema; a larger one takes seconds to compile
MAX_DEPTH = 60
MAX_PASSES = 64  # maximum passes through the references of a schema
SIMPLE_TYPES = ("null", "boolean", "integer", "number", "string")
WHITESPACE_PATTERN = " ?"  # between JSON tokens; unlimited whitespace would let a model write spaces without end


def check_schema(schema: Mapping[str, object]) -> None:
    """Check for a JSON schema that a grammar can enforce.

    Raises:
        UserError: the schema is too large, too deep, not JSON or not self-contained, or it has no finite value.
    """
    try:
        size = len(json.dumps(schema))
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"the schema is no JSON ({type(error).__name__})") from error
    if size > MAX_CHARACTERS:
        raise UserError(f"the schema has {size} characters, and may have {MAX_CHARACTERS}")
    nodes = list(_iter_nodes(schema, MAX_DEPTH))
    for node in nodes:
        reference = node.get("$ref")
        if isinstance(reference, str) and not reference.startswith("#") and "$id" not in schema:
            shown_reference = replace_surrogates(truncate(reference, 100))
            raise UserError(f'the "$ref" {shown_reference!r} is not part of the schema: copy what it names to "$defs"')
    if not _has_finite_value(schema, nodes):
        raise UserError('the schema describes itself without an end: a "$ref" leads back to where it stands')


def _iter_nodes(node: object, max_depth: int) -> Iterator[Mapping[str, object]]:
    """Yield every mapping in a schema, inner mappings first.

    Raises:
        UserError: the mappings are nested too deep.
    """
    if not isinstance(node, Mapping | list):
        return
    if max_depth == 0:
        raise UserError(f"the schema is nested over {MAX_DEPTH} levels deep")
    for inner in node.values() if isinstance(node, Mapping) else node:
        yield from _iter_nodes(inner, max_depth - 1)
    if isinstance(node, Mapping):
        yield node


def _has_finite_value(schema: Mapping[str, object], nodes: Sequence[Mapping[str, object]]) -> bool:
    """Return whether a schema has a finite value. Each pass marks nodes with only finite parts."""
    finite = set[int]()
    for _ in range(MAX_PASSES):
        new = {id(node) for node in nodes if id(node) not in finite and _is_finite(node, schema, finite)}
        finite |= new
        if id(schema) in finite:
            return True
        if not new:
            return False
    return False


def _is_finite(node: Mapping[str, object], schema: Mapping[str, object], finite: set[int]) -> bool:
    def is_known_finite(inner: object) -> bool:
        return not isinstance(inner, Mapping) or id(inner) in finite

    if "const" in node or "enum" in node:
        return True
    reference = node.get("$ref")
    if isinstance(reference, str) and not is_known_finite(resolve_reference(reference, schema)):
        return False
    if not all(map(is_known_finite, _as_list(node.get("allOf")))):
        return False
    for name in ("anyOf", "oneOf"):
        alternatives = _as_list(node.get(name))
        if alternatives and not any(map(is_known_finite, alternatives)):
            return False
    kinds = node.get("type")
    kinds = [kinds] if isinstance(kinds, str) else _as_list(kinds)
    if not kinds or any(kind in SIMPLE_TYPES for kind in kinds):
        return True
    return any(all(map(is_known_finite, _required_schemas(kind, node))) for kind in kinds)


def _required_schemas(kind: object, node: Mapping[str, object]) -> list[object]:
    """Return the schemas for required properties or items."""
    if kind == "object":
        properties, additional = node.get("properties"), node.get("additionalProperties")
        declared = properties if isinstance(properties, Mapping) else {}
        return [declared.get(name, additional) for name in _as_list(node.get("required")) if isinstance(name, str)]
    min_items = node.get("minItems", 0)
    first = _as_list(node.get("prefixItems"))
    if not isinstance(min_items, int | float) or min_items <= 0:
        return []
    return [*first[: int(min(min_items, len(first)))], *([node.get("items")] if min_items > len(first) else [])]


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def resolve_reference(reference: str, schema: Mapping[str, object]) -> object:
    """Resolve a JSON pointer within a schema; None for a missing target or another kind of reference."""
    if reference[1:2] not in ("", "/"):
        return None
    target: object = schema
    for part in unquote(reference[1:]).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping):
            target = target.get(key)
        elif isinstance(target, list) and key.isdecimal() and len(key) < 9 and int(key) < len(target):
            target = target[int(key)]
        else:
            return None
    return target


def serialize_schema(schema: Mapping[str, object]) -> str:
    """Serialize a JSON schema, with limited whitespace in the described JSON.

    >>> serialize_schema({"type": "integer"})
    '{"type": "integer", "x-guidance": {"whitespace_pattern": " ?"}}'
    """
    return json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE_PATTERN}})
