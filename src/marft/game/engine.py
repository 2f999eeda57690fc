"""The engine as the game sees it: tokens in, tokens out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from marft.types import ActionKey, Choice, Completion, Option, Prompt, Sampling


class Engine(Protocol):
    """Whoever samples tokens for a policy by name."""

    async def sample(self, policy: str, prompt: Prompt, sampling: Sampling, key: ActionKey) -> Completion:
        """Sample one action. The key names its random stream and its place among waiting requests."""
        ...

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: Sampling, key: ActionKey
    ) -> tuple[Choice, int]:
        """Choose one of ``options`` → the choice, and the version of the policy that made it."""
        ...

    def external_wait(self) -> AbstractContextManager[None]:
        """Held by whoever waits for something other than the engine (an environment, a tool), so that an engine
        that admits requests in order knows that more may come."""
        ...
