"""Metric history of a run for its guards, one series for each metric."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from marft.common.metrics import PREFIX

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

    def rewarded_agents(self) -> set[str]:
        """Return the agents with a reward term of their own."""
        return {name.split("/")[1] for name in self._series if self._is_agent_term(name)}

    def terms(self) -> list[str]:
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
    return (
        name in TRACKED_METRICS
        or name.startswith(TERM_PREFIX)
        or (first in PREFIX and _is_owner_metric(suffix.partition("/")[2]))
    )


def _is_owner_metric(metric: str) -> bool:
    return metric in TRACKED_METRICS or metric.startswith(TERM_PREFIX)
