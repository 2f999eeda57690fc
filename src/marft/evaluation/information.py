"""How much of what only one agent knew its messages tell: mutual information over a batch of episodes.

Counted pairs overstate it: where every message is another one, each tells everything of this batch and perhaps
nothing. So entropies are corrected for what few counts hide (Miller 1955), and what pairs still share once they are
shuffled, when nothing is told, is taken off.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from marft.seeds import generator
from marft.types import Episode

SHUFFLES = 20
Codes = npt.NDArray[np.intp]  # [N], a number for each different value


class Information(NamedTuple):
    """What is told, in bits.

    Args:
        counted: mutual information of the pairs, corrected.
        null: the same of shuffled pairs, mean over the shuffles.
        deviation: of a shuffle's.
        entropy: of what could be told, corrected.
    """

    counted: float
    null: float
    deviation: float
    entropy: float

    @property
    def told(self) -> float:
        """What the pairs have in common beyond chance; it may fall a little below 0."""
        return self.counted - self.null


def information(pairs: Sequence[tuple[Hashable, Hashable]], shuffles: int = SHUFFLES, seed: int = 0) -> Information:
    """What the second things of pairs tell of the first ones.

    >>> found = information([("a", "x"), ("b", "y")] * 50)
    >>> round(found.told, 1), round(found.entropy, 1)
    (1.0, 1.0)

    Raises:
        ValueError: there is no pair.
    """
    if not pairs:
        raise ValueError("no pairs: mutual information is of at least one")
    first, second = _codes([pair[0] for pair in pairs]), _codes([pair[1] for pair in pairs])
    random = generator(seed, "information")
    shuffled = np.array([mutual_information(first, random.permutation(second)) for _ in range(shuffles)])
    null, deviation = (float(shuffled.mean()), float(shuffled.std())) if shuffles else (0.0, 0.0)
    return Information(mutual_information(first, second), null, deviation, entropy(first))


def mutual_information(first: Codes, second: Codes) -> float:
    """``Ĥ(X) + Ĥ(Y) − Ĥ(X, Y)`` in bits, each entropy as :func:`entropy` has it.

    Args:
        first: [N].
        second: [N].
    """
    return entropy(first) + entropy(second) - entropy(first * (int(second.max()) + 1) + second)


def entropy(codes: Codes) -> float:
    """``−Σ p̂ log₂ p̂ + (K − 1) / (2 N ln 2)`` for K different values among N: the plug-in entropy, in bits, with the
    correction of Miller (1955) for its bias.

    Args:
        codes: [N].
    """
    counts = np.unique(codes, return_counts=True)[1]
    shares = counts / len(codes)
    return float(-(shares * np.log2(shares)).sum() + (len(counts) - 1) / (2 * len(codes) * math.log(2)))


def information_metrics(episodes: Sequence[Episode], roles: Sequence[str]) -> dict[str, float]:
    """Metrics under ``agents/<role>/`` of those of whom something hidden is declared."""
    metrics: dict[str, float] = {}
    for role in roles:
        pairs = [pair for episode in episodes for pair in _told(episode, role)]
        if pairs:
            found = information(pairs)
            metrics |= {f"agents/{role}/information": found.told, f"agents/{role}/hidden_entropy": found.entropy}
    return metrics


def _told(episode: Episode, role: str) -> list[tuple[str, str]]:
    """What an agent alone knew, and what it said, of each step in which both are there; case and spacing apart."""
    said = {
        action.step: " ".join(action.message.casefold().split()) for action in episode.actions if action.agent == role
    }
    hidden = [transition.declared.hidden.get(role) for transition in episode.transitions]
    return [(known, said[step]) for step, known in enumerate(hidden) if known is not None and step in said]


def _codes(values: Sequence[Hashable]) -> Codes:
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(value, len(known)) for value in values], np.intp)
