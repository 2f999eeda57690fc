"""An agent of a recipe: its role, its policy, how it samples, what it may use."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, Strict, field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.common.marks import Grammar
from marft.common.types import Profile, Sampling
from marft.config.folders import at_home
from marft.config.names import Role
from marft.config.settings import Count, CountOrNone, Few, Names, Plain, Positive, Settings

COLDEST = 0.001
Strings = Annotated[tuple[str, ...], Strict(False)]


def _at_home(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(at_home(path)) for path in paths)


class SamplingSettings(Settings):
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0  # 0 is greedy
    max_new_tokens: Count = 512  # of one action, all its turns together
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of probability that is sampled from; 1: all
    top_k: CountOrNone = 0  # tokens that are sampled from; 0: all
    stop: Strings = ()  # texts that end an action
    json_schema: Plain = {}  # each of its turns is JSON of this schema; of this key and the next two one at most
    regex: str = ""  # each of its turns is what this regular expression describes
    grammar: str = ""  # each of its turns is what this grammar describes, in Lark's format

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

    @model_validator(mode="after")
    def _one_grammar(self) -> SamplingSettings:
        if sum(map(bool, (self.json_schema, self.regex, self.grammar))) > 1:
            raise PydanticCustomError("grammar", "json_schema, regex and grammar exclude each other; keep one")
        return self

    @property
    def held_to(self) -> Grammar | None:
        """What its turns must be; None where they may be anything."""
        if self.json_schema:
            return Grammar("json", json.dumps(self.json_schema))
        if self.regex:
            return Grammar("regex", self.regex)
        return Grammar("lark", self.grammar) if self.grammar else None

    def resolve(self) -> Sampling:
        return Sampling(self.temperature, self.max_new_tokens, self.top_p, self.top_k, self.stop, self.held_to)


class ContextSettings(Settings):
    """What gives way when a rollout observation does not fit the model's context. What is cut is counted."""

    # what is cut first; nothing: the episode is dropped
    cut: Literal["messages", "observation", "nothing"] = "messages"
    keep: Literal["start", "end"] = "end"  # the end of a text that stays


class ToolUseSettings(Settings):
    """How an agent may use its tools."""

    rounds: Few = 8  # how often in one action it may call tools and go on
    calls: Few = 16  # of tools in one turn, at most
    timeout_seconds: Positive = 30.0  # for one call
    output_tokens: Count = 512  # of one answer; more is cut


class AgentSettings(Settings):
    role: Role  # its name, as Python could call it
    policy: str  # the weights that play it
    instructions: str = ""  # the system message
    guidance: str = ""  # at the end of what it sees
    answers: bool = False  # its text is the team's answer; a single agent always does
    tools: Names = ()  # names of [tools.…] tables
    tool_use: ToolUseSettings = ToolUseSettings()  # limits of using tools
    skills: Annotated[Names, AfterValidator(_at_home)] = ()  # folders with a SKILL.md
    sampling: SamplingSettings = SamplingSettings()  # how it samples
    context: ContextSettings = ContextSettings()  # what gives way when its prompt does not fit
    thinking: Literal["keep", "drop"] = "keep"  # of <think>…</think>: whether others, and it itself later, read it
    memory: Literal["none", "own"] = "none"  # "own": it is asked with its own earlier conversation of the episode

    @property
    def profile(self) -> Profile:
        return Profile(self.role, self.instructions, self.guidance, self.answers)
