"""Database as plain tables. Episodes share the base and keep only their own changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

LARGE_INT = 1 << 63
Record = dict[str, Any]
Database = Mapping[str, Mapping[str, Any]]  # records by table and key


class EpisodeTables:
    """Tables for a single episode. A record is copied before its first write.

    >>> tables = EpisodeTables({"orders": {"W1": {"status": "pending"}}})
    >>> tables.edit("orders", "W1")["status"] = "cancelled"
    >>> tables.changes()
    {'orders/W1/status': '"cancelled"'}
    """

    def __init__(self, base: Database) -> None:
        self.base = base
        self._changed_records: dict[tuple[str, str], Record] = {}

    def find(self, table: str, key: str) -> Mapping[str, Any] | None:
        """Return a record for reading; None if missing."""
        return self._changed_records.get((table, key)) or self.base.get(table, {}).get(key)

    def edit(self, table: str, key: str) -> Record:
        """Return an existing record for writing.

        Raises:
            KeyError: the record does not exist.
        """
        if (table, key) not in self._changed_records:
            self._changed_records[table, key] = deepcopy(self.base[table][key])
        return self._changed_records[table, key]

    def put(self, table: str, key: str, record: Record) -> None:
        """Add a new record."""
        assert self.find(table, key) is None, f"{table}/{key} is there already"
        self._changed_records[table, key] = record

    def rows(self, table: str) -> Iterator[Mapping[str, Any]]:
        """Yield the records in a table, new records last."""
        for key, record in self.base.get(table, {}).items():
            written = self._changed_records.get((table, key))
            yield record if written is None else written
        for (table_name, key), record in self._changed_records.items():
            if table_name == table and key not in self.base.get(table, {}):
                yield record

    def changes(self) -> dict[str, str]:
        """Return the changes since the start: JSON values by path, or ``gone`` for removed values."""
        changes_found: dict[str, str] = {}
        for (table, key), record in self._changed_records.items():
            before = _leaf_values(self.base.get(table, {}).get(key), f"{table}/{key}")
            after = _leaf_values(record, f"{table}/{key}")
            changes_found |= {path: value for path, value in after.items() if before.get(path) != value}
            changes_found |= {path: "gone" for path in before if path not in after}
        return dict(sorted(changes_found.items()))

    def digest(self) -> str:
        """Return a digest over the changes.

        The digest does not depend on the order of writes, nor on changes that were undone.
        """
        return hashlib.sha256(json.dumps(self.changes()).encode()).hexdigest()


def _leaf_values(value: object, path: str) -> dict[str, str]:
    """Return the leaf values in nested tables by path. A list or an empty table is a single value."""
    if value is None:
        return {}
    if isinstance(value, Mapping) and value:
        return {leaf: text for key in value for leaf, text in _leaf_values_or_null(value[key], f"{path}/{key}").items()}
    return {path: json.dumps(_to_canonical(value), sort_keys=True)}


def _leaf_values_or_null(value: object, path: str) -> dict[str, str]:
    return _leaf_values(value, path) or {path: "null"}


def _to_canonical(value: Any) -> Any:
    """Convert numbers to a canonical form: rounded to cents, with 3.0 as 3.

    Integers beyond 2⁶³ are written in hexadecimal, because Python limits the digits of decimal conversions.
    """
    if isinstance(value, Mapping):
        return {key: _to_canonical(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_canonical(inner) for inner in value]
    if isinstance(value, float):
        cents = round(value, 2)
        return int(cents) if cents.is_integer() else cents
    if isinstance(value, int) and abs(value) > LARGE_INT:
        return hex(value)
    return value
