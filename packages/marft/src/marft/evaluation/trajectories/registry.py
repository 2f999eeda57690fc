"""All joint-trajectory metrics, by their names in the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from marft.common.types import Episode
from marft.evaluation.trajectories.adherence import role_adherence
from marft.evaluation.trajectories.cost import (
    cost_money,
    cost_seconds,
    cost_tokens,
    critical_path_seconds,
    message_tokens,
)
from marft.evaluation.trajectories.efficiency import step_efficiency
from marft.evaluation.trajectories.handoffs import handoff_loop_rate
from marft.evaluation.trajectories.outcome import accuracy, reward
from marft.evaluation.trajectories.progress import goal_progress, trajectory_score
from marft.evaluation.trajectories.ratio import TEAM, Ratio, RatioFunction
from marft.evaluation.trajectories.repeated_questions import re_ask_rate
from marft.evaluation.trajectories.tool_use import tool_error_rate, tool_selection_accuracy

METRICS: Mapping[str, RatioFunction] = {
    measure.__name__: measure
    for measure in (
        accuracy, reward, goal_progress, trajectory_score, step_efficiency, tool_selection_accuracy, tool_error_rate,
        handoff_loop_rate, re_ask_rate, role_adherence, message_tokens, cost_tokens, cost_seconds, cost_money,
        critical_path_seconds,
    )
}  # fmt: skip


def compute_ratios(episode: Episode, roles: Sequence[str]) -> dict[str, Ratio]:
    """Return every metric of an episode by its name in ``metrics.jsonl``, for the team and under ``agents/<role>/``."""
    return {
        (name if role == TEAM else f"agents/{role}/{name}"): ratio
        for name, measure in METRICS.items()
        for role, ratio in measure(episode, roles).items()
    }


def trajectory_metrics(episodes: Iterable[Episode], roles: Sequence[str]) -> dict[str, float]:
    """Return trajectory metrics for an episode batch."""
    return aggregate_ratios(compute_ratios(episode, roles) for episode in episodes)


def aggregate_ratios(episodes: Iterable[Mapping[str, Ratio]]) -> dict[str, float]:
    """Aggregate each metric over several episodes, ``Σ numerator / Σ denominator``.

    A metric with a denominator of 0 is absent.
    """
    parts: dict[str, list[Ratio]] = {}
    for episode in episodes:
        for name, ratio in episode.items():
            parts.setdefault(name, []).append(ratio)
    totals = {name: Ratio.total(ratios).value for name, ratios in parts.items()}
    return {name: value for name, value in totals.items() if value is not None}
