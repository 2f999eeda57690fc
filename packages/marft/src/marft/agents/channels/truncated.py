"""Messages cut to a length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from marft.agents.rendering import Message
from marft.config.plugins import Plugin
from marft.config.settings import Count

CUT = "…"


class Truncated(Plugin):
    """At most ``words`` words of every message, its start or its end; where something is missing stands an ellipsis."""

    words: Count = 100  # of every message, at most
    keep: Literal["start", "end"] = "end"  # the end that stays

    def carry(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        """Every message, shortened where it is too long."""
        return [replace(message, text=self._cut(message.text)) for message in messages]

    def _cut(self, text: str) -> str:
        words = text.split()
        if len(words) <= self.words:
            return text
        if self.keep == "start":
            return " ".join([*words[: self.words], CUT])
        return " ".join([CUT, *words[-self.words :]])
