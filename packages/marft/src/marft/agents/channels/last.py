"""Only the newest message."""

from __future__ import annotations

from collections.abc import Sequence

from marft.agents.rendering import Message
from marft.config.plugins import Plugin


class Last(Plugin):
    """The last of the messages; what came before is not seen, and not recorded as seen."""

    def carry(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        """None for all but the last message."""
        return [*[None] * (len(messages) - 1), *messages[-1:]]
