"""Terminal lines for a training step: the main metrics, in columns, limited to the available width."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from marft.common.metrics import named
from marft.common.texts import one_line
from marft.evaluation.guards.history import RETURNED

TEAM = (
    "sft/loss", "sft/held_out_loss",
    "reward", "reward_std", "accuracy", "success_unknown", "validation_accuracy", "validation_reward", "policy_loss",
    "critic/loss", "critic/explained_variance", "zero_advantage_fraction", "kl_stops", "episodes_dropped",
    "workers_lost", "tasks_set_aside", "ranks_lost", "engine_restarts",
    "truncated_tokens", "skipped_updates", "undone_steps", "remote_cost", "judge/cost", "episodes_per_second",
    "ahead/learner_idle", "seconds",
)  # fmt: skip
AGENT = (
    "sft/loss", "sft/held_out_loss", "action_length", "entropy", "kl", "clip_fraction", "gradient_share",
    "truncation_rate", "policy_lag",
)  # fmt: skip
LEAST = (
    "policy_loss",
    "critic/loss",
    "zero_advantage_fraction",
    "episodes_per_second",
    "critic/explained_variance",
    "reward_std",
)  # fmt: skip  metrics dropped first if the line is too wide
WIDEST = 100  # maximum width of an agent's line, in columns
ROLE = (12, 16)  # minimum and maximum width of a role, in columns
GUARD = "guards/"


def line(metrics: Mapping[str, float], names: Sequence[str], prefix: str = "") -> str:
    """Return the informative metrics in one line: ``reward 0.64  accuracy 0.64 …``.

    Args:
        prefix: prefix of the metrics' names: ``agents/<role>/``.
    """
    return "  ".join(said(metrics, name, prefix) for name in names if said(metrics, name, prefix))


def said(metrics: Mapping[str, float], name: str, prefix: str = "") -> str:
    """Return one metric as text, ``accuracy 0.64``; "" if missing or uninformative."""
    metric, value = named(name), metrics.get(f"{prefix}{name}", math.nan)
    if math.isnan(value) or (value == 0 and metric.unless_zero):
        return ""
    shown = metric.shown(value)
    return {
        "reward_std": f"±{shown}", "ahead/learner_idle": f"{metric.label} {shown} s", "seconds": f"{shown} s"
    }.get(name, f"{metric.label} {shown}")  # fmt: skip


def team_line(metrics: Mapping[str, float], width: int) -> str:
    """Return the team's line with raised guards, without its least important metrics if wider than ``width``."""
    raised = [f"guard {name.removeprefix(GUARD)}" for name in metrics if _is_raised(name)]
    names = list(TEAM)
    for least in ("", *LEAST):
        names = [name for name in names if name != least]
        whole = "  ".join(filter(None, [line(metrics, names), *raised]))
        if len(whole) <= width:
            break
    return whole


class AgentLines:
    """One line per agent, aligned across steps, with a maximum width of ``WIDEST`` columns."""

    def __init__(self, roles: Sequence[str]) -> None:
        self._roles = {role: _shortened(one_line(role)) for role in roles}
        self._room = max([ROLE[0], *map(len, self._roles.values())])
        self._widths: dict[str, int] = {}

    def of(self, role: str, metrics: Mapping[str, float], width: int) -> str:
        """Return one agent's line."""
        cells = []
        for name in AGENT:
            cell = said(metrics, name, f"agents/{role}/")
            if cell and not named(name).unless_zero:
                label, _, value = cell.rpartition(" ")
                self._widths[name] = max(self._widths.get(name, 0), len(value))
                cell = f"{label} {value:>{self._widths[name]}}"
            if cell:
                cells.append(cell)
        shown = f"  {self._roles.get(role, role):>{self._room}}"
        for cell in cells:
            if len(shown) + 2 + len(cell) > min(width, WIDEST):
                break
            shown += f"  {cell}"
        return shown


def _shortened(role: str) -> str:
    return role if len(role) <= ROLE[1] else f"{role[: ROLE[1] - 1]}…"


def _is_raised(name: str) -> bool:
    return name.startswith(GUARD) and name != RETURNED
