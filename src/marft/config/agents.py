"""An agent of a recipe: its role, its policy, how it samples, what it may use."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict, field_validator
from pydantic_core import PydanticCustomError

from marft.config.names import Role
from marft.config.settings import Count, CountOrNone, Few, Names, Positive, Settings
from marft.types import Profile, Sampling

COLDEST = 0.001
Strings = Annotated[tuple[str, ...], Strict(False)]


class SamplingSettings(Settings):
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0  # 0 is greedy
    max_new_tokens: Count = 512
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: CountOrNone = 0
    stop: Strings = ()

    @field_validator("temperature")
    @classmethod
    def _divides(cls, temperature: float) -> float:
        if 0 < temperature < COLDEST:
            raise PydanticCustomError(
                "temperature", "below {coldest} it is greedy but for rounding; use 0, which is", {"coldest": COLDEST}
            )
        return temperature

    @field_validator("stop")
    @classmethod
    def _can_be_written(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if "" in stop:
            raise PydanticCustomError("stop", "an empty text would end every action before it begins; remove it")
        return stop

    def resolve(self) -> Sampling:
        return Sampling(self.temperature, self.max_new_tokens, self.top_p, self.top_k, self.stop)


class ContextSettings(Settings):
    """What gives way when a rollout observation does not fit the model's context. What is cut is counted."""

    cut: Literal["messages", "observation", "nothing"] = "messages"
    keep: Literal["start", "end"] = "end"


class ToolUseSettings(Settings):
    """How an agent may use its tools."""

    rounds: Few = 8  # how often in one action it may call tools and go on
    calls: Few = 16  # at most in one turn
    timeout_seconds: Positive = 30.0  # for one call
    output_tokens: Count = 512  # of one answer; more is cut


class AgentSettings(Settings):
    role: Role
    policy: str
    instructions: str = ""
    guidance: str = ""
    answers: bool = False
    tools: Names = ()  # names of [tools.…] tables
    tool_use: ToolUseSettings = ToolUseSettings()
    skills: Names = ()  # folders with a SKILL.md
    sampling: SamplingSettings = SamplingSettings()
    context: ContextSettings = ContextSettings()
    memory: Literal["none", "own"] = "none"  # what of its earlier actions in the episode it is asked with

    @property
    def profile(self) -> Profile:
        return Profile(self.role, self.instructions, self.guidance, self.answers)
