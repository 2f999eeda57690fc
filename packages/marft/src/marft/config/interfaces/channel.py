"""Channels: the form in which agents read each other's messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from marft.config.plugins import Plugin


@dataclass(frozen=True, slots=True)
class Message:
    """Message in the form that another agent reads."""

    role: str
    text: str


class Channel(Plugin, ABC, kind="channels", label="a channel"):
    """Base class for communication channels between an action and its readers."""

    @abstractmethod
    def transform(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        """Transform the messages for one agent, oldest first.

        The result has one entry per message; None hides the message from the agent.
        """
