"""Agent settings: role, policy, sampling, context and tools."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, Strict, field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.common.token_data import Grammar
from marft.common.types import AgentProfile, MemoryMode, SamplingParams
from marft.config.names import Role
from marft.config.paths import expand_user
from marft.config.settings import Count, Names, NonNegativeCount, PlainTable, Positive, Settings, SmallCount

MIN_TEMPERATURE = 0.001
Strings = Annotated[tuple[str, ...], Strict(False)]


def _expand_users(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(expand_user(path)) for path in paths)


class SamplingSettings(Settings):
    """Sampling parameters and format constraints for one agent."""

    temperature: Annotated[float, Field(ge=0, le=100)] = Field(
        default=1.0, description="sampling temperature; 0: greedy"
    )
    max_new_tokens: Count = Field(default=512, description="maximum tokens per action, summed over turns")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0, description="nucleus sampling: probability mass of the sampled tokens; 1: off"
    )
    top_k: NonNegativeCount = Field(default=0, description="number of most likely tokens to sample from; 0: off")
    stop: Strings = Field(default=(), description="stop strings that end an action")
    json_schema: PlainTable = Field(default={}, description="JSON schema for each turn; excludes regex and grammar")
    regex: str = Field(default="", description="regular expression for each turn")
    grammar: str = Field(default="", description="Lark grammar for each turn")

    @field_validator("temperature")
    @classmethod
    def _check_temperature(cls, temperature: float) -> float:
        if 0 < temperature < MIN_TEMPERATURE:
            raise PydanticCustomError(
                "temperature",
                "below {coldest} it is greedy but for rounding; use 0, which is",
                {"coldest": MIN_TEMPERATURE},
            )
        return temperature

    @field_validator("stop")
    @classmethod
    def _check_stop(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if "" in stop:
            raise PydanticCustomError("stop", "an empty text would end every action before it begins; remove it")
        return stop

    @model_validator(mode="after")
    def _check_grammar(self) -> SamplingSettings:
        if sum(map(bool, (self.json_schema, self.regex, self.grammar))) > 1:
            raise PydanticCustomError("grammar", "json_schema, regex and grammar exclude each other; keep one")
        return self

    @property
    def constraint(self) -> Grammar | None:
        """Format constraint on each turn; None if free text."""
        if self.json_schema:
            return Grammar("json", json.dumps(self.json_schema))
        if self.regex:
            return Grammar("regex", self.regex)
        return Grammar("lark", self.grammar) if self.grammar else None

    def to_sampling_params(self) -> SamplingParams:
        """Return the sampling parameters for the engine."""
        return SamplingParams(
            temperature=self.temperature,
            max_new_tokens=self.max_new_tokens,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=self.stop,
            grammar=self.constraint,
        )


class ContextSettings(Settings):
    """Truncation for a rollout observation longer than the model's context. Truncated tokens are counted."""

    truncate: Literal["messages", "observation", "none"] = Field(
        default="messages", description="part to truncate first; none: drop the episode"
    )
    keep: Literal["start", "end"] = Field(
        default="end", description="part of a truncated text to keep: its start or its end"
    )


class ToolUseSettings(Settings):
    """Limits on an agent's tool use."""

    max_rounds: SmallCount = Field(default=8, description="maximum tool rounds in one action")
    max_calls: SmallCount = Field(default=16, description="maximum tool calls in one turn")
    timeout_seconds: Positive = Field(default=30.0, description="timeout per call, in seconds")
    max_output_tokens: Count = Field(default=512, description="maximum tokens per tool reply; longer replies are cut")


class AgentSettings(Settings):
    """One agent in the team."""

    role: Role = Field(description="unique name, a valid Python identifier")
    policy: str = Field(description="policy that plays the agent")
    instructions: str = Field(default="", description="system message")
    guidance: str = Field(default="", description="text appended to the agent's prompt")
    answers: bool = Field(
        default=False, description="the agent's text is the team's answer; always true for a single agent"
    )
    tools: Names = Field(default=(), description="names of [tools.…] tables")
    tool_use: ToolUseSettings = Field(default=ToolUseSettings(), description="limits for tool use")
    skills: Annotated[Names, AfterValidator(_expand_users)] = Field(default=(), description="folders with a SKILL.md")
    sampling: SamplingSettings = Field(default=SamplingSettings(), description="sampling parameters")
    context: ContextSettings = Field(
        default=ContextSettings(), description="truncation for prompts longer than the model's context"
    )
    thinking: Literal["keep", "drop"] = Field(
        default="keep",
        description="keep or drop reasoning (<think>…</think>) for later readers: other agents, and the agent itself",
    )
    memory: MemoryMode = Field(
        default="none", description='"own": prompts include the agent\'s earlier conversation in the episode'
    )

    @property
    def profile(self) -> AgentProfile:
        """The agent's role with its instructions, without tools."""
        return AgentProfile(self.role, self.instructions, self.guidance, self.answers)
