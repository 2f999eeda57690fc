"""New content in the prompt of an agent with memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from marft.common.types import Action


def count_known_tokens(action: Action, by_id: Mapping[str, Action]) -> int:
    """Return the number of leading prompt tokens already known from the previous action.

    These tokens repeat the exact IDs of that action and its prompt. The number is 0 if the prompt continues no action,
    or not by its exact IDs.
    """
    before = by_id.get(action.continues[-1]) if action.continues else None
    if before is None or action.restarted:
        return 0
    context, start, stop = before.segments[-1]
    ids = np.concatenate([context, before.tokens[start:stop]])
    return len(ids) if np.array_equal(action.prompt[: len(ids)], ids) else 0


def find_new_actions(action: Action, by_id: Mapping[str, Action]) -> list[str]:
    """Return the actions that an agent saw since it last acted.

    Of its own actions, only the last one is included.
    """
    before = by_id.get(action.continues[-1]) if action.continues else None
    seen_before = {*before.sees, *action.continues[:-1]} if before else set[str]()
    return [seen for seen in action.sees if seen not in seen_before]
