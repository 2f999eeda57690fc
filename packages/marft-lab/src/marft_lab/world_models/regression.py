"""Regression-based world model, which generalizes: ridge regressions on hashed words predict observed outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from zlib import crc32

import numpy as np
from pydantic import Field

from marft.common.seeds import generator
from marft.config.settings import Positive, SmallCount
from marft_lab.world_models.interface import (
    FittableModel,
    Floats,
    History,
    ObservedTransition,
    Outcome,
    Prediction,
    count_transitions,
    ensemble_disagreement,
)

BucketCount = Annotated[int, Field(ge=16, le=4096)]


class RegressionModel(FittableModel):
    """World model for environments with many distinct texts.

    The prediction is the observed outcome nearest to the output of a ridge regression on hashed words. The uncertainty
    is the disagreement of an ensemble on this outcome.

    Members are fitted to bootstraps with Poisson(1) weights. Their features are the words of a history with their
    positions, and the words of the last observation combined with the action. The target vector of an outcome has the
    hashed words of the next observation, the rewards, and a flag for the end. The ensemble cannot detect errors shared
    by all members; the check on real episodes detects them.
    """

    members: SmallCount = Field(default=8, description="number of ensemble members")
    dimensions: BucketCount = Field(default=256, description="number of hash buckets for words")
    ridge: Positive = Field(default=1.0, description="L2 penalty on the regression weights")

    def fit(self, transitions: Sequence[ObservedTransition], seed: int) -> FittedRegressionModel:
        """Fit the members to transitions."""
        counts = count_transitions(transitions)
        outcomes = list(dict.fromkeys(outcome for _, _, outcome in counts))
        if not outcomes:
            return FittedRegressionModel(self.dimensions, (), np.zeros((0, 0)), np.zeros((0, self.dimensions, 0)))
        table = self._target_vectors(outcomes)  # [O, K]
        indices = {outcome: number for number, outcome in enumerate(outcomes)}
        x = np.array([build_features(history, action, self.dimensions) for history, action, _ in counts])  # [N, D]
        y = table[[indices[outcome] for _, _, outcome in counts]]  # [N, K]
        frequencies = np.array(list(counts.values()), np.float64)
        # [M, N]
        bootstrap_weights = generator(seed, "regression").poisson(frequencies, (self.members, len(frequencies)))
        return FittedRegressionModel(
            self.dimensions,
            tuple(outcomes),
            table,
            np.array([solve_ridge(x, y, row, self.ridge) for row in bootstrap_weights]),
        )

    def _target_vectors(self, outcomes: Sequence[Outcome]) -> Floats:
        """Return the target vectors of outcomes, shape [outcomes, targets], with rewards scaled to [0, 1]."""
        seen = np.array(
            [hash_features(position_words(outcome.next_observation), self.dimensions // 2) for outcome in outcomes]
        )
        roles = sorted({role for outcome in outcomes for role, _ in outcome.agent_rewards})
        agent_rewards = [dict(outcome.agent_rewards) for outcome in outcomes]
        rewards = np.array(
            [
                [outcome.reward, *(role_rewards.get(role, 0.0) for role in roles)]
                for outcome, role_rewards in zip(outcomes, agent_rewards, strict=True)
            ]
        )
        low, width = rewards.min(0), np.ptp(rewards, axis=0)
        ends = np.array([[float(not outcome.next_observation)] for outcome in outcomes])
        return np.concatenate([seen, (rewards - low) / np.where(width > 0, width, 1.0), ends], axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class FittedRegressionModel:
    """Fitted regression model: members' weights, shape [M, D, K], and observed outcomes with targets, shape [O, K]."""

    dimensions: int
    outcomes: tuple[Outcome, ...]
    table: Floats
    weights: Floats

    def predict(self, history: History, action: str) -> Prediction:
        """Return the outcomes named by the members, with the fraction of votes as probability."""
        if not self.outcomes:
            return Prediction()
        expected = build_features(history, action, self.dimensions) @ self.weights  # [M, K]
        distances = np.square(expected[:, None] - self.table).sum(-1)  # [M, O]
        votes = np.eye(len(self.outcomes))[np.round(distances, 9).argmin(1)]
        voted = np.flatnonzero(votes.any(0))
        return Prediction(
            tuple(self.outcomes[number] for number in voted),
            votes.mean(0)[voted],
            ensemble_disagreement(votes[:, voted]),
        )


def solve_ridge(x: Floats, y: Floats, weights: np.ndarray, penalty: float) -> Floats:
    """Return the weighted ridge solution ``argmin_W Σ_n w_n ‖x_n W − y_n‖² + penalty ‖W‖²``, shape [D, K].

    Args:
        x: features, shape [N, D].
        y: targets, shape [N, K].
        weights: weights of the rows, shape [N].
        penalty: L2 penalty.
    """
    weighted = x * weights[:, None]
    solution: Floats = np.linalg.solve(x.T @ weighted + penalty * np.eye(x.shape[1]), weighted.T @ y)
    return solution


def build_features(history: History, action: str, dimensions: int) -> Floats:
    """Return the features of a history and an action, shape [dimensions].

    The features are the words of each observation with age and position, earlier actions, and words of the last
    observation combined with the action.
    """
    names = [
        f"{age} {word}" for age, text in enumerate(reversed(history.observations)) for word in position_words(text)
    ]
    names += [f"done {age} {text}" for age, text in enumerate(reversed(history.actions))]
    combined = [f"{word} then {action}" for word in position_words(history.observations[-1])]
    return hash_features([*names, *combined, f"then {action}"], dimensions)


def position_words(text: str) -> list[str]:
    """Return the words of a text, each with its position.

    >>> position_words("SF FG")
    ['0 SF', '1 FG']
    """
    return [f"{position} {word}" for position, word in enumerate(text.split())]


def hash_features(names: Sequence[str], dimensions: int) -> Floats:
    """Return hashed features as a vector of length 1 or 0, shape [dimensions].

    Each feature adds 1 or −1, by one bit of its hash, at an index from the remaining bits (Weinberger et al. 2009).
    """
    vector = np.zeros(dimensions)
    for name in names:
        code = crc32(name.encode())
        vector[(code >> 1) % dimensions] += 1.0 if code & 1 else -1.0
    length = float(np.linalg.norm(vector))
    return vector / length if length else vector
