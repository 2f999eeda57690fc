"""Repetition of token 4-grams within an action."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Action

NGRAM_SIZE = 4


def repetition(actions: Sequence[Action]) -> float | None:
    """Return 1 − |distinct 4-grams| / |4-grams| of actions' own tokens (seq-rep-4, Welleck et al. 2020).

    It is the mean over the actions with at least one 4-gram, or None without any.
    """
    shares = []
    for action in actions:
        tokens = action.tokens[action.own_mask].tolist()
        ngrams = list(zip(*(tokens[start:] for start in range(NGRAM_SIZE)), strict=False))
        if ngrams:
            shares.append(1.0 - len(set(ngrams)) / len(ngrams))
    return sum(shares) / len(shares) if shares else None
