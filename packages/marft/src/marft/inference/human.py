"""People in seats of a team."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from marft.agents.rendering import Renderer
from marft.common.types import ActionKey, Choice, Completion, Option, Prompt, Sampling, TokenIds, Versions

Ask = Callable[[str, Sequence[str]], str]  # role, options (none: free text) → what the person says


class HumanSampler:
    """Asks a person for the actions of the agents that people play.

    What people write has no probability: its log-probs are 0, and nothing of it should be trained.

    Args:
        ask: blocks until the person has answered; runs on a thread of its own.
        decode: from token ids to text, to show options by their words.
    """

    def __init__(self, renderer: Renderer, ask: Ask, decode: Callable[[str, TokenIds], str]) -> None:
        self.renderer, self.ask, self.decode = renderer, ask, decode

    async def sample(self, policy: str, prompt: Prompt, sampling: Sampling, key: ActionKey) -> Completion:  # noqa: ARG002
        """What the person says, in the policy's tokens."""
        text = await asyncio.to_thread(self.ask, key.agent, ())
        tokens = self.renderer.option(policy, text)
        return Completion(tokens, np.zeros(len(tokens), np.float32), text, "stop")

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: Sampling, key: ActionKey  # noqa: ARG002
    ) -> tuple[Choice, Versions]:  # fmt: skip
        """Which option the person takes."""
        texts = [self.decode(policy, option.tokens) for option in options]
        text = await asyncio.to_thread(self.ask, key.agent, texts)
        return Choice(tuple(options), texts.index(text), np.zeros(len(options), np.float32)), Versions()

    @contextmanager
    def external_wait(self) -> Iterator[None]:
        """People are asked as they come."""
        yield
