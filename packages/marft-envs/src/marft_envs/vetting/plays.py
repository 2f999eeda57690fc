"""Episodes as they were played for a check: what was said, what came back, how long that took, what went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from marft.agents.environment import Split
from marft.common.types import Observation, Step, Task, ToolCall

Wrong = Literal["raised", "hung", "observation", "reward", "step", "declared", "close"]


@dataclass(frozen=True, slots=True)
class Said:
    """What one agent does in a step: the tools that it calls, with their answers, and what it says last."""

    text: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One call into an environment.

    Args:
        name: ``start``, ``reset``, ``step``, ``close``, or a tool's.
        seconds: until it came back.
        held: the longest stretch without awaiting, in seconds.
        busy: of that stretch, the seconds in which its thread computed; the rest it slept, or waited for something.
    """

    name: str
    seconds: float = 0.0
    held: float = 0.0
    busy: float = 0.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong in an episode, in which call."""

    wrong: Wrong
    call: str
    said: str


@dataclass(frozen=True, slots=True, eq=False)
class Play:
    """One episode.

    Args:
        player: who played it, in words.
        said: of each step, by role.
        shown: the first observation, and that after each step.
        ended: the environment itself said that it was over.
        wrote: the session wrote into the data of its task.
    """

    task: Task
    split: Split
    seed: int
    player: str
    said: tuple[Mapping[str, Said], ...]
    shown: tuple[Observation, ...]
    steps: tuple[Step, ...]
    calls: tuple[Call, ...]
    faults: tuple[Fault, ...] = ()
    ended: bool = False
    wrote: bool = False

    @property
    def whole(self) -> bool:
        """Whether nothing kept it from being played."""
        return not self.faults

    @property
    def total(self) -> float:
        """What the team earned."""
        return sum(step.reward for step in self.steps)

    @property
    def success(self) -> bool | None:
        """Whether it was solved, as the last step that knows says."""
        return next((step.success for step in reversed(self.steps) if step.success is not None), None)

    @property
    def name(self) -> str:
        return f"{self.task.id}, played by {self.player}"

    @property
    def outcome(self) -> list[str]:
        """What came of each call, in texts that are equal where it is the same."""
        shown = [repr((one.whole, tuple(one.turn), sorted(one.options.items()))) for one in self.shown]
        earned = [
            repr((step.reward, sorted(step.agent_rewards.items()), step.terminated, step.truncated, step.success))
            for step in self.steps
        ]
        tools = [repr([call.output for one in said.values() for call in one.calls]) for said in self.said]
        wrong = [repr((fault.wrong, fault.call)) for fault in self.faults]
        return ["shown", *shown, "earned", *earned, "tools", *tools, "wrong", *wrong]


def difference(first: list[str], second: list[str]) -> str:
    """Where two outcomes differ first; "" where they do not."""
    if first == second:
        return ""
    for one, other in zip(first, second, strict=False):
        if one != other:
            at = next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
            begin = max(0, at - 30)
            return f"…{one[begin : at + 30]}… and then …{other[begin : at + 30]}…"
    return f"{len(first)} parts, and then {len(second)}"
