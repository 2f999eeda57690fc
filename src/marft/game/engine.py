"""The engine as the game sees it: tokens in, tokens out."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from marft.types import ActionKey, Completion, Sampling, TokenIds


class Engine(Protocol):
    """Whoever samples tokens for a policy by name."""

    async def sample(self, policy: str, prompt: TokenIds, sampling: Sampling, key: ActionKey) -> Completion:
        """Sample one action. The key names its random stream and its place among waiting requests."""
        ...

    def outside(self) -> AbstractContextManager[None]:
        """Held by whoever waits for something other than the engine (an environment, a tool), so that an engine
        that admits requests in order knows that more may come."""
        ...
