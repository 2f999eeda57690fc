"""Information about private observations in messages: mutual information over a batch of episodes.

The plug-in estimate is too high for few pairs: if every message is unique, each message identifies its episode.
Shuffled pairs measure this excess. As in adjusted mutual information (Vinh et al. 2010), the excess over chance is
divided by the largest possible excess. This fraction is multiplied by the entropy of the private observations.
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
Codes = npt.NDArray[np.intp]  # [N], one integer for each distinct value


class Information(NamedTuple):
    """Mutual information between private observations and messages, in bits.

    Args:
        counted: plug-in mutual information of the pairs.
        null: mean plug-in mutual information of shuffled pairs.
        deviation: standard deviation over the shuffles.
        most: plug-in entropy of the private observations.
        entropy: entropy of the private observations, corrected for bias.
    """

    counted: float
    null: float
    deviation: float
    most: float
    entropy: float

    @property
    def told(self) -> float:
        """Information beyond chance in bits, ``Ĥ (I − null) / (H − null)``.

        The value can be slightly below 0. If the largest possible excess is within three standard deviations, too few
        messages repeat for a fraction. The value is then the excess itself.
        """
        excess, room = self.counted - self.null, self.most - self.null
        return self.entropy * excess / room if room > max(3 * self.deviation, 1e-9) else excess


def information(pairs: Sequence[tuple[Hashable, Hashable]], shuffles: int = SHUFFLES, seed: int = 0) -> Information:
    """Estimate the information about the first items of pairs in their second items.

    >>> found = information([("a", "x"), ("b", "y")] * 50)
    >>> round(found.told, 1), round(found.entropy, 1)
    (1.0, 1.0)

    Raises:
        ValueError: ``pairs`` is empty.
    """
    if not pairs:
        raise ValueError("no pairs: mutual information is of at least one")
    first, second = _codes([pair[0] for pair in pairs]), _codes([pair[1] for pair in pairs])
    random = generator(seed, "information")
    shuffled = np.array([mutual_information(first, random.permutation(second)) for _ in range(shuffles)])
    null, deviation = (float(shuffled.mean()), float(shuffled.std())) if shuffles else (0.0, 0.0)
    return Information(mutual_information(first, second), null, deviation, plug_in(first), entropy(first))


def mutual_information(first: Codes, second: Codes) -> float:
    """Return ``H(X) + H(Y) − H(X, Y)`` in bits, from plug-in entropies.

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
    """Return the entropy in bits, corrected for the bias of the plug-in estimate.

    The correction is that of Miller 1955, ``(K − 1) / (2 N ln 2)`` for K distinct values among N.

    Args:
        codes: [N].
    """
    return plug_in(codes) + (len(np.unique(codes)) - 1) / (2 * len(codes) * math.log(2))


def information_metrics(episodes: Sequence[Episode], roles: Sequence[str]) -> dict[str, float]:
    """Return metrics under ``agents/<role>/`` for each agent with a declared private observation."""
    metrics: dict[str, float] = {}
    for role in roles:
        pairs = [pair for episode in episodes for pair in _told(episode, role)]
        if pairs:
            found = information(pairs)
            metrics |= {f"agents/{role}/information": found.told, f"agents/{role}/hidden_entropy": found.entropy}
    return metrics


def _told(episode: Episode, role: str) -> list[tuple[str, str]]:
    """Return the private observation and message of an agent, for each step with both.

    Case and spacing of messages are normalized.
    """
    said = {
        action.step: " ".join(action.message.casefold().split()) for action in episode.actions if action.agent == role
    }
    hidden = [transition.declared.hidden.get(role) for transition in episode.transitions]
    return [(known, said[step]) for step, known in enumerate(hidden) if known is not None and step in said]


def _codes(values: Sequence[Hashable]) -> Codes:
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(value, len(known)) for value in values], np.intp)
