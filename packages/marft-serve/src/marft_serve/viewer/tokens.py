"""An action's tokens as texts, and what is known of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from marft.common.marks import Mark
from marft.common.types import Action

MOST = 20_000  # tokens of an action that are shown


class Decoder(Protocol):
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


def token_texts(decoder: Decoder, ids: Sequence[int]) -> list[str]:
    """What each token adds to the text; a character of several tokens belongs to its last one.

    Each is decoded after the tokens of the one before it, for some tokenizers drop a space at the beginning.
    """
    texts, before, start = list[str](), 0, 0  # ids[start:] are not told yet; ids[before:start] go before them
    for end in range(1, len(ids) + 1):
        known = decoder.decode(ids[before:start], skip_special_tokens=False)
        now = decoder.decode(ids[before:end], skip_special_tokens=False)
        if now.endswith("\ufffd") and end - start < 8 and end < len(ids):
            texts.append("")
            continue
        texts.append(now[len(known) :])
        before, start = start, end
    return texts


def tokens_of(action: Action, decoder: Decoder | None, recorded: dict[str, Any]) -> dict[str, Any]:
    """An action's tokens, one entry of each list a token.

    Args:
        decoder: None where no tokenizer is at hand: then ids stand for texts.
        recorded: what was recorded after credit, one number a decision, or one for all.
    """
    ids = action.tokens[:MOST].tolist()
    texts = token_texts(decoder, ids) if decoder else [f"⟨{number}⟩" for number in ids]
    names = {mark.value: mark.name.lower() for mark in Mark}
    return {
        "tokens": texts,
        "marks": [names.get(mark, "tool") for mark in action.marks[:MOST].tolist()],
        "log_prob": spread(action, action.log_probs),
        **{
            name: None if (values := recorded.get(name)) is None else spread(action, np.array(values, np.float64))
            for name in ("advantage", "value", "entropy", "difference")
        },
        "left_out": max(0, len(action.tokens) - MOST),
    }


def spread(action: Action, decisions: npt.NDArray[Any]) -> list[float | None]:
    """Numbers of decisions → of tokens, null where the agent decided nothing; one for the whole action stands at each
    token of its own."""
    places = np.flatnonzero(action.own if action.choice or len(decisions) == 1 else action.sampled)
    values: list[float | None] = [None] * len(action.tokens)
    numbers = decisions.tolist() * (len(places) if len(decisions) == 1 else 1)
    for place, number in zip(places.tolist(), numbers, strict=False):
        values[place] = float(number)
    return values[:MOST]
