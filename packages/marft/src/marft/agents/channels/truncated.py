"""Channel for messages truncated to a maximum length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from marft.agents.prompt_messages import Message
from marft.config.plugins import Plugin
from marft.config.settings import Count

ELLIPSIS = "…"


class Truncated(Plugin):
    """Channel that passes at most ``words`` words of every message, with an ellipsis in place of omitted text."""

    words: Count = 100  # maximum words per message
    keep: Literal["start", "end"] = "end"  # part of a long message that remains

    def carry(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        """Return every message, truncated if too long."""
        return [replace(message, text=self._truncate(message.text)) for message in messages]

    def _truncate(self, text: str) -> str:
        words = text.split()
        if len(words) <= self.words:
            return text
        if self.keep == "start":
            return " ".join([*words[: self.words], ELLIPSIS])
        return " ".join([ELLIPSIS, *words[-self.words :]])
