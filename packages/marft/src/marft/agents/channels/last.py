"""Channel for the newest message only."""

from __future__ import annotations

from collections.abc import Sequence

from marft.agents.prompt_messages import Message
from marft.config.plugins import Plugin


class Last(Plugin):
    """Channel that passes the last message only. Readers do not see earlier messages, and the record does not list
    those as seen.
    """

    def carry(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        """Return None for every message except the last."""
        return [*[None] * (len(messages) - 1), *messages[-1:]]
