"""Changes to a recipe as Python has them: dotted keys, or tables inside tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NAMED = {  # tables that are a plugin or a preset, and the key that says which: what a bare word in their place means
    "algorithm": "name", "algorithm.credit": "name", "algorithm.objective": "name", "algorithm.schedule": "name",
    "channel": "name", "engine": "kind", "environment": "name", "team": "organization",
}  # fmt: skip


def pairs_of(changes: Mapping[str, Any], inside: Sequence[str] = ()) -> Iterator[tuple[list[str], Any]]:
    """Keys and values, those of inner tables one by one: what a table does not name stays as it was. One that names
    another part takes its place, as a bare word does.

    >>> list(pairs_of({"training.steps": 5, "algorithm": {"name": "grpo", "kl": {"coefficient": 0.0}}}))
    [(['training', 'steps'], 5), (['algorithm', 'name'], 'grpo'), (['algorithm', 'kl', 'coefficient'], 0.0)]
    """
    for key, value in changes.items():
        parts = [*inside, *str(key).split(".")]
        tag = NAMED.get(".".join(parts), "")
        if isinstance(value, Mapping) and value:
            if tag in value:
                yield _named(parts), value[tag]
            yield from pairs_of({name: inner for name, inner in value.items() if name != tag}, parts)
        else:
            yield _named(parts) if isinstance(value, str) else parts, value


def _named(parts: list[str]) -> list[str]:
    """A preset is named by its own key."""
    return [*parts, "name"] if parts == ["algorithm"] else parts
