"""Schemas that no answer can be held to: refused in words before anything is compiled or sampled."""

from __future__ import annotations

from typing import Any

import pytest

from marft.inference.schema_checks import check_schema

OBJECT = {"type": "object"}
ENDLESS: dict[str, Any] = {
    "itself": {"$ref": "#"},
    "each other": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "what it needs": {**OBJECT, "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "what all others are": {**OBJECT, "additionalProperties": {"$ref": "#"}, "required": ["a"]},
    "one at least": {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
    "the first": {"type": "array", "minItems": 1, "prefixItems": [{"$ref": "#"}]},
    "any": {"anyOf": [{"$ref": "#"}, {"oneOf": [{"$ref": "#"}]}]},
    "all": {"allOf": [OBJECT, {"$ref": "#"}]},
    "by a name with signs": {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"$ref": "#/$defs/a~1b%20c"}}},
}
OUTSIDE = ["https://example.org/a.json", "file:///etc/passwd", "other.json", "//host/x"]
HELD: dict[str, Any] = {
    "a tree": {**OBJECT, "properties": {"a": {"$ref": "#"}}},
    "a tree of lists": {
        "$ref": "#/$defs/n",
        "$defs": {"n": {**OBJECT, "properties": {"k": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "required": ["k"]}},
    },
    "one or nothing": {**OBJECT, "properties": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}, "required": ["a"]},
    "nothing, by its kinds": {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "a constant": {"const": {"$ref": "#"}, "$ref": "#"},
    "an anchor": {"$ref": "#a", "$defs": {"a": {"$anchor": "a", "type": "string"}}},
    "anything": {},
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_a_schema_without_an_end_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="describes itself without an end"):
        check_schema(ENDLESS[name])


@pytest.mark.parametrize("reference", OUTSIDE)
def test_so_is_one_that_names_something_outside(reference: str) -> None:
    with pytest.raises(ValueError, match="is not part of the schema"):
        check_schema({**OBJECT, "properties": {"a": {"$ref": reference}}})


@pytest.mark.parametrize("name", HELD)
def test_one_that_may_end_is_held(name: str) -> None:
    check_schema(HELD[name])


def test_large_and_deep_ones_are_refused() -> None:
    deep: Any = {"type": "integer"}
    for _ in range(100):
        deep = {**OBJECT, "properties": {"a": deep}}
    with pytest.raises(ValueError, match="60 levels deep"):
        check_schema(deep)
    with pytest.raises(ValueError, match="may have 65536"):
        check_schema({"enum": ["x" * 70_000]})
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ValueError, match="no JSON"):
        check_schema({"a": deep})
