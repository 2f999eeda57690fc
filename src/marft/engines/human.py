"""People in seats of a team: whatever is asked of their agents is asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager

import numpy as np

from marft.game.engine import Engine
from marft.game.rendering import Renderer
from marft.types import ActionKey, Choice, Completion, Option, Prompt, Sampling, TokenIds

Ask = Callable[[str, Sequence[str]], str]  # role, options (none: free text) → what the person says


class HumanSeats:
    """An engine that hands the actions of some agents to people and everything else on to another engine.

    What people write has no probability: its log-probs are 0, and nothing of it should be trained.

    Args:
        roles: the agents that people play.
        ask: blocks until the person has answered; runs on a thread of its own.
        decode: from token ids to text, to show options by their words.
    """

    def __init__(
        self,
        inner: Engine,
        renderer: Renderer,
        roles: Collection[str],
        ask: Ask,
        decode: Callable[[str, TokenIds], str],
    ) -> None:
        self.inner, self.renderer, self.roles, self.ask, self.decode = inner, renderer, set(roles), ask, decode

    async def sample(self, policy: str, prompt: Prompt, sampling: Sampling, key: ActionKey) -> Completion:
        """See :meth:`marft.game.engine.Engine.sample`."""
        if key.agent not in self.roles:
            return await self.inner.sample(policy, prompt, sampling, key)
        with self.inner.external_wait():
            text = await asyncio.to_thread(self.ask, key.agent, ())
        tokens = self.renderer.option(policy, text)
        return Completion(tokens, np.zeros(len(tokens), np.float32), text, "stop")

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: Sampling, key: ActionKey
    ) -> tuple[Choice, int]:
        """See :meth:`marft.game.engine.Engine.choose`."""
        if key.agent not in self.roles:
            return await self.inner.choose(policy, prompt, options, sampling, key)
        texts = [self.decode(policy, option.tokens) for option in options]
        with self.inner.external_wait():
            text = await asyncio.to_thread(self.ask, key.agent, texts)
        return Choice(tuple(options), texts.index(text), np.zeros(len(options), np.float32)), 0

    def external_wait(self) -> AbstractContextManager[None]:
        """See :meth:`marft.game.engine.Engine.external_wait`."""
        return self.inner.external_wait()
