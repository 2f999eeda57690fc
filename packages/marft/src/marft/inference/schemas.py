"""JSON schemas in llguidance's form. Engines in other environments import this module: standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

WHITESPACE_PATTERN = " ?"  # between JSON tokens; unlimited whitespace would let a model write spaces without end


def serialize_schema(schema: Mapping[str, Any]) -> str:
    """Serialize a JSON schema, with limited whitespace in the described JSON.

    >>> serialize_schema({"type": "integer"})
    '{"type": "integer", "x-guidance": {"whitespace_pattern": " ?"}}'
    """
    return json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE_PATTERN}})
