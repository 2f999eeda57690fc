"""Entry keys for derived texts: the keys from every source."""

from __future__ import annotations

from collections.abc import Iterable

Keys = frozenset[str]
MOST_KEYS = 64  # maximum keys per text; a text with more sources matches every key
ANY = "\0any"  # placeholder for more than MOST_KEYS keys


def merged(keys: Iterable[Keys]) -> Keys:
    """Return the keys of a text derived from several texts.

    >>> sorted(merged([frozenset(["ann"]), frozenset(["bea"])]))
    ['ann', 'bea']
    """
    every = frozenset[str]().union(*keys)
    return frozenset([ANY]) if len(every) > MOST_KEYS or ANY in every else every


def made_of(keys: Keys, key: str) -> bool:
    """Return true if an entry with this key may be a source."""
    return key in keys or ANY in keys
