"""Stop strings: removal of a final stop string and text sampled with it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marft.agents.prompt_messages import Renderer
from marft.common.types import TokenIds


def find_stop_string(stops: Sequence[str], sampled_text: str, text: str) -> str:
    """Return the stop string that ended a turn, or "".

    Args:
        sampled_text: the complete sampled text.
        text: the text as passed on, without the stop string.
    """
    matches = [(at, len(stop), stop) for stop in stops if (at := sampled_text.find(stop)) >= 0]
    return min(matches)[2] if matches and min(matches)[2] not in text else ""


def strip_stop_string(
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
    if not stops or not find_stop_string(stops, renderer.decode_tokens(policy, tokens, inside), text):
        return tokens
    count = len(tokens)
    while not text.startswith(decoded := renderer.decode_tokens(policy, tokens[:count], inside)):
        count -= 1
    return np.concatenate([tokens[:count], renderer.encode_text(policy, text[len(decoded) :])])
