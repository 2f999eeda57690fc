"""Agent settings: role, policy, sampling, context and tools."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, Strict, field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.common.token_data import Grammar
from marft.common.types import AgentProfile, SamplingParams
from marft.config.names import Role
from marft.config.paths import expand_user
from marft.config.settings import Count, Names, NonNegativeCount, PlainTable, Positive, Settings, SmallCount

MIN_TEMPERATURE = 0.001
Strings = Annotated[tuple[str, ...], Strict(False)]


def _expand_users(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(expand_user(path)) for path in paths)


class SamplingSettings(Settings):
    """Sampling parameters and format constraints for one agent."""

    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0  # sampling temperature; 0: greedy
    max_new_tokens: Count = 512  # maximum tokens of one action, summed over all its turns
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0  # nucleus sampling: probability mass of the sampled tokens; 1: off
    top_k: NonNegativeCount = 0  # number of most likely tokens to sample from; 0: off
    stop: Strings = ()  # stop strings that end an action
    json_schema: PlainTable = {}  # JSON schema that each turn must match; excludes regex and grammar
    regex: str = ""  # regular expression that each turn must match
    grammar: str = ""  # grammar that each turn must match, in Lark's format

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
        return SamplingParams(self.temperature, self.max_new_tokens, self.top_p, self.top_k, self.stop, self.constraint)


class ContextSettings(Settings):
    """Truncation for a rollout observation longer than the model's context. Truncated tokens are counted."""

    # part to truncate first; none: drop the episode
    truncate: Literal["messages", "observation", "none"] = "messages"
    keep: Literal["start", "end"] = "end"  # part of a truncated text to keep: its start or its end


class ToolUseSettings(Settings):
    """Limits on an agent's tool use."""

    max_rounds: SmallCount = 8  # maximum tool rounds in one action
    max_calls: SmallCount = 16  # maximum tool calls in one turn
    timeout_seconds: Positive = 30.0  # timeout of one call, in seconds
    max_output_tokens: Count = 512  # maximum tokens of one tool reply; the rest is truncated


class AgentSettings(Settings):
    """One agent in the team."""

    role: Role  # unique name, a valid Python identifier
    policy: str  # policy that plays the agent
    instructions: str = ""  # system message
    guidance: str = ""  # text appended to what the agent sees
    answers: bool = False  # the agent's text is the team's answer; always true for a single agent
    tools: Names = ()  # names of [tools.…] tables
    tool_use: ToolUseSettings = ToolUseSettings()  # limits on tool use
    skills: Annotated[Names, AfterValidator(_expand_users)] = ()  # folders with a SKILL.md
    sampling: SamplingSettings = SamplingSettings()  # sampling parameters
    context: ContextSettings = ContextSettings()  # truncation for prompts longer than the model's context
    # keep or drop reasoning (<think>…</think>) when other agents, and later the agent itself, read the text
    thinking: Literal["keep", "drop"] = "keep"
    memory: Literal["none", "own"] = "none"  # "own": prompts include the agent's earlier conversation in the episode

    @property
    def profile(self) -> AgentProfile:
        """The agent's role with its instructions, without tools."""
        return AgentProfile(self.role, self.instructions, self.guidance, self.answers)
