"""Error messages for invalid request parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ERROR_MESSAGES = {  # by pydantic's error type
    "missing": "it is left out",
    "int_parsing": "it has to be a whole number",
    "int_from_float": "it has to be a whole number",
    "float_parsing": "it has to be a number",
    "string_too_long": "it may have at most {max_length} characters",
    "greater_than_equal": "it may not be less than {ge}",
    "less_than_equal": "it may not be more than {le}",
    "literal_error": "it is none of {expected}",
}


def describe_error(problem: Mapping[str, Any]) -> str:
    """Describe a pydantic error in plain words.

    >>> describe_error({"type": "missing", "loc": ("query", "action"), "msg": "Field required"})
    "this address needs 'action' to be answered: it is left out"
    """
    name = next((part for part in problem["loc"][1:] if isinstance(part, str)), "a value")
    template = ERROR_MESSAGES.get(problem["type"])
    message = template.format(**problem.get("ctx", {})) if template else str(problem["msg"])
    if problem["type"] == "missing":
        return f"this address needs {name!r} to be answered: {message}"
    return f"{name!r} of this address cannot be {_truncate(problem.get('input'))}: {message}"


def _truncate(value: object, max_chars: int = 40) -> str:
    text = str(value)
    return repr(text if len(text) <= max_chars else text[:max_chars] + "…")
