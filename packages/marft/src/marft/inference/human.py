"""Human players as agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from marft.agents.prompt_messages import Renderer
from marft.common.types import ActionKey, Choice, Completion, Option, Prompt, SamplingParams, TokenIds, VersionRange

AskFunction = Callable[[str, Sequence[str]], str]  # role, options (empty: free text) → the person's answer


class HumanSampler:
    """Sampler with a person's answers as actions.

    Human text has no probability: the log-probabilities are 0, and training must not use the tokens.

    Args:
        ask: blocking call that returns the person's answer. It runs on its own thread.
        decode: converts token ids to text, to show the options as text.
    """

    def __init__(self, renderer: Renderer, ask: AskFunction, decode: Callable[[str, TokenIds], str]) -> None:
        self.renderer, self.ask, self.decode = renderer, ask, decode

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:  # noqa: ARG002
        """Return the person's text, encoded with the policy's tokenizer."""
        text = await asyncio.to_thread(self.ask, key.agent, ())
        tokens = self.renderer.option(policy, text)
        return Completion(tokens, np.zeros(len(tokens), np.float32), text, "stop")

    async def choose(
        self,
        policy: str,
        prompt: Prompt,  # noqa: ARG002
        options: Sequence[Option],
        sampling: SamplingParams,  # noqa: ARG002
        key: ActionKey,
    ) -> tuple[Choice, VersionRange]:
        """Return the option chosen by the person. The log-probabilities are 0."""
        texts = [self.decode(policy, option.tokens) for option in options]
        text = await asyncio.to_thread(self.ask, key.agent, texts)
        return Choice(tuple(options), texts.index(text), np.zeros(len(options), np.float32)), VersionRange()

    @contextmanager
    def external_wait(self) -> Iterator[None]:
        """No-op: human requests have no admission order."""
        yield
