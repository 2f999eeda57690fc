"""Records from check episodes: replies, observations, times and faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from marft.agents.environment import Split
from marft.common.types import Observation, Step, Task, ToolCall

Wrong = Literal["raised", "hung", "observation", "reward", "step", "declared", "close"]


@dataclass(frozen=True, slots=True)
class Said:
    """Reply from an agent in a step: tool calls with their outputs, and final text."""

    text: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """Timed call into an environment.

    Args:
        name: ``start``, ``reset``, ``step``, ``close``, or the name of a tool.
        seconds: duration.
        held: longest stretch without awaiting, in seconds.
        busy: CPU seconds within that stretch; for the rest the thread slept or waited.
    """

    name: str
    seconds: float = 0.0
    held: float = 0.0
    busy: float = 0.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault in an episode, with the failing call."""

    wrong: Wrong
    call: str
    said: str


@dataclass(frozen=True, slots=True, eq=False)
class Play:
    """Record of an episode.

    Args:
        task: task of the episode.
        split: split of the task.
        seed: seed of the session.
        player: description of the player.
        said: replies of each step, by role.
        shown: first observation, and the observation after each step.
        steps: results of each step.
        calls: timed calls.
        faults: faults; empty for a valid episode.
        ended: True if the environment ended the episode.
        wrote: True if the session wrote into its task's data.
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
        """Return True if the episode has no faults."""
        return not self.faults

    @property
    def total(self) -> float:
        """Return the team's total reward."""
        return sum(step.reward for step in self.steps)

    @property
    def success(self) -> bool | None:
        """Return the success flag from the last step with a flag; None without a flag."""
        return next((step.success for step in reversed(self.steps) if step.success is not None), None)

    @property
    def name(self) -> str:
        """Return the episode's description: task and player."""
        return f"{self.task.id}, played by {self.player}"

    @property
    def outcome(self) -> list[str]:
        """Return the outcome as texts; equal outcomes have equal texts."""
        shown = [repr((one.whole, tuple(one.turn), sorted(one.options.items()))) for one in self.shown]
        earned = [
            repr((step.reward, sorted(step.agent_rewards.items()), step.terminated, step.truncated, step.success))
            for step in self.steps
        ]
        tools = [repr([call.output for one in said.values() for call in one.calls]) for said in self.said]
        wrong = [repr((fault.wrong, fault.call)) for fault in self.faults]
        return ["shown", *shown, "earned", *earned, "tools", *tools, "wrong", *wrong]


def difference(first: list[str], second: list[str]) -> str:
    """Return the first difference between two outcomes; "" if equal."""
    if first == second:
        return ""
    for one, other in zip(first, second, strict=False):
        if one != other:
            at = next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
            begin = max(0, at - 30)
            return f"…{one[begin : at + 30]}… and then …{other[begin : at + 30]}…"
    return f"{len(first)} parts, and then {len(second)}"
