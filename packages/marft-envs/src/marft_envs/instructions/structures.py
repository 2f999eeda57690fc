"""Instructions on JSON output, with or without a schema."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from random import Random
from typing import Any

from marft.common.packages import install_command
from marft_envs.instructions.kinds import InstructionKind, Parameters, Topic, no_parameters

SCHEMA_FIELDS = {
    "name": {"type": "string", "minLength": 1},
    "count": {"type": "integer", "minimum": 1, "maximum": 9},
    "known": {"type": "boolean"},
    "words": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 3},
    "size": {"enum": ["small", "large"]},
}


def parse_json(text: str) -> Any:
    """Parse the JSON in a text, with or without a code fence.

    Raises:
        ValueError: the text is not JSON.
    """
    stripped = re.sub(r"^```(?:json|Json|JSON)?|```$", "", text.strip()).strip()
    try:
        return json.loads(stripped)
    except RecursionError as error:
        raise ValueError("too deep") from error


def _is_json(text: str) -> bool:
    try:
        parse_json(text)
    except ValueError:
        return False
    return True


def _fits_schema(text: str, parameters: Parameters) -> bool:
    try:
        value = parse_json(text)
    except ValueError:
        return False
    return bool(_make_validator(json.dumps(parameters["schema"], sort_keys=True)).is_valid(value))


@lru_cache(1000)
def _make_validator(schema: str) -> Any:
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
    schema_dict = json.loads(schema)
    try:
        cls = jsonschema.validators.validator_for(schema_dict, jsonschema.Draft202012Validator)
        cls.check_schema(schema_dict)
    except jsonschema.SchemaError as error:
        raise ValueError(f"environment: no JSON schema: {error.message}") from error
    return cls(schema_dict)


def _schema_error(parameters: Parameters) -> str:
    """Return the error in a schema, or a missing package; "" if valid."""
    try:
        _make_validator(json.dumps(parameters["schema"], sort_keys=True))
    except (ValueError, TypeError, RecursionError) as error:
        return str(error).removeprefix("environment: ")
    return ""


def _draw_schema(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    names = sorted(random.sample(sorted(SCHEMA_FIELDS), random.randint(1, 3)))
    properties = {name: SCHEMA_FIELDS[name] for name in names}
    schema = {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
    return {"schema": schema}


KINDS = (
    InstructionKind(
        "detectable_format:json_format",
        lambda _: "Write nothing but JSON.",
        lambda text, _: _is_json(text),
        no_parameters,
        is_exclusive=True,
    ),
    InstructionKind(
        "detectable_format:json_schema",
        lambda given: f"Write nothing but JSON that fits this schema: {json.dumps(given['schema'])}",
        _fits_schema,
        _draw_schema,
        ("schema",),
        is_exclusive=True,
        find_error=_schema_error,
    ),
)
