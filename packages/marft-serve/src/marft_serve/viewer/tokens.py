"""Tokens in an action as text, with their recorded values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from marft.common.marks import Mark
from marft.common.types import Action

MOST = 20_000  # maximum number of shown tokens


class Decoder(Protocol):
    """Tokenizer with a decode method."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode token ids."""


def token_texts(decoder: Decoder, ids: Sequence[int]) -> list[str]:
    """Return each token's contribution to the text; a character made from several tokens goes to the last token.

    Each token is decoded together with the preceding token, since some tokenizers drop a leading space.
    """
    texts, before, start = list[str](), 0, 0  # ids[start:] are pending; ids[before:start] precede them as context
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
    """Return an action's tokens, with one list entry per token.

    Args:
        action: the action.
        decoder: the tokenizer; None to show ids instead of text.
        recorded: recorded credit, with one number per decision, or a single number for the action.
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
    """Spread values from decisions to tokens; null for tokens without a decision.

    A single value for the whole action goes to each of its own tokens.
    """
    places = np.flatnonzero(action.own if action.choice or len(decisions) == 1 else action.sampled)
    values: list[float | None] = [None] * len(action.tokens)
    numbers = decisions.tolist() * (len(places) if len(decisions) == 1 else 1)
    for place, number in zip(places.tolist(), numbers, strict=False):
        values[place] = float(number)
    return values[:MOST]
