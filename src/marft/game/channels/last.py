"""Only the newest message."""

from __future__ import annotations

from collections.abc import Sequence

from marft.config.plugins import Plugin
from marft.game.rendering import Message


class Last(Plugin):
    """The last of the messages; what came before is not seen, and not recorded as seen."""

    def carry(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        """None for all but the last message."""
        return [*[None] * (len(messages) - 1), *messages[-1:]]
