"""Checks for JSON schemas as grammars: size, self-contained references, and finite values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from marft.common.texts import cut, storable

MOST_CHARACTERS = 2**16  # maximum size of a schema; a larger one takes seconds to compile
MOST_NESTED = 60
MOST_PASSES = 64  # maximum passes through the references of a schema
SIMPLE = ("null", "boolean", "integer", "number", "string")


def check_schema(schema: Mapping[str, Any]) -> None:
    """Check for a JSON schema that a grammar can enforce.

    Raises:
        ValueError: the schema is too large, too deep, not JSON or not self-contained, or it has no finite value.
    """
    try:
        size = len(json.dumps(schema))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"the schema is no JSON ({type(error).__name__})") from error
    if size > MOST_CHARACTERS:
        raise ValueError(f"the schema has {size} characters, and may have {MOST_CHARACTERS}")
    nodes = list(_nodes(schema, MOST_NESTED))
    for node in nodes:
        reference = node.get("$ref")
        if isinstance(reference, str) and not reference.startswith("#") and "$id" not in schema:
            said = storable(cut(reference, 100))
            raise ValueError(f'the "$ref" {said!r} is not part of the schema: copy what it names to "$defs"')
    if not _ends(schema, nodes):
        raise ValueError('the schema describes itself without an end: a "$ref" leads back to where it stands')


def _nodes(node: Any, room: int) -> Iterator[Mapping[str, Any]]:
    """Yield every mapping in a schema, inner mappings first.

    Raises:
        ValueError: the mappings are nested too deep.
    """
    if not isinstance(node, Mapping | list):
        return
    if room == 0:
        raise ValueError(f"the schema is nested over {MOST_NESTED} levels deep")
    for inner in node.values() if isinstance(node, Mapping) else node:
        yield from _nodes(inner, room - 1)
    if isinstance(node, Mapping):
        yield node


def _ends(schema: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a schema has a finite value. Each pass marks nodes with only finite parts."""
    finite = set[int]()
    for _ in range(MOST_PASSES):
        new = {id(node) for node in nodes if id(node) not in finite and _is_finite(node, schema, finite)}
        finite |= new
        if id(schema) in finite:
            return True
        if not new:
            return False
    return False


def _is_finite(node: Mapping[str, Any], schema: Mapping[str, Any], finite: set[int]) -> bool:
    def known(inner: object) -> bool:
        return not isinstance(inner, Mapping) or id(inner) in finite

    if "const" in node or "enum" in node:
        return True
    if isinstance(node.get("$ref"), str) and not known(_named(node["$ref"], schema)):
        return False
    if not all(map(known, _listed(node.get("allOf")))):
        return False
    for name in ("anyOf", "oneOf"):
        either = _listed(node.get(name))
        if either and not any(map(known, either)):
            return False
    kinds = node.get("type")
    kinds = [kinds] if isinstance(kinds, str) else _listed(kinds)
    if not kinds or any(kind in SIMPLE for kind in kinds):
        return True
    return any(all(map(known, _needed(kind, node))) for kind in kinds)


def _needed(kind: object, node: Mapping[str, Any]) -> list[object]:
    """Return the schemas for required properties or items."""
    if kind == "object":
        properties, rest = node.get("properties"), node.get("additionalProperties")
        known = properties if isinstance(properties, Mapping) else {}
        return [known.get(name, rest) for name in _listed(node.get("required")) if isinstance(name, str)]
    least = node.get("minItems", 0)
    first = _listed(node.get("prefixItems"))
    if not isinstance(least, int | float) or least <= 0:
        return []
    return [*first[: int(min(least, len(first)))], *([node.get("items")] if least > len(first) else [])]


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _named(reference: str, schema: Mapping[str, Any]) -> object:
    """Resolve a JSON pointer within a schema; None for a missing target or another kind of reference."""
    if reference[1:2] not in ("", "/"):
        return None
    found: Any = schema
    for part in unquote(reference[1:]).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and len(key) < 9 and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found
