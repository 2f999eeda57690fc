"""Metric history of a run for its guards: series, their changes between windows, and the findings of guards."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from marft.common.metrics import PREFIX
from marft.config.guards import GuardSettings

CHARACTER_KINDS = ("letters", "digits", "spaces", "breaks", "marks")  # kinds of characters, as in the metrics of agents
ROLLBACK_KEY = "guards/rolled_back_to"  # set in the row of the step before a rollback: step of the restored checkpoint
TRACKED_METRICS = (
    "reward",
    "reward_std",
    "accuracy",
    "validation_accuracy",
    "validation_reward",
    "entropy",
    "kl",
    "gradient_norm",
    "action_length",
    "base_surprisal",
    "dependence/inputs",
    "dependence/messages",
    "held_out_loss",
    "repetition",
    "other_script",
    "format_rate",
    "token_share",
    "message_tokens",
    *(f"characters/{kind}" for kind in CHARACTER_KINDS),
)
TERM_PREFIX = "rewards/"  # prefix of the team's reward terms
Floats = npt.NDArray[np.float64]
Row = Mapping[str, float | None]  # of metrics.jsonl, where null stands for a non-finite value


@dataclass(frozen=True, slots=True)
class Series:
    """Values of a metric with their steps, oldest first."""

    steps: Sequence[int]
    values: Floats

    def __len__(self) -> int:
        return len(self.values)

    def means(self, window: int) -> Floats:
        """Return the mean of each window of ``window`` values, by its first index; [N − window + 1]."""
        sums = np.concatenate([[0.0], np.cumsum(self.values)])
        means: Floats = (sums[window:] - sums[:-window]) / window
        return means

    def step_before_window(self, window: int) -> int:
        """Return the step before the newest window."""
        return self.steps[-window] - 1

    def noise_limit(self, min_errors: float, window: int) -> float:
        """Return ``min_errors`` standard errors of the difference between two windows' means, scatter · √(2/window)."""
        return min_errors * self.estimate_noise() * math.sqrt(2.0 / window)

    def estimate_noise(self) -> float:
        """Return the standard deviation of a value due to chance.

        It is the root mean square of the differences between neighbors, over √2. A trend has little influence (von
        Neumann 1941). The result is infinite for fewer than two values.
        """
        return float(np.sqrt(np.mean(np.diff(self.values) ** 2) / 2)) if len(self) > 1 else math.inf


class History:
    """Metric history without rolled-back steps."""

    def __init__(self) -> None:
        self.step = 0
        self._series: dict[str, tuple[list[int], list[float]]] = {}
        self._owners: dict[tuple[str, str], list[str]] = {}

    def add(self, row: Row) -> None:
        """Append the metrics of one step; ``row`` includes the step number."""
        self.step = int(row["step"] or 0)
        for name, value in row.items():
            if value is not None and math.isfinite(value) and _is_tracked(name):
                if name not in self._series:
                    self._add_series(name)
                steps, values = self._series[name]
                steps.append(self.step)
                values.append(float(value))

    def roll_back(self, step: int) -> None:
        """Delete the values after step ``step``."""
        for steps, values in self._series.values():
            num_values = bisect_right(steps, step)
            del steps[num_values:], values[num_values:]

    def series(self, name: str) -> Series:
        """Return the series of a metric, empty if absent."""
        steps, values = self._series.get(name, ([], []))
        return Series(steps, np.array(values))

    def current_series(self, name: str, min_values: int) -> Series | None:
        """Return a series with a value for the newest step and at least ``min_values`` values, else None."""
        steps, _ = self._series.get(name, ([], []))
        return self.series(name) if len(steps) >= min_values and steps[-1] == self.step else None

    def owners(self, prefix: str, metric: str) -> list[str]:
        """Return the names in ``prefix/<name>/metric``, for example agents."""
        return self._owners.get((prefix, metric), [])

    def current_by_owner(self, prefix: str, metric: str, min_values: int) -> Iterator[tuple[str, Series]]:
        """Yield the owners of a metric with a current series of at least ``min_values`` values."""
        for owner in self.owners(prefix, metric):
            if (series := self.current_series(f"{prefix}/{owner}/{metric}", min_values)) is not None:
                yield owner, series

    def rewarded_agents(self) -> set[str]:
        """Return the agents with a reward term of their own."""
        return {name.split("/")[1] for name in self._series if self._is_agent_term(name)}

    def reward_term_names(self) -> list[str]:
        """Return the metric names of the reward terms, for the team and for each agent."""
        return [name for name in self._series if name.startswith(TERM_PREFIX) or self._is_agent_term(name)]

    def _add_series(self, name: str) -> None:
        self._series[name] = [], []
        prefix, _, suffix = name.partition("/")
        owner, _, metric = suffix.partition("/")
        self._owners.setdefault((prefix, metric), []).append(owner)

    @staticmethod
    def _is_agent_term(name: str) -> bool:
        first, _, suffix = name.partition("/")
        return first == "agents" and suffix.partition("/")[2].startswith(TERM_PREFIX)


def _is_tracked(name: str) -> bool:
    first, _, suffix = name.partition("/")
    metrics = (name, suffix.partition("/")[2]) if first in PREFIX else (name,)
    return any(metric in TRACKED_METRICS or metric.startswith(TERM_PREFIX) for metric in metrics)


MIN_STANDARD_ERRORS = 5.0  # standard errors; the best of many windows is also high by chance
SOLVED_ACCURACY = 0.95  # accuracy with little room for improvement


def performance_series(history: History, min_values: int) -> tuple[str, Series, Floats] | None:
    """Return name, series and deviations for accuracy, or for reward if success is unknown.

    The deviations are the standard deviations between episodes at each step. The result is None if fewer than
    ``min_values`` values exist.
    """
    accuracy = history.current_series("accuracy", min_values)
    if accuracy is not None:
        return "accuracy", accuracy, np.sqrt(accuracy.values * (1.0 - accuracy.values))
    reward, deviations = history.current_series("reward", min_values), history.series("reward_std").values
    return ("reward", reward, deviations) if reward is not None and len(deviations) == len(reward) else None


def compute_effect_size(
    series: Series, deviations: Floats, before: int, window: int, min_errors: float = MIN_STANDARD_ERRORS
) -> float:
    """Return the effect size between the newest window and the window at index ``before``.

    It is (m₂ − m₁) / s, with s² = mean of the steps' variances + (m₂ − m₁)²/4, the variance of the episodes of both
    windows together.

    It is 0 if the difference is at most ``min_errors`` standard errors.
    """
    old, new = slice(before, before + window), slice(len(series) - window, len(series))
    difference = float(series.values[new].mean() - series.values[old].mean())
    if abs(difference) <= series.noise_limit(min_errors, window):
        return 0.0
    within = float(np.mean(np.concatenate([deviations[old], deviations[new]]) ** 2))
    return difference / math.sqrt(within + difference**2 / 4)


def has_improved(history: History, window: int, min_errors: float = 1.0) -> bool:
    """Return True if the team does better than in the first window, or solves over 95 % and has little to gain.

    If success is unknown, reward replaces accuracy. Real gains and reward hacking are then indistinguishable.

    Args:
        min_errors: required difference in standard errors.
    """
    performance = performance_series(history, 2 * window)
    if performance is None:
        return False
    name, series, deviations = performance
    return compute_effect_size(series, deviations, 0, window, min_errors) > 0 or (
        name == "accuracy" and float(series.values[-window:].mean()) > SOLVED_ACCURACY
    )


def has_better_accuracy(history: History, window: int) -> bool | None:
    """Return True if accuracy exceeds that of the first window by a standard error, or is above 95 %.

    The result is None if success is unknown, or known for less than two windows.
    """
    return None if history.current_series("accuracy", 2 * window) is None else has_improved(history, window)


class Drift(NamedTuple):
    """Means of a metric over the first and the newest window, with the step before the newest window."""

    owner: str
    first: float
    last: float
    last_good_step: int

    @property
    def increase(self) -> float:
        """Difference between the newest and the first mean."""
        return self.last - self.first


def find_drifts(history: History, metric: str, window: int) -> Iterator[Drift]:
    """Yield the significant drift of each agent with a current value and at least two windows of values.

    A drift is significant above ``MIN_STANDARD_ERRORS`` standard errors of the difference.
    """
    for owner, series in history.current_by_owner("agents", metric, 2 * window):
        first, last = float(series.values[:window].mean()), float(series.values[-window:].mean())
        if abs(last - first) > series.noise_limit(MIN_STANDARD_ERRORS, window):
            yield Drift(owner, first, last, series.step_before_window(window))


@dataclass(frozen=True, slots=True)
class GuardAlert:
    """Problem found by a guard in the newest steps.

    Args:
        message: the observation, its meaning, and the setting to change.
        last_good_step: the last step before the problem, as far as the guard can tell.
    """

    message: str
    last_good_step: int


@dataclass(frozen=True, slots=True)
class Guard:
    """Named pure function of the metric history.

    Args:
        name: also the key of the guard's threshold.
        check: returns a finding or None.
        is_collapse: True if the run may be rolled back for this finding.
    """

    name: str
    check: Callable[[History, GuardSettings], GuardAlert | None]
    is_collapse: bool = False
