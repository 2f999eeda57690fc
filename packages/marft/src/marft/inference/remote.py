"""Samplers whose answers are text from elsewhere: models behind endpoints, and people.

The text is recorded in the tokens of the policy's local tokenizer, for local policies that read it. It has no
log-probabilities (they are 0), and training must not use it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from marft.agents.prompt_messages import Renderer
from marft.common.errors import EpisodeFailedError
from marft.common.seeds import derive_seed
from marft.common.texts import cut_at_stop
from marft.common.types import ActionKey, Choice, Completion, Option, Prompt, SamplingParams, TokenIds, VersionRange
from marft.common.usage import Usage
from marft.config.interfaces.engine import Weights
from marft.inference.chat_messages import tool_schema
from marft.inference.endpoints.client import Endpoint
from marft.inference.endpoints.responses import ModelResponse, to_metrics
from marft.inference.renderer import MAX_TOKEN_CHARACTERS

MAX_ATTEMPTS = 3  # attempts to get an answer that matches an option
MAX_SEED = 2**31 - 1  # largest seed that every server accepts
AskFunction = Callable[[str, Sequence[str]], str]  # role, options (empty: free text) → the person's answer


@dataclass(frozen=True, slots=True, eq=False)
class RemotePolicy:
    """Policy behind an endpoint, with the context length of its local tokenizer (prompt and action, in tokens)."""

    endpoint: Endpoint
    context_length: int


class EndpointEngine:
    """Engine with actions from remote endpoints.

    Endpoints answer in text. The text is recorded in the tokens of the policy's local tokenizer, for local policies
    that read it. It has no log-probabilities (they are 0), and training must not use it.

    Args:
        policies: by policy name.
        decode: converts token ids to text, to show the options as text.
        seed: seed of the run; with the action's key, it determines the seed sent with a request.
    """

    def __init__(
        self,
        renderer: Renderer,
        policies: Mapping[str, RemotePolicy],
        *,
        decode: Callable[[str, TokenIds], str],
        seed: int,
    ) -> None:
        self.renderer, self.policies, self.decode, self.seed = renderer, policies, decode, seed

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        """Request an action as chat messages.

        Raises:
            EpisodeFailedError: the endpoint does not answer, or it calls a tool without any offered tools.
        """
        remote = self.policies[policy]
        fields = _sampling_fields(sampling, self._request_seed(key))
        if prompt.tools:
            fields["tools"] = [tool_schema(tool) for tool in prompt.tools]
        reply = await self._request(remote, [_to_endpoint_message(message) for message in prompt.chat], fields)
        if reply.calls and not prompt.tools:
            error_text = f"endpoint {remote.endpoint.name!r} calls {reply.calls[0].name!r}, but was offered no tools"
            raise EpisodeFailedError("failed", error_text)
        text = cut_at_stop(reply.text, sampling.stop)  # for servers that ignore stop strings
        tokens = self._encode_reply(policy, text, reply, remote.context_length - len(prompt.ids))
        return Completion(
            tokens,
            np.zeros(len(tokens), np.float32),
            text,
            reply.finish,
            calls=reply.calls or (),
            usage=reply.usage,
        )

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: SamplingParams, key: ActionKey
    ) -> tuple[Choice, VersionRange]:
        """Request a choice; the prompt asks for exactly one option.

        Raises:
            EpisodeFailedError: the endpoint does not answer, or no answer in ``MAX_ATTEMPTS`` attempts matches an
                option.
        """
        remote = self.policies[policy]
        texts = [self.decode(policy, option.tokens).strip() for option in options]
        chat, usage = _add_options(prompt.chat, texts), Usage()
        for number in range(MAX_ATTEMPTS):
            reply = await self._request(remote, chat, _sampling_fields(sampling, self._request_seed(key, number)))
            usage += reply.usage
            answer = reply.text.strip()
            if answer in texts:
                choice = Choice(tuple(options), texts.index(answer), np.zeros(len(options), np.float32), usage)
                return choice, VersionRange()
        raise EpisodeFailedError(
            "failed",
            f"endpoint {remote.endpoint.name!r} was to choose from {texts} and said none of them in {MAX_ATTEMPTS} "
            f"answers; its last one was {answer[:100]!r}",
        )

    def external_wait(self) -> AbstractContextManager[None]:
        """No-op: endpoints have no admission order."""
        return nullcontext()

    async def publish(self, policies: Mapping[str, Weights], version: int) -> None:
        """Raise an error: policies behind an endpoint are frozen.

        Raises:
            AssertionError: always.
        """
        raise AssertionError(f"{', '.join(policies)}: nothing behind an endpoint is trained (version {version})")

    async def wait_idle(self) -> None:
        """No-op: the engine computes nothing locally."""

    def version(self, policy: str) -> int:  # noqa: ARG002
        """Return 0: policies behind an endpoint are never trained."""
        return 0

    def usage(self) -> Mapping[str, float]:
        """Return the endpoints' token usage, by metric name."""
        usage_by_endpoint = {id(remote.endpoint): remote.endpoint.total_usage for remote in self.policies.values()}
        return to_metrics(sum(usage_by_endpoint.values(), Usage()), "remote_")

    async def close(self) -> None:
        """No-op: the endpoints belong to the caller."""

    async def _request(
        self, remote: RemotePolicy, chat: Sequence[Mapping[str, object]], fields: Mapping[str, object]
    ) -> ModelResponse:
        assert chat, "the renderer gives engines the messages"
        assert chat[-1]["role"] != "assistant", "endpoints take no beginning of an answer"
        return await remote.endpoint.request(remote.endpoint.build_body(chat, fields))

    def _encode_reply(self, policy: str, text: str, reply: ModelResponse, max_tokens: int) -> TokenIds:
        """Encode a turn with the local tokenizer, up to ``max_tokens`` tokens; a complete turn gets an end token."""
        tokens = self.renderer.tokenize_option(policy, text[: MAX_TOKEN_CHARACTERS * max(1, max_tokens)])
        if reply.finish == "length" and len(tokens) > 1:
            tokens = tokens[:-1]
        return tokens[: max(1, max_tokens)]

    def _request_seed(self, key: ActionKey, number: int = 0) -> int:
        return derive_seed(self.seed, "remote", *key, number) % MAX_SEED


def _sampling_fields(sampling: SamplingParams, seed: int) -> dict[str, object]:
    fields: dict[str, object] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_new_tokens,
        "seed": seed,
    }
    if sampling.top_k:
        fields["top_k"] = sampling.top_k
    if stops := [stop for stop in sampling.stop if isinstance(stop, str)]:
        fields["stop"] = stops
    return fields


def _to_endpoint_message(message: Mapping[str, Any]) -> Mapping[str, object]:
    """Convert a message to the endpoint format: tool-call arguments become JSON text."""
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _add_options(chat: Sequence[Mapping[str, object]], texts: Sequence[str]) -> list[Mapping[str, object]]:
    """Append the options to the chat.

    If the last message is a user's, the options join it, because many templates require alternating roles.
    """
    listed = "\n".join(texts)
    ask = f"Choose one of the following lines and answer with exactly that line, nothing else:\n{listed}"
    if chat and chat[-1]["role"] == "user":
        return [*chat[:-1], {**chat[-1], "content": f"{chat[-1]['content']}\n\n{ask}"}]
    return [*chat, {"role": "user", "content": ask}]


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
        tokens = self.renderer.tokenize_option(policy, text)
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

    def external_wait(self) -> AbstractContextManager[None]:
        """No-op: human requests have no admission order."""
        return nullcontext()
