"""Engine for policies behind endpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from marft.agents.engine import Weights
from marft.agents.rendering import Renderer
from marft.common.errors import EpisodeFailedError
from marft.common.seeds import derive_seed
from marft.common.texts import until
from marft.common.types import ActionKey, Choice, Completion, Option, Prompt, Sampling, TokenIds, Versions
from marft.common.usage import Usage
from marft.inference.endpoints.client import Endpoint
from marft.inference.endpoints.replies import ModelReply, as_metrics
from marft.inference.messages import schema
from marft.inference.renderer import MOST_CHARACTERS

TRIES = 3  # attempts to get an answer that matches an option
LARGEST_SEED = 2**31 - 1  # largest seed that every server accepts


@dataclass(frozen=True, slots=True, eq=False)
class RemotePolicy:
    """Policy behind an endpoint, with the context length of its local tokenizer (prompt and action, in tokens)."""

    endpoint: Endpoint
    context: int


class RemoteEngine:
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

    async def sample(self, policy: str, prompt: Prompt, sampling: Sampling, key: ActionKey) -> Completion:
        """Request an action as chat messages.

        Raises:
            EpisodeFailedError: the endpoint does not answer, or it calls a tool without any offered tools.
        """
        remote = self.policies[policy]
        fields = _fields(sampling, self._seed(key))
        if prompt.tools:
            fields["tools"] = [schema(tool) for tool in prompt.tools]
        reply = await self._ask(remote, [_as_sent(message) for message in prompt.chat], fields)
        if reply.calls and not prompt.tools:
            said = f"endpoint {remote.endpoint.name!r} calls {reply.calls[0].name!r}, but was offered no tools"
            raise EpisodeFailedError("failed", said)
        text = until(reply.text, sampling.stop)  # for servers that ignore stop strings
        tokens = self._recorded(policy, text, reply, remote.context - len(prompt.ids))
        return Completion(
            tokens,
            np.zeros(len(tokens), np.float32),
            text,
            reply.finish,
            calls=reply.calls or (),
            usage=reply.usage,
        )

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: Sampling, key: ActionKey
    ) -> tuple[Choice, Versions]:
        """Request a choice; the prompt asks for exactly one option.

        Raises:
            EpisodeFailedError: the endpoint does not answer, or no answer in ``TRIES`` attempts matches an option.
        """
        remote = self.policies[policy]
        texts = [self.decode(policy, option.tokens).strip() for option in options]
        chat, usage = _with_options(prompt.chat, texts), Usage()
        for number in range(TRIES):
            reply = await self._ask(remote, chat, _fields(sampling, self._seed(key, number)))
            usage += reply.usage
            said = reply.text.strip()
            if said in texts:
                choice = Choice(tuple(options), texts.index(said), np.zeros(len(options), np.float32), usage)
                return choice, Versions()
        raise EpisodeFailedError(
            "failed",
            f"endpoint {remote.endpoint.name!r} was to choose from {texts} and said none of them in {TRIES} answers; "
            f"its last one was {said[:100]!r}",
        )

    @contextmanager
    def external_wait(self) -> Iterator[None]:
        """No-op: endpoints have no admission order."""
        yield

    async def publish(self, policies: Mapping[str, Weights], version: int) -> None:
        """Raise an error: policies behind an endpoint are frozen.

        Raises:
            AssertionError: always.
        """
        raise AssertionError(f"{', '.join(policies)}: nothing behind an endpoint is trained (version {version})")

    async def settle(self) -> None:
        """No-op: the engine computes nothing locally."""

    def version(self, policy: str) -> int:  # noqa: ARG002
        """Return 0: policies behind an endpoint are never trained."""
        return 0

    def usage(self) -> Mapping[str, float]:
        """Return the endpoints' token usage, by metric name."""
        used = {id(remote.endpoint): remote.endpoint.used for remote in self.policies.values()}
        return as_metrics(sum(used.values(), Usage()), "remote_")

    async def close(self) -> None:
        """No-op: the endpoints belong to the caller."""

    async def _ask(
        self, remote: RemotePolicy, chat: Sequence[Mapping[str, object]], fields: Mapping[str, object]
    ) -> ModelReply:
        assert chat, "the renderer gives engines the messages"
        assert chat[-1]["role"] != "assistant", "endpoints take no beginning of an answer"
        return await remote.endpoint.ask(remote.endpoint.body(chat, fields))

    def _recorded(self, policy: str, text: str, reply: ModelReply, room: int) -> TokenIds:
        """Encode a turn with the local tokenizer, up to ``room`` tokens; a complete turn gets an end-of-turn token."""
        tokens = self.renderer.option(policy, text[: MOST_CHARACTERS * max(1, room)])
        if reply.finish == "length" and len(tokens) > 1:
            tokens = tokens[:-1]
        return tokens[: max(1, room)]

    def _seed(self, key: ActionKey, number: int = 0) -> int:
        return derive_seed(self.seed, "remote", *key, number) % LARGEST_SEED


def _fields(sampling: Sampling, seed: int) -> dict[str, object]:
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


def _as_sent(message: Mapping[str, Any]) -> Mapping[str, object]:
    """Convert a message to the endpoint format: tool-call arguments become JSON text."""
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _with_options(chat: Sequence[Mapping[str, object]], texts: Sequence[str]) -> list[Mapping[str, object]]:
    """Append the options to the chat.

    If the last message is a user's, the options join it, because many templates require alternating roles.
    """
    listed = "\n".join(texts)
    ask = f"Choose one of the following lines and answer with exactly that line, nothing else:\n{listed}"
    if chat and chat[-1]["role"] == "user":
        return [*chat[:-1], {**chat[-1], "content": f"{chat[-1]['content']}\n\n{ask}"}]
    return [*chat, {"role": "user", "content": ask}]
