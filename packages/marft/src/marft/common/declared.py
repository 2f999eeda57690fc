"""What an environment declares of a task and its steps beside rewards: the truth that some metrics need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Declared:
    """What is known of one environment step; None is what nobody has said, and what no metric then guesses.

    The fields are keys of ``Step.info``. All but ``progress``, ``measures`` and ``hidden`` may stand in ``Task.data``
    too, where they hold for every step whose ``info`` does not say otherwise.

    >>> Declared(progress=0.5, right_tools=("search",), allowed_tools={"planner": (), "coder": ("search", "edit")})
    Declared(progress=0.5, right_tools=('search',), allowed_tools={...}, ...)
    """

    progress: float | None = None  # share of the task's goal that is reached after the step, from 0 to 1
    right_tools: tuple[str, ...] | None = None  # tools that it is right to call in the step; () where none is
    allowed_tools: Mapping[str, tuple[str, ...]] | None = None  # by role, the tools that it may call in the step
    fewest_steps: int | None = None  # environment steps in which the task can be solved, at least 1
    measures: Mapping[str, float] = field(default_factory=dict)  # what else the episode has come to so far, by name
    hidden: Mapping[str, str] = field(default_factory=dict)  # by role, what it alone knew when it spoke in the step
