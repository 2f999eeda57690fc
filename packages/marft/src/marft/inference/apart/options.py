"""Prefix tree of options, for scoring several continuations."""

from __future__ import annotations

from collections.abc import Sequence


def nodes(options: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], list[int]]:
    """Build the prefix tree: the possible next tokens after each prefix.

    >>> nodes([(5, 2), (5, 3), (7, 2)])
    {(): [5, 7], (5,): [2, 3], (7,): [2]}
    """
    found: dict[tuple[int, ...], dict[int, None]] = {}
    for option in options:
        for end, token in enumerate(option):
            found.setdefault(option[:end], {})[token] = None
    return {beginning: list(following) for beginning, following in found.items()}
