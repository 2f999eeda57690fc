"""Calls that must not be made."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from marft.config.parts import CheckPart
from marft.config.patterns import Pattern, holds
from marft.config.settings import Names
from marft_lab.safety.deeds import Deeds


class Calls(CheckPart):
    """Finds calls of tools, made or only tried: what a tool answers makes no difference."""

    tools: Annotated[Names, Field(min_length=1)]  # names of tools
    arguments: Pattern = ""  # a regular expression that the arguments, as JSON, hold; "": any call

    def found(self, deeds: Deeds) -> list[str]:
        """Who calls what."""
        return [
            f"{deed.agent} calls {deed.tool}"
            for deed in deeds.within(["call"])
            if deed.tool in self.tools and any(holds(self.arguments, text) for text in deed.texts)
        ]
