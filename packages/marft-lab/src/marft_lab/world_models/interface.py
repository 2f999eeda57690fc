"""Types of world models: histories, transitions, predictions and interfaces.

Observations and actions are texts, for models with lookup tables and for models that read words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Situation:
    """Recent history of an episode: the last observations, oldest first, and the team's actions between them.

    Each observation and action is one text (:mod:`marft_lab.world_models.words`).

    >>> Situation(("You stand at S.",)).observed
    ('You stand at S.',)
    """

    observed: tuple[str, ...]
    done: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a joint action: next observation, "" at the end, and the step's rewards."""

    following: str
    reward: float
    agent_rewards: tuple[tuple[str, float], ...] = ()
    success: bool | None = None  # known at the end, if the environment reports success

    def earned(self, role: str = "") -> float:
        """Return the team's reward, or an agent's individual reward."""
        return dict(self.agent_rewards).get(role, 0.0) if role else self.reward


@dataclass(frozen=True, slots=True)
class Lived:
    """Environment step of a real episode; ``first`` is True for the first step."""

    situation: Situation
    action: str
    outcome: Outcome
    first: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """Prediction for a joint action.

    Args:
        outcomes: possible outcomes; () without data.
        probabilities: probability of each outcome, shape [outcomes]; the sum is 1.
        uncertainty: epistemic uncertainty of the model from 0 to 1, without the randomness of the environment.
    """

    outcomes: Sequence[Outcome] = ()
    probabilities: Floats = field(default_factory=lambda: np.zeros(0))
    uncertainty: float = 1.0

    def reward(self, role: str = "") -> float:
        """Return the team's expected reward, or an agent's expected individual reward."""
        both = zip(self.probabilities, self.outcomes, strict=True)
        return float(sum(p * outcome.earned(role) for p, outcome in both))

    def spread(self, role: str = "") -> float:
        """Return the reward's expected absolute deviation from its mean: ``Σ p |r − E r|``."""
        mean = self.reward(role)
        both = zip(self.probabilities, self.outcomes, strict=True)
        return float(sum(p * abs(outcome.earned(role) - mean) for p, outcome in both))

    @property
    def ways(self) -> Mapping[str, float]:
        """Probability of each next observation; "" for the end."""
        found: dict[str, float] = {}
        for p, outcome in zip(self.probabilities, self.outcomes, strict=True):
            found[outcome.following] = found.get(outcome.following, 0.0) + float(p)
        return found


class WorldModel(Protocol):
    """Interface for fitted world models."""

    def predict(self, situation: Situation, action: str) -> Prediction:
        """Return the prediction for a history and a joint action, as a deterministic function."""
        ...


class Fits(Protocol):
    """Interface for world models in a recipe."""

    def fit(self, lived: Sequence[Lived], seed: int) -> WorldModel:
        """Fit the model to transitions, oldest first; a run starts without transitions.

        The same transitions and seed give the same model, which resume requires.
        """
        ...


def tallied(lived: Sequence[Lived]) -> dict[tuple[Situation, str, Outcome], int]:
    """Return the count of each distinct transition, in order of first occurrence."""
    counts: dict[tuple[Situation, str, Outcome], int] = {}
    for one in lived:
        key = (one.situation, one.action, one.outcome)
        counts[key] = counts.get(key, 0) + 1
    return counts


def disagreement(members: Floats) -> float:
    """Return the disagreement of an ensemble, from 0 to 1.

    The disagreement is the mean total variation distance between a member's distribution and the mean distribution. A
    member without data (zeros) has distance 1.

    >>> disagreement(np.array([[1.0, 0.0], [1.0, 0.0]])), disagreement(np.array([[1.0, 0.0], [0.0, 1.0]]))
    (0.0, 0.5)
    >>> disagreement(np.array([[1.0, 0.0], [0.0, 0.0]]))
    0.5

    Args:
        members: distribution of each member over the outcomes, shape [members, outcomes].
    """
    knows = members.sum(1) > 0
    if not knows.any():
        return 1.0
    distances = np.abs(members - members[knows].mean(0)).sum(1) / 2
    return float(np.where(knows, distances, 1.0).mean())
