"""What every decision was worth: one function a credit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.dense import groups, pairs
from tests.dense.cases import Case, Judged
from tests.dense.chains import gae, monte_carlo, step_gae


def judge(cases: Sequence[Case], settings: Any, baselines: dict[str, float]) -> list[Judged]:
    """Credit by name. ``baselines`` are RAE's, which the batch moves."""
    one_by_one: dict[str, Callable[[Case, Any], Judged]] = {
        "gae": gae, "step-gae": step_gae, "monte-carlo": monte_carlo,
    }  # fmt: skip
    together: dict[str, Callable[[Sequence[Case], Any], list[Judged]]] = {
        "batch": groups.batch, "grpo": groups.grpo, "gdpo": groups.gdpo, "rloo": groups.rloo, "agent-group": groups.agent_group,
        "magrpo": groups.magrpo, "comam": groups.comam,
        "tree": groups.tree, "counterfactual": groups.counterfactual,
        "preference": pairs.preference, "preference-tree": pairs.preference, "best": pairs.best,
    }  # fmt: skip
    if settings.name in one_by_one:
        return [one_by_one[settings.name](case, settings) for case in cases]
    if settings.name == "rae":
        return groups.rae(cases, settings, baselines)
    return together[settings.name](cases, settings)
