"""What must be known of a model to say how likely each of several continuations is."""

from __future__ import annotations

from collections.abc import Sequence


def nodes(options: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], list[int]]:
    """The tree of options: after each beginning, the tokens that some option goes on with.

    >>> nodes([(5, 2), (5, 3), (7, 2)])
    {(): [5, 7], (5,): [2, 3], (7,): [2]}
    """
    found: dict[tuple[int, ...], dict[int, None]] = {}
    for option in options:
        for end, token in enumerate(option):
            found.setdefault(option[:end], {})[token] = None
    return {beginning: list(following) for beginning, following in found.items()}
