"""What is new in the prompt of an agent that remembers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from marft.common.types import Action


def known_tokens(action: Action, by_id: Mapping[str, Action]) -> int:
    """How many of the first tokens of a prompt are the ids of the action that it goes on from, with its prompt.

    0 where it goes on from none, or not by its ids.
    """
    before = by_id.get(action.continues[-1]) if action.continues else None
    if before is None or action.restarted:
        return 0
    context, start, stop = before.segments[-1]
    ids = np.concatenate([context, before.tokens[start:stop]])
    return len(ids) if np.array_equal(action.prompt[: len(ids)], ids) else 0


def newly_seen(action: Action, by_id: Mapping[str, Action]) -> list[str]:
    """The actions that an agent saw, but for those that it had seen when it last acted: of its own, the last alone."""
    before = by_id.get(action.continues[-1]) if action.continues else None
    known = {*before.sees, *action.continues[:-1]} if before else set[str]()
    return [seen for seen in action.sees if seen not in known]
