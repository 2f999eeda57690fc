"""An agent of a recipe: its role, its policy, how it samples, what it may use."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict

from marft.config.algorithm import Count, NotNegative, Positive
from marft.config.names import Role
from marft.config.settings import Settings
from marft.types import Profile, Sampling

Strings = Annotated[tuple[str, ...], Strict(False)]


class SamplingSettings(Settings):
    temperature: NotNegative = 1.0
    max_new_tokens: Count = 512
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    stop: Strings = ()

    def resolve(self) -> Sampling:
        return Sampling(self.temperature, self.max_new_tokens, self.top_p, self.top_k, self.stop)


class ContextSettings(Settings):
    """What gives way when a rollout observation does not fit the model's context. What is cut is counted."""

    cut: Literal["messages", "observation", "nothing"] = "messages"
    keep: Literal["start", "end"] = "end"


class ToolUseSettings(Settings):
    """How an agent may use its tools."""

    rounds: Count = 8  # how often in one action it may call tools and go on
    calls: Count = 16  # at most in one turn
    timeout_seconds: Positive = 30.0  # for one call
    output_tokens: Count = 512  # of one answer; more is cut


class AgentSettings(Settings):
    role: Role
    policy: str
    instructions: str = ""
    guidance: str = ""
    answers: bool = False
    tools: Strings = ()  # names of [tools.…] tables
    tool_use: ToolUseSettings = ToolUseSettings()
    skills: Strings = ()  # folders with a SKILL.md
    sampling: SamplingSettings = SamplingSettings()
    context: ContextSettings = ContextSettings()

    @property
    def profile(self) -> Profile:
        return Profile(self.role, self.instructions, self.guidance, self.answers)
