"""Stop strings: removal of a final stop string and text sampled with it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marft.agents.rendering import Renderer
from marft.common.types import TokenIds


def ended_by(stops: Sequence[str], said: str, text: str) -> str:
    """Return the stop string that ended a turn, or "".

    Args:
        said: the complete sampled text.
        text: the text as passed on, without the stop string.
    """
    found = [(at, len(stop), stop) for stop in stops if (at := said.find(stop)) >= 0]
    return min(found)[2] if found and min(found)[2] not in text else ""


def without_stop(
    renderer: Renderer, policy: str, tokens: TokenIds, text: str, stops: Sequence[str], inside: bool = False
) -> TokenIds:
    """Return a turn's token ids without the final stop string and any text sampled with it.

    The result keeps the sampled ids. Only text from a token that also contains the start of the stop string is
    encoded again.

    Args:
        tokens: the turn as sampled, [T].
        text: the turn's text without the stop string.
        inside: whether the turn continues a client's beginning.
    """
    if not stops or not ended_by(stops, renderer.spelled(policy, tokens, inside), text):
        return tokens
    count = len(tokens)
    while not text.startswith(kept := renderer.spelled(policy, tokens[:count], inside)):
        count -= 1
    return np.concatenate([tokens[:count], renderer.ids(policy, text[len(kept) :])])
