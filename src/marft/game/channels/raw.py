"""Messages as they were written."""

from __future__ import annotations

from collections.abc import Sequence

from marft.config.plugins import Plugin
from marft.game.rendering import Message


class Raw(Plugin):
    """The whole text of every action that is seen."""

    def carry(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        """Every message as it is."""
        return messages
