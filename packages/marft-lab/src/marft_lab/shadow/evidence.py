"""What paired differences show so far: promote, stop, or hold. It may be asked after every one of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from marft.common.betting import BETS, MEANS, Floats, log_capital, log_factors, p_value
from marft_lab.shadow.settings import ShadowSettings

Word = Literal["promote", "hold", "stop"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known after some sessions. Differences are of scores, shadow − served.

    Args:
        word: ``promote``: its mean difference is more than −margin; ``stop``: it is less; ``hold``: neither is shown.
        final: nothing that comes later changes it.
        sessions: that were compared.
        mean: of their differences; None without any.
        lower: above which the true mean is, with confidence ``1 − false_promotions`` at all times together.
        upper: below which it is, with confidence ``1 − false_stops`` at all times together.
        p_better: that it would look as much better by chance, were it not better than −margin, however often one looks.
        p_worse: the same, were it not worse.
    """

    word: Word
    final: bool
    sessions: int
    mean: float | None
    lower: float
    upper: float
    p_better: float
    p_worse: float


class Evidence:
    """Takes differences one by one.

    The two tests are of ``mean ≤ −margin`` and of ``mean ≥ −margin``, each at its own rate. Once one has been won it
    stays won: sessions that come later were not asked for.
    """

    def __init__(self, settings: ShadowSettings) -> None:
        self.settings, self.width = settings, settings.high - settings.low
        limit = (1 - settings.margin / self.width) / 2  # where the mean of what is bet on is told from
        self._means = np.unique(np.append(MEANS, limit))  # [M]
        self._at = int(np.searchsorted(self._means, limit))
        self._up = np.zeros((len(self._means), len(BETS)))  # [M, G]: against means that are at most so large
        self._down = np.zeros_like(self._up)  # against means that are at least so large
        self._most_up, self._most_down = np.zeros(len(self._means)), np.zeros(len(self._means))  # [M]
        self._sum, self.sessions, self.word = 0.0, 0, "hold"

    def add(self, difference: float) -> Verdict:
        """Take a difference of scores, shadow − served, each between ``low`` and ``high``."""
        assert abs(difference) <= self.width * (1 + 1e-9), "scores are within their bounds"
        if not self.final:
            x = min(1.0, max(0.0, (difference / self.width + 1) / 2))
            self._up += log_factors(x, self._means)
            self._down += log_factors(1 - x, 1 - self._means)
            np.maximum(self._most_up, log_capital(self._up), out=self._most_up)
            np.maximum(self._most_down, log_capital(self._down), out=self._most_down)
            self._sum += difference
            self.sessions += 1
            self.word = self._word()
        return self.verdict

    @property
    def final(self) -> bool:
        """Whether nothing that comes later changes the verdict."""
        return self.word != "hold" or self.sessions >= self.settings.most

    @property
    def verdict(self) -> Verdict:
        """What is known so far."""
        return Verdict(
            word=self.word,  # type: ignore[arg-type]
            final=self.final,
            sessions=self.sessions,
            mean=self._sum / self.sessions if self.sessions else None,
            lower=self._scored(self._beaten(self._most_up, self.settings.false_promotions).max(initial=0.0)),
            upper=self._scored(self._beaten(self._most_down, self.settings.false_stops).min(initial=1.0)),
            p_better=p_value(self._most_up[self._at]),
            p_worse=p_value(self._most_down[self._at]),
        )

    def _word(self) -> Word:
        if self.sessions < self.settings.least:
            return "hold"
        if self._most_down[self._at] >= math.log(1 / self.settings.false_stops):
            return "stop"
        return "promote" if self._most_up[self._at] >= math.log(1 / self.settings.false_promotions) else "hold"

    def _beaten(self, most: Floats, rate: float) -> Floats:
        """The means that were bet against with success."""
        beaten: Floats = self._means[most >= math.log(1 / rate)]
        return beaten

    def _scored(self, mean: float) -> float:
        """A mean of what is bet on as a difference of scores."""
        return float((2 * mean - 1) * self.width)
