"""Recipe changes in Python form: dotted keys or nested tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NAME_KEYS = {  # tables that hold a plugin or preset, and the key that a plain string in their place sets
    "algorithm": "name",
    "algorithm.credit": "name",
    "algorithm.objective": "name",
    "algorithm.schedule": "name",
    "channel": "name",
    "engine": "kind",
    "environment": "name",
    "team": "organization",
}


def flatten_changes(changes: Mapping[str, Any], inside: Sequence[str] = ()) -> Iterator[tuple[list[str], Any]]:
    """Yield changed keys and values, with nested tables flattened.

    Keys that a table does not mention keep their values. A table with another plugin name replaces the plugin, as a
    plain string does.

    >>> list(flatten_changes({"training.steps": 5, "algorithm": {"name": "grpo", "kl": {"coefficient": 0.0}}}))
    [(['training', 'steps'], 5), (['algorithm', 'name'], 'grpo'), (['algorithm', 'kl', 'coefficient'], 0.0)]

    Args:
        inside: key of the enclosing table.
    """
    for key, value in changes.items():
        parts = [*inside, *str(key).split(".")]
        tag = NAME_KEYS.get(".".join(parts), "")
        if isinstance(value, Mapping) and value:
            if tag in value:
                yield _tag_path(parts), value[tag]
            yield from flatten_changes({name: inner for name, inner in value.items() if name != tag}, parts)
        else:
            yield _tag_path(parts) if isinstance(value, str) else parts, value


def _tag_path(parts: list[str]) -> list[str]:
    """Return the key that a plain string sets: a preset has its own name key."""
    return [*parts, "name"] if parts == ["algorithm"] else parts
