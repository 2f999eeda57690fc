"""Instructions on JSON output, with or without a schema."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from random import Random
from typing import Any

from marft.common.satellites import install_command
from marft_envs.instructions.kinds import Given, Kind, Topic, nothing

FIELDS = {
    "name": {"type": "string", "minLength": 1}, "count": {"type": "integer", "minimum": 1, "maximum": 9},
    "known": {"type": "boolean"}, "words": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 3},
    "size": {"enum": ["small", "large"]},
}  # fmt: skip


def value_in(text: str) -> Any:
    """Parse the JSON in a text, with or without a code fence.

    Raises:
        ValueError: the text is not JSON.
    """
    bare = re.sub(r"^```(?:json|Json|JSON)?|```$", "", text.strip()).strip()
    try:
        return json.loads(bare)
    except RecursionError as error:
        raise ValueError("too deep") from error


def _is_json(text: str) -> bool:
    try:
        value_in(text)
    except ValueError:
        return False
    return True


def _fits(text: str, given: Given) -> bool:
    try:
        value = value_in(text)
    except ValueError:
        return False
    return bool(_validator(json.dumps(given["schema"], sort_keys=True)).is_valid(value))


@lru_cache(1000)
def _validator(schema: str) -> Any:
    """Build a validator from a JSON schema.

    Raises:
        ValueError: the jsonschema package is missing, or the schema is invalid.
    """
    try:
        import jsonschema
    except ImportError as error:
        raise ValueError(
            f"environment: instructions of JSON schemas need the jsonschema package: {install_command('instructions')}"
        ) from error
    read = json.loads(schema)
    try:
        cls = jsonschema.validators.validator_for(read, jsonschema.Draft202012Validator)
        cls.check_schema(read)
    except jsonschema.SchemaError as error:
        raise ValueError(f"environment: no JSON schema: {error.message}") from error
    return cls(read)


def _wrong(given: Given) -> str:
    """Return the error in a schema, or a missing package; "" if valid."""
    try:
        _validator(json.dumps(given["schema"], sort_keys=True))
    except (ValueError, TypeError, RecursionError) as error:
        return str(error).removeprefix("environment: ")
    return ""


def _schema(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    names = sorted(random.sample(sorted(FIELDS), random.randint(1, 3)))
    properties = {name: FIELDS[name] for name in names}
    schema = {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
    return {"schema": schema}


KINDS = (
    Kind(
        "detectable_format:json_format", lambda _: "Write nothing but JSON.", lambda text, _: _is_json(text), nothing,
        alone=True,
    ),
    Kind(
        "detectable_format:json_schema",
        lambda given: f"Write nothing but JSON that fits this schema: {json.dumps(given['schema'])}",
        _fits, _schema, ("schema",), alone=True, wrong=_wrong,
    ),
)  # fmt: skip
