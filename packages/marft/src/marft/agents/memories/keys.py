"""Entry keys for derived texts: the keys from every source."""

from __future__ import annotations

from collections.abc import Iterable

Keys = frozenset[str]
MAX_KEYS = 64  # maximum keys per text; a text with more sources matches every key
ANY_KEY = "\0any"  # placeholder for more than MAX_KEYS keys


def merge_keys(keys: Iterable[Keys]) -> Keys:
    """Return the keys of a text derived from several texts.

    >>> sorted(merge_keys([frozenset(["ann"]), frozenset(["bea"])]))
    ['ann', 'bea']
    """
    all_keys = frozenset[str]().union(*keys)
    return frozenset([ANY_KEY]) if len(all_keys) > MAX_KEYS or ANY_KEY in all_keys else all_keys


def has_source(keys: Keys, key: str) -> bool:
    """Return true if an entry with this key may be a source."""
    return key in keys or ANY_KEY in keys
