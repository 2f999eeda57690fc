"""JSON schemas as llguidance is given them. Engines in other environments read it: nothing here needs a library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

WHITESPACE = " ?"  # between the parts of JSON: a model that only ever wrote space would come to no end


def schema_text(schema: Mapping[str, Any]) -> str:
    """A JSON schema as text, with little space between the parts of what it describes.

    >>> schema_text({"type": "integer"})
    '{"type": "integer", "x-guidance": {"whitespace_pattern": " ?"}}'
    """
    return json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}})
