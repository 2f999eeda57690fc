"""Messages as they were written."""

from __future__ import annotations

from collections.abc import Sequence

from marft.agents.rendering import Message
from marft.config.plugins import Plugin


class Raw(Plugin):
    """The whole text of every action that is seen."""

    def carry(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        """Every message as it is."""
        return messages
