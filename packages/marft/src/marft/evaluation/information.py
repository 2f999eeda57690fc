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


class InformationEstimate(NamedTuple):
    """Mutual information between private observations and messages, in bits.

    Args:
        mutual_information: plug-in mutual information of the pairs.
        shuffled_mean: mean plug-in mutual information of shuffled pairs.
        shuffled_std: standard deviation over the shuffles.
        plug_in_entropy: plug-in entropy of the private observations.
        entropy: entropy of the private observations, corrected for bias.
    """

    mutual_information: float
    shuffled_mean: float
    shuffled_std: float
    plug_in_entropy: float
    entropy: float

    @property
    def excess(self) -> float:
        """Information beyond chance in bits, ``Ĥ (I − null) / (H − null)``.

        The value can be slightly below 0. If the largest possible excess is within three standard deviations, too few
        messages repeat for a fraction. The value is then the excess itself.
        """
        excess, room = self.mutual_information - self.shuffled_mean, self.plug_in_entropy - self.shuffled_mean
        return self.entropy * excess / room if room > max(3 * self.shuffled_std, 1e-9) else excess


def estimate_information(
    pairs: Sequence[tuple[Hashable, Hashable]], shuffles: int = SHUFFLES, seed: int = 0
) -> InformationEstimate:
    """Estimate the information about the first items of pairs in their second items.

    >>> found = estimate_information([("a", "x"), ("b", "y")] * 50)
    >>> round(found.excess, 1), round(found.entropy, 1)
    (1.0, 1.0)

    Raises:
        ValueError: ``pairs`` is empty.
    """
    if not pairs:
        raise ValueError("no pairs: mutual information is of at least one")
    first, second = _encode([pair[0] for pair in pairs]), _encode([pair[1] for pair in pairs])
    random = generator(seed, "information")
    shuffled = np.array([mutual_information(first, random.permutation(second)) for _ in range(shuffles)])
    shuffled_mean, shuffled_std = (float(shuffled.mean()), float(shuffled.std())) if shuffles else (0.0, 0.0)
    return InformationEstimate(
        mutual_information(first, second), shuffled_mean, shuffled_std, plug_in_entropy(first), corrected_entropy(first)
    )


def mutual_information(first: Codes, second: Codes) -> float:
    """Return ``H(X) + H(Y) − H(X, Y)`` in bits, from plug-in entropies.

    Args:
        first: [N].
        second: [N].
    """
    return plug_in_entropy(first) + plug_in_entropy(second) - plug_in_entropy(first * (int(second.max()) + 1) + second)


def plug_in_entropy(codes: Codes) -> float:
    """Return the plug-in entropy ``−Σ p̂ log₂ p̂`` in bits.

    Args:
        codes: [N].
    """
    shares = np.unique(codes, return_counts=True)[1] / len(codes)
    return float(-(shares * np.log2(shares)).sum())


def corrected_entropy(codes: Codes) -> float:
    """Return the entropy in bits, corrected for the bias of the plug-in estimate.

    The correction is that of Miller 1955, ``(K − 1) / (2 N ln 2)`` for K distinct values among N.

    Args:
        codes: [N].
    """
    return plug_in_entropy(codes) + (len(np.unique(codes)) - 1) / (2 * len(codes) * math.log(2))


def information_metrics(episodes: Sequence[Episode], roles: Sequence[str]) -> dict[str, float]:
    """Return metrics under ``agents/<role>/`` for each agent with a declared private observation."""
    metrics: dict[str, float] = {}
    for role in roles:
        pairs = [pair for episode in episodes for pair in _observation_pairs(episode, role)]
        if pairs:
            estimate = estimate_information(pairs)
            metrics |= {
                f"agents/{role}/message_information": estimate.excess,
                f"agents/{role}/hidden_entropy": estimate.entropy,
            }
    return metrics


def _observation_pairs(episode: Episode, role: str) -> list[tuple[str, str]]:
    """Return the private observation and message of an agent, for each step with both.

    Case and spacing of messages are normalized.
    """
    message_by_step = {
        action.step: " ".join(action.message.casefold().split()) for action in episode.actions if action.agent == role
    }
    hidden = [transition.declared.hidden.get(role) for transition in episode.transitions]
    return [
        (observation, message_by_step[step])
        for step, observation in enumerate(hidden)
        if observation is not None and step in message_by_step
    ]


def _encode(values: Sequence[Hashable]) -> Codes:
    code_by_value: dict[Hashable, int] = {}
    return np.array([code_by_value.setdefault(value, len(code_by_value)) for value in values], np.intp)
