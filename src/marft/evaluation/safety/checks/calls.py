"""Calls that must not be made."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from marft.config.parts import CheckPart
from marft.config.settings import Names
from marft.evaluation.safety.deeds import Deeds


class Calls(CheckPart):
    """Finds calls of tools, made or only tried: what a tool answers makes no difference."""

    tools: Annotated[Names, Field(min_length=1)]  # names of tools
    arguments: str = ""  # a regular expression that the arguments, as JSON, hold; "": any call

    @field_validator("arguments")
    @classmethod
    def _is_a_pattern(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise PydanticCustomError(
                "pattern", "is no regular expression: {error}", {"error": str(error)}
            ) from error  # fmt: skip
        return pattern

    def found(self, deeds: Deeds) -> list[str]:
        """Who calls what."""
        return [
            f"{deed.agent} calls {deed.tool}"
            for deed in deeds.within(["call"])
            if deed.tool in self.tools and any(re.search(self.arguments, text) for text in deed.texts)
        ]
