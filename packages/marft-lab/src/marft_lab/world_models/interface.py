"""What a world model is asked, what it is told, and what it answers.

Texts stand for what is observed and done, so that one model may look them up and another one read them.
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
    """What the last observations of an episode were, oldest first, and what the team did after each but the last; both
    as one text each (:mod:`marft_lab.world_models.words`).

    >>> Situation(("You stand at S.",)).observed
    ('You stand at S.',)
    """

    observed: tuple[str, ...]
    done: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a joint action: the next observation, "" where it was the end, and what the step earned."""

    following: str
    reward: float
    agent_rewards: tuple[tuple[str, float], ...] = ()
    success: bool | None = None  # at the end, where the environment can tell

    def earned(self, role: str = "") -> float:
        """What the team earned, or an agent for itself."""
        return dict(self.agent_rewards).get(role, 0.0) if role else self.reward


@dataclass(frozen=True, slots=True)
class Lived:
    """One environment step of a real episode. ``first`` where the episode began with it."""

    situation: Situation
    action: str
    outcome: Outcome
    first: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """What may come of a joint action.

    Args:
        outcomes: that are possible; () where the model knows nothing of it.
        probabilities: of each, [O]; they add up to 1.
        uncertainty: how far the model is from knowing that, from 0 to 1; chance in the world itself is none.
    """

    outcomes: Sequence[Outcome] = ()
    probabilities: Floats = field(default_factory=lambda: np.zeros(0))
    uncertainty: float = 1.0

    def reward(self, role: str = "") -> float:
        """The team's, or an agent's own, as expected."""
        both = zip(self.probabilities, self.outcomes, strict=True)
        return float(sum(p * outcome.earned(role) for p, outcome in both))

    def spread(self, role: str = "") -> float:
        """How far that reward is from what is expected, as expected: ``Σ p |r − E r|``."""
        mean = self.reward(role)
        both = zip(self.probabilities, self.outcomes, strict=True)
        return float(sum(p * abs(outcome.earned(role) - mean) for p, outcome in both))

    @property
    def ways(self) -> Mapping[str, float]:
        """The probability of each next observation, "" for the end."""
        found: dict[str, float] = {}
        for p, outcome in zip(self.probabilities, self.outcomes, strict=True):
            found[outcome.following] = found.get(outcome.following, 0.0) + float(p)
        return found


class WorldModel(Protocol):
    """A model as it was fitted."""

    def predict(self, situation: Situation, action: str) -> Prediction:
        """What may come of what the team does. The same question has the same answer."""
        ...


class Fits(Protocol):
    """A world model as a recipe names it."""

    def fit(self, lived: Sequence[Lived], seed: int) -> WorldModel:
        """Fit it to what was lived, oldest first; to nothing at a run's beginning. The same steps and seed make the
        same model: that is how a run goes on."""
        ...


def tallied(lived: Sequence[Lived]) -> dict[tuple[Situation, str, Outcome], int]:
    """How often each step was lived, in the order in which they first were."""
    counts: dict[tuple[Situation, str, Outcome], int] = {}
    for one in lived:
        key = (one.situation, one.action, one.outcome)
        counts[key] = counts.get(key, 0) + 1
    return counts


def disagreement(members: Floats) -> float:
    """How far an ensemble is from one mind: the mean distance of a member's distribution from that of them all, in
    total variation. A member that knows nothing (zeros) is as far away as can be.

    >>> disagreement(np.array([[1.0, 0.0], [1.0, 0.0]])), disagreement(np.array([[1.0, 0.0], [0.0, 1.0]]))
    (0.0, 0.5)
    >>> disagreement(np.array([[1.0, 0.0], [0.0, 0.0]]))
    0.5

    Args:
        members: what each of M says of O outcomes, [M, O].
    """
    knows = members.sum(1) > 0
    if not knows.any():
        return 1.0
    distances = np.abs(members - members[knows].mean(0)).sum(1) / 2
    return float(np.where(knows, distances, 1.0).mean())
