"""Scripted policies: play an environment without a model. One function gives the reply of any agent in a team.

They provide demonstrations for small models, agents for checks, and a load for benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from marft.common.types import Task, Tool, ToolCall

WRONG_ANSWER = "I do not know."


@dataclass(frozen=True, slots=True)
class PolicyInput:
    """Input of a scripted policy.

    ``messages`` is the agent's complete input: its instructions, observations and messages, and its earlier turns if it
    has a memory. The task is available too, for moves that are expensive to compute. A script must not reveal
    knowledge that the agent could not have.
    """

    task: Task
    role: str
    step: int
    messages: Sequence[Mapping[str, object]]
    random: Random = field(compare=False)
    options: tuple[str, ...] = ()  # options to choose from
    tools: tuple[Tool, ...] = ()

    @property
    def last_message(self) -> str:
        """The last message to the agent: an observation with messages from others, or tool outputs."""
        return str(self.messages[-1]["content"])


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """Scripted reply, with tool calls."""

    text: str
    calls: tuple[ToolCall, ...] = ()


class ScriptedPolicy(Protocol):
    """Scripted policy: returns a reply, using only the input's random generator."""

    def __call__(self, policy_input: PolicyInput, /) -> str | ScriptedReply: ...


@dataclass(frozen=True, slots=True)
class OraclePolicy:
    r"""Gives the correct answer in a box with probability ``skill``, else a wrong reply; chooses options at random.

    Args:
        get_answer: returns the correct answer to a task.
        skill: probability of the correct answer.
    """

    get_answer: Callable[[Task], str]
    skill: float = 1.0

    def __call__(self, policy_input: PolicyInput) -> str:
        """Return the reply, the same for every agent."""
        if policy_input.options:
            return policy_input.random.choice(policy_input.options)
        if policy_input.random.random() < self.skill:
            return f"\\boxed{{{self.get_answer(policy_input.task)}}}"
        return WRONG_ANSWER
