"""How much of what only one agent knew its messages tell: mutual information over a batch of episodes.

The plug-in estimate of few pairs is too high: where every message is different, each one identifies its episode.
Shuffled pairs show how high it is by chance. As in adjusted mutual information (Vinh et al. 2010), the excess over
chance is divided by the largest excess possible, and this share is multiplied by the entropy of what could be told.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from marft.common.seeds import generator
from marft.common.types import Episode

SHUFFLES = 20
Codes = npt.NDArray[np.intp]  # [N], a number for each different value


class Information(NamedTuple):
    """Information that messages carry, in bits.

    Args:
        counted: plug-in mutual information of the pairs.
        null: the same of shuffled pairs, mean over the shuffles.
        deviation: of the shuffles.
        most: plug-in entropy of what could be told.
        entropy: the same, corrected for its bias.
    """

    counted: float
    null: float
    deviation: float
    most: float
    entropy: float

    @property
    def told(self) -> float:
        """Information beyond chance, ``Ĥ (I − null) / (H − null)``; slightly below 0 at times. Where the largest excess
        possible is within three deviations of chance, too few messages repeat for a share: the excess itself."""
        excess, room = self.counted - self.null, self.most - self.null
        return self.entropy * excess / room if room > max(3 * self.deviation, 1e-9) else excess


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
    return Information(mutual_information(first, second), null, deviation, plug_in(first), entropy(first))


def mutual_information(first: Codes, second: Codes) -> float:
    """Return ``H(X) + H(Y) − H(X, Y)`` in bits, of plug-in entropies.

    Args:
        first: [N].
        second: [N].
    """
    return plug_in(first) + plug_in(second) - plug_in(first * (int(second.max()) + 1) + second)


def plug_in(codes: Codes) -> float:
    """Return the plug-in entropy ``−Σ p̂ log₂ p̂`` in bits.

    Args:
        codes: [N].
    """
    shares = np.unique(codes, return_counts=True)[1] / len(codes)
    return float(-(shares * np.log2(shares)).sum())


def entropy(codes: Codes) -> float:
    """Return the entropy in bits, the plug-in estimate plus the correction of Miller 1955 for its bias,
    ``(K − 1) / (2 N ln 2)`` for K different values among N.

    Args:
        codes: [N].
    """
    return plug_in(codes) + (len(np.unique(codes)) - 1) / (2 * len(codes) * math.log(2))


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
