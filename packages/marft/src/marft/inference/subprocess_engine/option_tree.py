"""Prefix tree of options, for scoring several continuations."""

from __future__ import annotations

from collections.abc import Sequence


def build_prefix_tree(options: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], list[int]]:
    """Build the prefix tree: the possible next tokens after each prefix.

    >>> build_prefix_tree([(5, 2), (5, 3), (7, 2)])
    {(): [5, 7], (5,): [2, 3], (7,): [2]}
    """
    children: dict[tuple[int, ...], dict[int, None]] = {}
    for option in options:
        for end, token in enumerate(option):
            children.setdefault(option[:end], {})[token] = None
    return {prefix: list(following) for prefix, following in children.items()}
