"""Tokens in an action as text, with their recorded values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from marft.common.token_data import TokenSource
from marft.common.types import Action

MAX_TOKENS = 20_000  # maximum number of shown tokens


class Decoder(Protocol):
    """Tokenizer with a decode method."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode token ids."""


def decode_tokens(decoder: Decoder, ids: Sequence[int]) -> list[str]:
    """Return each token's contribution to the text; a character made from several tokens goes to the last token.

    Each token is decoded together with the preceding token, since some tokenizers drop a leading space.
    """
    texts, context_start, start = (
        list[str](),
        0,
        0,
    )  # ids[start:] are pending; ids[before:start] precede them as context
    for end in range(1, len(ids) + 1):
        context = decoder.decode(ids[context_start:start], skip_special_tokens=False)
        decoded = decoder.decode(ids[context_start:end], skip_special_tokens=False)
        if decoded.endswith("\ufffd") and end - start < 8 and end < len(ids):
            texts.append("")
            continue
        texts.append(decoded[len(context) :])
        context_start, start = start, end
    return texts


def build_token_table(action: Action, decoder: Decoder | None, recorded: dict[str, Any]) -> dict[str, Any]:
    """Return an action's tokens, with one list entry per token.

    Args:
        action: the action.
        decoder: the tokenizer; None to show ids instead of text.
        recorded: recorded credit, with one number per decision, or a single number for the action.
    """
    ids = action.tokens[:MAX_TOKENS].tolist()
    texts = decode_tokens(decoder, ids) if decoder else [f"⟨{number}⟩" for number in ids]
    names = {mark.value: mark.name.lower() for mark in TokenSource}
    return {
        "tokens": texts,
        "marks": [names.get(mark, "tool") for mark in action.marks[:MAX_TOKENS].tolist()],
        "log_prob": spread_values(action, action.log_probs),
        **{
            name: None
            if (values := recorded.get(name)) is None
            else spread_values(action, np.array(values, np.float64))
            for name in ("advantage", "value", "entropy", "difference")
        },
        "left_out": max(0, len(action.tokens) - MAX_TOKENS),
    }


def spread_values(action: Action, decisions: npt.NDArray[Any]) -> list[float | None]:
    """Spread values from decisions to tokens; null for tokens without a decision.

    A single value for the whole action goes to each of its own tokens.
    """
    positions = np.flatnonzero(action.own_mask if action.choice or len(decisions) == 1 else action.sampled_mask)
    values: list[float | None] = [None] * len(action.tokens)
    numbers = decisions.tolist() * (len(positions) if len(decisions) == 1 else 1)
    for position, number in zip(positions.tolist(), numbers, strict=False):
        values[position] = float(number)
    return values[:MAX_TOKENS]
