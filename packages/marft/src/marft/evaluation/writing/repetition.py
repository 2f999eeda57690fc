"""How much of what agents write they have written before, in the same action."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Action

N = 4


def repetition(actions: Sequence[Action]) -> float | None:
    """1 − |different 4-grams| / |4-grams| of an action's own tokens (seq-rep-4, Welleck et al. 2020), mean over actions
    that have one; None where none has.
    """
    shares = []
    for action in actions:
        tokens = action.tokens[action.own].tolist()
        grams = list(zip(*(tokens[start:] for start in range(N)), strict=False))
        if grams:
            shares.append(1.0 - len(set(grams)) / len(grams))
    return sum(shares) / len(shares) if shares else None
