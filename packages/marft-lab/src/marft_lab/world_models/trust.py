"""Trust in a world model: a sequential test of predictions on real episodes, before the model learns from them.

For each real step the model gives every next observation x a probability p(x). For a correct model, ``excess = Σ p(x)²
− p(true)`` has mean 0, for any randomness of the environment. A confident wrong prediction has excess 1. For the
rewards of an episode, ``excess = (|Σ (r − E r)| − Σ E|r − E r|) / width`` has a mean of at most 0. With individual
rewards of agents, all three terms are sums over the team and the agents.

A test bets that the mean excess is above a bound (:mod:`marft.common.betting`). Its capital is reset to 1 whenever it
falls below 1. This is a change detector with at most one false alarm per 1/alarm observations on average (an e-detector
of CUSUM's form: Shin et al. 2022). An alarm disables the model. The reverse test on later predictions enables the model
again. OUR READING: the choice of losses, and the return of a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from marft.common.betting import BETS, log_capital, log_factors
from marft_lab.world_models.interface import Lived, Prediction, WorldModel

NOTHING = tuple(0.0 for _ in BETS)
Logs = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Heard:
    """A model's prediction errors on a real episode.

    The excess values are those of each sufficiently certain step, and of their rewards together, each in [−1, 1].

    Args:
        steps: excess of each certain step.
        reward: excess of the rewards.
        known: fraction of certain steps.
        missed: mean of 1 − p(true) over certain steps.
        reward_error: |Σ (r − E r)| over certain steps, summed over the team and all agents, in the environment's unit.
    """

    steps: tuple[float, ...]
    reward: float
    known: float
    missed: float
    reward_error: float


@dataclass(frozen=True, slots=True)
class Trust:
    """Trust in a model: enabled or not, with the log capital of each bet on steps and on rewards.

    The bets are against the model while the model is enabled, and for the model while it is disabled.
    """

    on: bool = True
    steps: Logs = NOTHING
    rewards: Logs = NOTHING

    def after(self, heard: Sequence[Heard], bound: float, alarm: float) -> Trust:
        """Return the trust after more real episodes.

        Args:
            heard: prediction errors of the episodes.
            bound: tolerated mean excess.
            alarm: false alarm rate: at most one false alarm per 1 / alarm observations, on average.
        """
        trust, enough = self, float(np.log(1 / alarm))
        for episode in heard:
            trust = replace(
                trust,
                steps=_bet(trust.steps, episode.steps, bound, against=trust.on),
                rewards=_bet(trust.rewards, [episode.reward] if episode.steps else [], bound, against=trust.on),
            )
            won = [float(log_capital(np.array(logs))) >= enough for logs in (trust.steps, trust.rewards)]
            if any(won) if trust.on else all(won):
                trust = Trust(on=not trust.on)
        return trust


def _bet(logs: Logs, excess: Sequence[float], bound: float, *, against: bool) -> Logs:
    """Return the log capital of each bet after more observations; capital below 1 is reset to 1."""
    capital = np.array(logs)
    for one in excess:
        x, mean = (one + 1) / 2, (bound + 1) / 2
        factors = log_factors(x, mean) if against else log_factors(1 - x, 1 - mean)
        capital = np.maximum(capital, 0.0) + factors
    return tuple(capital.tolist())


def heard_of(model: WorldModel, lived: Sequence[Lived], cutoff: float, widths: Mapping[str, float]) -> Heard:
    """Return a model's prediction errors on a real episode's steps.

    Args:
        model: fitted world model.
        lived: transitions of the episode.
        cutoff: uncertainty above which a step is skipped, because imagined episodes end there, too.
        widths: range of returns of the team ("") and of each agent; 0 for constant returns.
    """
    steps, missed = list[float](), list[float]()
    off, expected = dict.fromkeys(widths, 0.0), 0.0
    for one in lived:
        said = model.predict(one.situation, one.action)
        if not said.outcomes or said.uncertainty > cutoff:
            continue
        excess, miss = of_step(said, one.outcome.following)
        steps.append(excess)
        missed.append(miss)
        for role in widths:
            off[role] += one.outcome.earned(role) - said.reward(role)
            expected += said.spread(role)
    error, width = sum(map(abs, off.values())), sum(widths.values())
    reward = _clipped((error - expected) / width) if width else float(error > expected + 1e-9)
    return Heard(
        tuple(steps), reward, len(steps) / len(lived) if lived else 0.0, float(np.mean(missed)) if missed else 0.0,
        error,
    )  # fmt: skip


def of_step(said: Prediction, following: str) -> tuple[float, float]:
    """Return a step's excess and missed probability: ``Σ p² − p(true)``, ``1 − p(true)``."""
    ways = said.ways
    true = ways.get(following, 0.0)
    return _clipped(sum(p * p for p in ways.values()) - true), 1.0 - true


def _clipped(value: float) -> float:
    return float(np.clip(value, -1.0, 1.0))
