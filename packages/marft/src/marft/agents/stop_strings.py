"""Stop strings: the string that ended a turn, and what was sampled with it, are no part of what the turn says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marft.agents.rendering import Renderer
from marft.common.types import TokenIds


def ended_by(stops: Sequence[str], said: str, text: str) -> str:
    """Return the stop string that ended a turn; "" where none did.

    Args:
        said: all that was sampled.
        text: what was told of it.
    """
    found = [(at, len(stop), stop) for stop in stops if (at := said.find(stop)) >= 0]
    return min(found)[2] if found and min(found)[2] not in text else ""


def without_stop(
    renderer: Renderer, policy: str, tokens: TokenIds, text: str, stops: Sequence[str], inside: bool = False
) -> TokenIds:
    """Return the ids of a turn without the stop string that ended it, and what was sampled with that. They are those
    that were sampled, but for a piece of a token before the stop string.

    Args:
        tokens: of the turn, as they were sampled, [T].
        text: of the turn, without the stop string.
        inside: whether the turn goes on from a text that a client began it with.
    """
    if not stops or not ended_by(stops, renderer.spelled(policy, tokens, inside), text):
        return tokens
    count = len(tokens)
    while not text.startswith(kept := renderer.spelled(policy, tokens[:count], inside)):
        count -= 1
    return np.concatenate([tokens[:count], renderer.ids(policy, text[len(kept) :])])
