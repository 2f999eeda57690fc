"""Channel for unchanged messages."""

from __future__ import annotations

from collections.abc import Sequence

from marft.agents.prompt_messages import Message
from marft.config.plugins import Plugin


class Raw(Plugin):
    """Channel that passes each visible action's whole text."""

    def carry(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        """Return every message unchanged."""
        return messages
