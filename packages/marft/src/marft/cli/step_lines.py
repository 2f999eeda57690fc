"""Terminal lines for a training step: the main metrics, in columns, limited to the available width."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from marft.common.metrics import catalog_metric
from marft.common.texts import single_line
from marft.evaluation.guards.history import ROLLBACK_KEY

TEAM_METRICS = (
    "sft/loss", "sft/held_out_loss",
    "reward", "reward_std", "accuracy", "success_unknown", "validation_accuracy", "validation_reward", "policy_loss",
    "critic/loss", "critic/explained_variance", "zero_advantage_fraction", "kl_stops", "episodes_dropped",
    "workers_lost", "tasks_excluded", "ranks_lost", "engine_restarts",
    "truncated_tokens", "skipped_updates", "reverted_steps", "remote_cost", "judge/cost", "episodes_per_second",
    "async/learner_idle_seconds", "seconds",
)  # fmt: skip
AGENT_METRICS = (
    "sft/loss", "sft/held_out_loss", "action_length", "entropy", "kl", "clip_fraction", "gradient_share",
    "truncation_rate", "policy_lag",
)  # fmt: skip
DROPPABLE_METRICS = (
    "policy_loss",
    "critic/loss",
    "zero_advantage_fraction",
    "episodes_per_second",
    "critic/explained_variance",
    "reward_std",
)  # metrics dropped first if the line is too wide
MAX_LINE_WIDTH = 100  # maximum width of an agent's line, in columns
ROLE_WIDTHS = (12, 16)  # minimum and maximum width of a role, in columns
GUARD_PREFIX = "guards/"


def format_line(metrics: Mapping[str, float], names: Sequence[str], prefix: str = "") -> str:
    """Return the informative metrics in one line: ``reward 0.64  accuracy 0.64 …``.

    Args:
        prefix: prefix of the metrics' names: ``agents/<role>/``.
    """
    return "  ".join(format_metric(metrics, name, prefix) for name in names if format_metric(metrics, name, prefix))


def format_metric(metrics: Mapping[str, float], name: str, prefix: str = "") -> str:
    """Return one metric as text, ``accuracy 0.64``; "" if missing or uninformative."""
    metric, value = catalog_metric(name), metrics.get(f"{prefix}{name}", math.nan)
    if math.isnan(value) or (value == 0 and metric.hide_zero):
        return ""
    text = metric.format_value(value)
    return {
        "reward_std": f"±{text}",
        "async/learner_idle_seconds": f"{metric.label} {text} s",
        "seconds": f"{text} s",
    }.get(name, f"{metric.label} {text}")


def format_team_line(metrics: Mapping[str, float], width: int) -> str:
    """Return the team's line with raised guards, without its least important metrics if wider than ``width``."""
    raised = [f"guard {name.removeprefix(GUARD_PREFIX)}" for name in metrics if _is_raised(name)]
    names = list(TEAM_METRICS)
    for least in ("", *DROPPABLE_METRICS):
        names = [name for name in names if name != least]
        text = "  ".join(filter(None, [format_line(metrics, names), *raised]))
        if len(text) <= width:
            break
    return text


class AgentLineFormatter:
    """One line per agent, aligned across steps, with a maximum width of ``MAX_LINE_WIDTH`` columns."""

    def __init__(self, roles: Sequence[str]) -> None:
        self._roles = {role: _shorten(single_line(role)) for role in roles}
        self._role_width = max([ROLE_WIDTHS[0], *map(len, self._roles.values())])
        self._widths: dict[str, int] = {}

    def format_line(self, role: str, metrics: Mapping[str, float], width: int) -> str:
        """Return one agent's line."""
        cells = []
        for name in AGENT_METRICS:
            cell = format_metric(metrics, name, f"agents/{role}/")
            if cell and not catalog_metric(name).hide_zero:
                label, _, value = cell.rpartition(" ")
                self._widths[name] = max(self._widths.get(name, 0), len(value))
                cell = f"{label} {value:>{self._widths[name]}}"
            if cell:
                cells.append(cell)
        text = f"  {self._roles.get(role, role):>{self._role_width}}"
        for cell in cells:
            if len(text) + 2 + len(cell) > min(width, MAX_LINE_WIDTH):
                break
            text += f"  {cell}"
        return text


def _shorten(role: str) -> str:
    return role if len(role) <= ROLE_WIDTHS[1] else f"{role[: ROLE_WIDTHS[1] - 1]}…"


def _is_raised(name: str) -> bool:
    return name.startswith(GUARD_PREFIX) and name != ROLLBACK_KEY
