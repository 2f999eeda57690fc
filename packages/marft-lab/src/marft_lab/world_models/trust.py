"""Trust in a world model: a sequential test of predictions on real episodes, before the model learns from them.

For each real step the model gives every next observation x a probability p(x). For a correct model, ``excess = Σ p(x)²
− p(true)`` has mean 0, for any randomness of the environment. A confident wrong prediction has excess 1. For the
rewards of an episode, ``excess = (|Σ (r − E r)| − Σ E|r − E r|) / width`` has a mean of at most 0. With individual
rewards of agents, all three terms are sums over the team and the agents.

A test bets that the mean excess is above a bound (:mod:`marft_lab.anytime_test`). Its capital is reset to 1 whenever
it falls below 1. This is a change detector with at most one false alarm per 1/alarm observations on average (an
e-detector of CUSUM's form: Shin et al. 2022). An alarm disables the model. The reverse test on later predictions
enables the model again. OUR READING: the choice of losses, and the return of a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from marft_lab.anytime_test import BET_FRACTIONS, log_capital, log_factors
from marft_lab.world_models.interface import ObservedTransition, Prediction, WorldModel

ZERO_CAPITAL = tuple(0.0 for _ in BET_FRACTIONS)
LogCapital = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PredictionErrors:
    """A model's prediction errors on a real episode.

    The excess values are those of each sufficiently certain step, and of their rewards together, each in [−1, 1].

    Args:
        steps: excess of each certain step.
        reward: excess of the rewards.
        certain_fraction: fraction of certain steps.
        missed: mean of 1 − p(true) over certain steps.
        reward_error: |Σ (r − E r)| over certain steps, summed over the team and all agents, in the environment's unit.
    """

    steps: tuple[float, ...]
    reward: float
    certain_fraction: float
    missed: float
    reward_error: float


@dataclass(frozen=True, slots=True)
class Trust:
    """Trust in a model: enabled or not, with the log capital of each bet on steps and on rewards.

    The bets are against the model while the model is enabled, and for the model while it is disabled.
    """

    enabled: bool = True
    steps: LogCapital = ZERO_CAPITAL
    rewards: LogCapital = ZERO_CAPITAL

    def update(self, errors: Sequence[PredictionErrors], bound: float, alarm: float) -> Trust:
        """Return the trust after more real episodes.

        Args:
            errors: prediction errors of the episodes.
            bound: tolerated mean excess.
            alarm: false alarm rate: at most one false alarm per 1 / alarm observations, on average.
        """
        trust, threshold = self, float(np.log(1 / alarm))
        for episode in errors:
            steps = _update_capital(trust.steps, episode.steps, bound, against=trust.enabled)
            episode_rewards = [episode.reward] if episode.steps else []
            rewards = _update_capital(trust.rewards, episode_rewards, bound, against=trust.enabled)
            trust = replace(trust, steps=steps, rewards=rewards)
            rejected = [float(log_capital(np.array(logs))) >= threshold for logs in (trust.steps, trust.rewards)]
            if any(rejected) if trust.enabled else all(rejected):
                trust = Trust(enabled=not trust.enabled)
        return trust


def _update_capital(logs: LogCapital, excess: Sequence[float], bound: float, *, against: bool) -> LogCapital:
    """Return the log capital of each bet after more observations; capital below 1 is reset to 1."""
    capital = np.array(logs)
    for value in excess:
        x, mean = (value + 1) / 2, (bound + 1) / 2
        factors = log_factors(x, mean) if against else log_factors(1 - x, 1 - mean)
        capital = np.maximum(capital, 0.0) + factors
    return tuple(capital.tolist())


def compute_errors(
    model: WorldModel, transitions: Sequence[ObservedTransition], cutoff: float, widths: Mapping[str, float]
) -> PredictionErrors:
    """Return a model's prediction errors on a real episode's steps.

    Args:
        model: fitted world model.
        transitions: transitions of the episode.
        cutoff: uncertainty above which a step is skipped, because imagined episodes end there, too.
        widths: range of returns of the team ("") and of each agent; 0 for constant returns.
    """
    steps, missed = list[float](), list[float]()
    reward_errors, expected = dict.fromkeys(widths, 0.0), 0.0
    for transition in transitions:
        prediction = model.predict(transition.history, transition.action)
        if not prediction.outcomes or prediction.uncertainty > cutoff:
            continue
        excess, miss = step_excess(prediction, transition.outcome.next_observation)
        steps.append(excess)
        missed.append(miss)
        for role in widths:
            reward_errors[role] += transition.outcome.reward_for(role) - prediction.reward(role)
            expected += prediction.reward_deviation(role)
    error, width = sum(map(abs, reward_errors.values())), sum(widths.values())
    reward = _clip((error - expected) / width) if width else float(error > expected + 1e-9)
    return PredictionErrors(
        tuple(steps),
        reward,
        len(steps) / len(transitions) if transitions else 0.0,
        float(np.mean(missed)) if missed else 0.0,
        error,
    )


def step_excess(prediction: Prediction, next_observation: str) -> tuple[float, float]:
    """Return a step's excess and missed probability: ``Σ p² − p(true)``, ``1 − p(true)``."""
    probabilities = prediction.next_probabilities
    true = probabilities.get(next_observation, 0.0)
    return _clip(sum(p * p for p in probabilities.values()) - true), 1.0 - true


def _clip(value: float) -> float:
    return float(np.clip(value, -1.0, 1.0))
