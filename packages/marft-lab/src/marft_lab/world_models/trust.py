"""Whether a world model is believed: what it says of real episodes before it has learned from them.

For each real step the model gives every next observation x a probability p(x). If it is right, the true one is missed
as often as the model itself expects: ``excess = Σ p(x)² − p(true)`` has mean 0, however much chance the world has in
it, and it is 1 where a sure model is wrong. For the rewards of an episode
``excess = (|Σ (r − E r)| − Σ E|r − E r|) / width`` has a mean of at most 0; where agents have rewards of their own,
all three are sums over the team's and theirs.

A test bets that the mean excess is above a bound (:mod:`marft.common.betting`), and begins anew whenever its capital
falls below 1: a detector of changes that sounds falsely once in 1/alarm observations at most, on average (an
e-detector of CUSUM's form: Shin et al. 2022). A model that it sounds for is switched off; the same test the other way
round, on what it says from then on, switches it on again. (Which losses are bet on, and that a model may come back, is
our own reading of what a model-based learner should watch.)
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
    """What a model said of one real episode: the excess of each step that it knew enough of, and of their rewards
    together, each in [−1, 1].

    Args:
        known: share of the steps that it knew enough of.
        missed: 1 − p(true), mean over those.
        reward_error: |Σ (r − E r)| over those, the team's and all agents' own together, in the environment's measure.
    """

    steps: tuple[float, ...]
    reward: float
    known: float
    missed: float
    reward_error: float


@dataclass(frozen=True, slots=True)
class Trust:
    """Whether the model is on, and the logarithm of what each bet has: on steps and on rewards, against it while it
    is on, for it while it is off."""

    on: bool = True
    steps: Logs = NOTHING
    rewards: Logs = NOTHING

    def after(self, heard: Sequence[Heard], bound: float, alarm: float) -> Trust:
        """Trust after some more real episodes.

        Args:
            bound: the mean excess up to which the model is good enough.
            alarm: observations per false alarm are at least one over this, on average.
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
    """What each bet has after some more observations; one that has lost begins anew with 1."""
    capital = np.array(logs)
    for one in excess:
        x, mean = (one + 1) / 2, (bound + 1) / 2
        factors = log_factors(x, mean) if against else log_factors(1 - x, 1 - mean)
        capital = np.maximum(capital, 0.0) + factors
    return tuple(capital.tolist())


def heard_of(model: WorldModel, lived: Sequence[Lived], cutoff: float, widths: Mapping[str, float]) -> Heard:
    """What a model says of the steps of one real episode.

    Args:
        cutoff: uncertainty above which it is not asked: there nothing is imagined either.
        widths: of the returns of real episodes, of the team ("") and of each agent's own; 0 where all are the same.
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
    """The excess of one step, and how much of the probability missed what came: ``Σ p² − p(true)``, ``1 − p(true)``."""
    ways = said.ways
    true = ways.get(following, 0.0)
    return _clipped(sum(p * p for p in ways.values()) - true), 1.0 - true


def _clipped(value: float) -> float:
    return float(np.clip(value, -1.0, 1.0))
