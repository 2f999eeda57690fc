"""Whose a text is that was made of several: the keys of all that went into it."""

from __future__ import annotations

from collections.abc import Iterable

Keys = frozenset[str]
MOST_KEYS = 64  # that a text remembers; one that was made of more goes with any of them
ANY = "\0any"  # in place of so many


def merged(keys: Iterable[Keys]) -> Keys:
    """The keys of a text that was made of several.

    >>> sorted(merged([frozenset(["ann"]), frozenset(["bea"])]))
    ['ann', 'bea']
    """
    every = frozenset[str]().union(*keys)
    return frozenset([ANY]) if len(every) > MOST_KEYS or ANY in every else every


def made_of(keys: Keys, key: str) -> bool:
    """Whether something of a key may have gone into a text."""
    return key in keys or ANY in keys
