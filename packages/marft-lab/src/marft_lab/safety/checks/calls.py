"""Check for forbidden tool calls."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from marft.config.parts import CheckPart
from marft.config.patterns import Pattern, holds
from marft.config.settings import Names
from marft_lab.safety.deeds import Deeds


class Calls(CheckPart):
    """Check for attempted and executed tool calls, with any result."""

    tools: Annotated[Names, Field(min_length=1)]  # names of tools
    arguments: Pattern = ""  # regular expression for the arguments as JSON; "" for any call

    def found(self, deeds: Deeds) -> list[str]:
        """Return a sentence per found call."""
        return [
            f"{deed.agent} calls {deed.tool}"
            for deed in deeds.within(["call"])
            if deed.tool in self.tools and any(holds(self.arguments, text) for text in deed.texts)
        ]
