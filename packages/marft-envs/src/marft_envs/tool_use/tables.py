"""A database as plain tables, of which an episode keeps what it has changed: the rest is shared, and never written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

LARGE = 1 << 63
Record = dict[str, Any]
Base = Mapping[str, Mapping[str, Any]]  # records by table and key


class Tables:
    """Tables that one episode reads and writes. A record is copied when it is first written.

    >>> tables = Tables({"orders": {"W1": {"status": "pending"}}})
    >>> tables.edit("orders", "W1")["status"] = "cancelled"
    >>> tables.changes()
    {'orders/W1/status': '"cancelled"'}
    """

    def __init__(self, base: Base) -> None:
        self.base = base
        self._written: dict[tuple[str, str], Record] = {}

    def find(self, table: str, key: str) -> Mapping[str, Any] | None:
        """A record to read; None where there is none."""
        return self._written.get((table, key)) or self.base.get(table, {}).get(key)

    def edit(self, table: str, key: str) -> Record:
        """A record to write, which there is."""
        if (table, key) not in self._written:
            self._written[table, key] = deepcopy(self.base[table][key])
        return self._written[table, key]

    def put(self, table: str, key: str, record: Record) -> None:
        """A new record."""
        assert self.find(table, key) is None, f"{table}/{key} is there already"
        self._written[table, key] = record

    def rows(self, table: str) -> Iterator[Mapping[str, Any]]:
        """All records of a table, new ones last."""
        for key, record in self.base.get(table, {}).items():
            written = self._written.get((table, key))
            yield record if written is None else written
        for (where, key), record in self._written.items():
            if where == table and key not in self.base.get(table, {}):
                yield record

    def changes(self) -> dict[str, str]:
        """What is otherwise than at first: by path, the value as JSON; ``"gone"`` for what is there no more."""
        found: dict[str, str] = {}
        for (table, key), record in self._written.items():
            before = _leaves(self.base.get(table, {}).get(key), f"{table}/{key}")
            after = _leaves(record, f"{table}/{key}")
            found |= {path: value for path, value in after.items() if before.get(path) != value}
            found |= {path: "gone" for path in before if path not in after}
        return dict(sorted(found.items()))

    def digest(self) -> str:
        """A digest of all that has changed: the same in whatever order it was, whatever was changed back."""
        return hashlib.sha256(json.dumps(self.changes()).encode()).hexdigest()


def _leaves(value: object, path: str) -> dict[str, str]:
    """The values of nested tables by path; a list is one value, and so is a table with nothing in it."""
    if value is None:
        return {}
    if isinstance(value, Mapping) and value:
        return {leaf: text for key in value for leaf, text in _leaves_or_none(value[key], f"{path}/{key}").items()}
    return {path: json.dumps(_plain(value), sort_keys=True)}


def _leaves_or_none(value: object, path: str) -> dict[str, str]:
    return _leaves(value, path) or {path: "null"}


def _plain(value: Any) -> Any:
    """The value with numbers as money is counted: to the cent, and 3.0 as 3. What has too many digits to be written is
    in hexadecimal, which has no limit."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        cents = round(value, 2)
        return int(cents) if cents.is_integer() else cents
    if isinstance(value, int) and abs(value) > LARGE:
        return hex(value)
    return value
