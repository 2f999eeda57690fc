"""Sequential test of paired score differences, with verdict promote, stop or hold after each difference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from marft_lab.anytime_test import BET_FRACTIONS, TESTED_MEANS, Floats, log_capital, log_factors, p_value
from marft_lab.shadow.settings import ShadowSettings

Decision = Literal["promote", "hold", "stop"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict after some sessions, for score differences shadow − served.

    Args:
        word: ``promote`` if the mean difference is shown to be above −margin, ``stop`` if below, else ``hold``.
        final: True if later sessions cannot change the verdict.
        sessions: number of compared sessions.
        mean: mean difference; None without sessions.
        lower: lower bound of the true mean, with confidence ``1 − false_promotions`` simultaneously at all times.
        upper: upper bound of the true mean, with confidence ``1 − false_stops`` simultaneously at all times.
        p_better: anytime-valid p-value of the hypothesis that the true mean is at most −margin.
        p_worse: anytime-valid p-value of the hypothesis that the true mean is at least −margin.
    """

    word: Decision
    final: bool
    sessions: int
    mean: float | None
    lower: float
    upper: float
    p_better: float
    p_worse: float


class SequentialTest:
    """Sequential test of score differences.

    Two tests have the hypotheses ``mean ≤ −margin`` and ``mean ≥ −margin``, each with its own error rate. A decision is
    final, because later sessions are no longer needed.
    """

    def __init__(self, settings: ShadowSettings) -> None:
        self.settings, self.width = settings, settings.max_score - settings.min_score
        limit = (1 - settings.margin / self.width) / 2  # limit on the mean of the scaled differences in [0, 1]
        self._means = np.unique(np.append(TESTED_MEANS, limit))  # [M]
        self._limit_index = int(np.searchsorted(self._means, limit))
        # [M, G] log capital against means of at most each value
        self._up = np.zeros((len(self._means), len(BET_FRACTIONS)))
        self._down = np.zeros_like(self._up)  # log capital against means of at least each value
        self._max_up, self._max_down = np.zeros(len(self._means)), np.zeros(len(self._means))  # [M]
        self._sum, self.sessions, self.word = 0.0, 0, "hold"

    def add(self, difference: float) -> Verdict:
        """Add a score difference, shadow − served, with both scores between ``min_score`` and ``max_score``."""
        assert abs(difference) <= self.width * (1 + 1e-9), "scores are within their bounds"
        if not self.is_final:
            x = min(1.0, max(0.0, (difference / self.width + 1) / 2))
            self._up += log_factors(x, self._means)
            self._down += log_factors(1 - x, 1 - self._means)
            np.maximum(self._max_up, log_capital(self._up), out=self._max_up)
            np.maximum(self._max_down, log_capital(self._down), out=self._max_down)
            self._sum += difference
            self.sessions += 1
            self.word = self._decide()
        return self.verdict

    @property
    def is_final(self) -> bool:
        """True if later sessions cannot change the verdict."""
        return self.word != "hold" or self.sessions >= self.settings.max_sessions

    @property
    def verdict(self) -> Verdict:
        """Current verdict."""
        return Verdict(
            word=self.word,  # type: ignore[arg-type]
            final=self.is_final,
            sessions=self.sessions,
            mean=self._sum / self.sessions if self.sessions else None,
            lower=self._to_difference(
                self._rejected_means(self._max_up, self.settings.false_promotions).max(initial=0.0)
            ),
            upper=self._to_difference(self._rejected_means(self._max_down, self.settings.false_stops).min(initial=1.0)),
            p_better=p_value(self._max_up[self._limit_index]),
            p_worse=p_value(self._max_down[self._limit_index]),
        )

    def _decide(self) -> Decision:
        if self.sessions < self.settings.min_sessions:
            return "hold"
        if self._max_down[self._limit_index] >= math.log(1 / self.settings.false_stops):
            return "stop"
        return "promote" if self._max_up[self._limit_index] >= math.log(1 / self.settings.false_promotions) else "hold"

    def _rejected_means(self, max_capital: Floats, rate: float) -> Floats:
        """Return the rejected means."""
        rejected: Floats = self._means[max_capital >= math.log(1 / rate)]
        return rejected

    def _to_difference(self, mean: float) -> float:
        """Convert a mean of scaled differences to a score difference."""
        return float((2 * mean - 1) * self.width)
