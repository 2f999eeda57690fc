"""Records from check episodes: replies, observations, times and faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from marft.common.types import Observation, Step, Task, ToolCall
from marft.config.interfaces.environment import Split

FaultKind = Literal["raised", "hung", "observation", "reward", "step", "declared", "close"]


@dataclass(frozen=True, slots=True)
class AgentReply:
    """Reply from an agent in a step: tool calls with their outputs, and final text."""

    text: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class TimedCall:
    """Timed call into an environment.

    Args:
        name: ``start``, ``reset``, ``step``, ``close``, or the name of a tool.
        seconds: duration.
        blocking_seconds: longest stretch without awaiting, in seconds.
        cpu_seconds: CPU seconds within that stretch; for the rest the thread slept or waited.
    """

    name: str
    seconds: float = 0.0
    blocking_seconds: float = 0.0
    cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault in an episode, with the failing call."""

    kind: FaultKind
    call: str
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeRecord:
    """Record of an episode.

    Args:
        task: task of the episode.
        split: split of the task.
        seed: seed of the session.
        player: description of the player.
        replies: replies of each step, by role.
        observations: first observation, and the observation after each step.
        steps: results of each step.
        calls: timed calls.
        faults: faults; empty for a valid episode.
        ended: True if the environment ended the episode.
        wrote_task: True if the session wrote into its task's data.
    """

    task: Task
    split: Split
    seed: int
    player: str
    replies: tuple[Mapping[str, AgentReply], ...]
    observations: tuple[Observation, ...]
    steps: tuple[Step, ...]
    calls: tuple[TimedCall, ...]
    faults: tuple[Fault, ...] = ()
    ended: bool = False
    wrote_task: bool = False

    @property
    def is_valid(self) -> bool:
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
        observations = [
            repr((item.full_text, tuple(item.turn), sorted(item.options.items()))) for item in self.observations
        ]
        rewards = [
            repr((step.reward, sorted(step.agent_rewards.items()), step.terminated, step.truncated, step.success))
            for step in self.steps
        ]
        tools = [repr([call.output for item in replies.values() for call in item.calls]) for replies in self.replies]
        faults = [repr((fault.kind, fault.call)) for fault in self.faults]
        return ["shown", *observations, "earned", *rewards, "tools", *tools, "wrong", *faults]


def first_mismatch(first: list[str], second: list[str]) -> str:
    """Return the first difference between two outcomes; "" if equal."""
    if first == second:
        return ""
    for first_part, second_part in zip(first, second, strict=False):
        if first_part != second_part:
            at = next(
                (place for place, pair in enumerate(zip(first_part, second_part, strict=False)) if pair[0] != pair[1]),
                0,
            )
            begin = max(0, at - 30)
            return f"…{first_part[begin : at + 30]}… and then …{second_part[begin : at + 30]}…"
    return f"{len(first)} parts, and then {len(second)}"
