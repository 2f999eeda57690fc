"""Ground truth about a task and its steps, declared by the environment for metrics that need more than rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StepInfo:
    """Ground truth about one environment step; None means unknown, and metrics never guess.

    The fields are keys of ``Step.info``. All fields except ``progress``, ``measures`` and ``hidden`` may also be keys
    of ``Task.data``. There they apply to every step whose ``info`` does not override them.

    >>> StepInfo(progress=0.5, right_tools=("search",), allowed_tools={"planner": (), "coder": ("search", "edit")})
    StepInfo(progress=0.5, right_tools=('search',), allowed_tools={...}, ...)
    """

    progress: float | None = None  # fraction of the task's goal reached after the step, 0 to 1
    right_tools: tuple[str, ...] | None = None  # tools that are correct to call in the step; () if no tool is
    allowed_tools: Mapping[str, tuple[str, ...]] | None = None  # tools that each role may call in the step, by role
    fewest_steps: int | None = None  # minimum number of environment steps that solves the task, at least 1
    measures: Mapping[str, float] = field(default_factory=dict)  # other measurements of the episode so far, by name
    # private information that each role had when it acted in the step, by role
    hidden: Mapping[str, str] = field(default_factory=dict)
