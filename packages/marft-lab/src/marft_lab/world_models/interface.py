"""Types of world models: histories, transitions, predictions and interfaces.

Observations and actions are texts, for models with lookup tables and for models that read words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from marft.config.plugins import Plugin

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class History:
    """Recent history of an episode: the last observations, oldest first, and the team's actions between them.

    Each observation and action is one text (:mod:`marft_lab.world_models.text_codec`).

    >>> History(("You stand at S.",)).observations
    ('You stand at S.',)
    """

    observations: tuple[str, ...]
    actions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a joint action: next observation, "" at the end, and the step's rewards."""

    next_observation: str
    reward: float
    agent_rewards: tuple[tuple[str, float], ...] = ()
    success: bool | None = None  # known at the end, if the environment reports success

    def reward_for(self, role: str = "") -> float:
        """Return the team's reward, or an agent's individual reward."""
        return dict(self.agent_rewards).get(role, 0.0) if role else self.reward


@dataclass(frozen=True, slots=True)
class ObservedTransition:
    """Environment step of a real episode; ``is_first`` is True for the first step."""

    history: History
    action: str
    outcome: Outcome
    is_first: bool = False


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
        return float(sum(p * outcome.reward_for(role) for p, outcome in both))

    def reward_deviation(self, role: str = "") -> float:
        """Return the reward's expected absolute deviation from its mean: ``Σ p |r − E r|``."""
        mean = self.reward(role)
        both = zip(self.probabilities, self.outcomes, strict=True)
        return float(sum(p * abs(outcome.reward_for(role) - mean) for p, outcome in both))

    @property
    def next_probabilities(self) -> Mapping[str, float]:
        """Probability of each next observation; "" for the end."""
        probabilities: dict[str, float] = {}
        for p, outcome in zip(self.probabilities, self.outcomes, strict=True):
            probabilities[outcome.next_observation] = probabilities.get(outcome.next_observation, 0.0) + float(p)
        return probabilities


class WorldModel(Protocol):
    """Interface for fitted world models."""

    def predict(self, history: History, action: str) -> Prediction:
        """Return the prediction for a history and a joint action, as a deterministic function."""
        ...


class FittableModel(Plugin, ABC, kind="world_models", label="a world model"):
    """Base class for world models in a recipe."""

    @abstractmethod
    def fit(self, transitions: Sequence[ObservedTransition], seed: int) -> WorldModel:
        """Fit the model to transitions, oldest first; a run starts without transitions.

        The same transitions and seed give the same model, which resume requires.
        """


def count_transitions(transitions: Sequence[ObservedTransition]) -> dict[tuple[History, str, Outcome], int]:
    """Return the count of each distinct transition, in order of first occurrence."""
    counts: dict[tuple[History, str, Outcome], int] = {}
    for transition in transitions:
        key = (transition.history, transition.action, transition.outcome)
        counts[key] = counts.get(key, 0) + 1
    return counts


def ensemble_disagreement(members: Floats) -> float:
    """Return the disagreement of an ensemble, from 0 to 1.

    The disagreement is the mean total variation distance between a member's distribution and the mean distribution. A
    member without data (zeros) has distance 1.

    >>> [ensemble_disagreement(np.array([[1.0, 0.0], other])) for other in ([1.0, 0.0], [0.0, 1.0])]
    [0.0, 0.5]
    >>> ensemble_disagreement(np.array([[1.0, 0.0], [0.0, 0.0]]))
    0.5

    Args:
        members: distribution of each member over the outcomes, shape [members, outcomes].
    """
    has_data = members.sum(1) > 0
    if not has_data.any():
        return 1.0
    distances = np.abs(members - members[has_data].mean(0)).sum(1) / 2
    return float(np.where(has_data, distances, 1.0).mean())
