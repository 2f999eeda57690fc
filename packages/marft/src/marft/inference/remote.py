"""The engine of policies that are behind endpoints."""

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

TRIES = 3  # for an answer that is one of the options
LARGEST_SEED = 2**31 - 1  # what every server takes


@dataclass(frozen=True, slots=True, eq=False)
class RemotePolicy:
    """A policy behind an endpoint, and how many tokens of prompt and action its reader holds."""

    endpoint: Endpoint
    context: int


class RemoteEngine:
    """Asks endpoints for the actions of policies that are behind them.

    What an endpoint says comes as text. It is recorded in the tokens of the policy's reader, for those that read it
    here; it has no log-probs (they are 0), and nothing of it may be trained.

    Args:
        policies: by name.
        decode: from token ids to text, to offer options by their words.
        seed: of the run; with the action's key it makes the seed that is sent along.
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
        """Ask for one action, in messages.

        Raises:
            EpisodeFailedError: the endpoint gives no answer.
        """
        remote = self.policies[policy]
        fields = _fields(sampling, self._seed(key))
        if prompt.tools:
            fields["tools"] = [schema(tool) for tool in prompt.tools]
        reply = await self._ask(remote, [_as_sent(message) for message in prompt.chat], fields)
        if reply.calls and not prompt.tools:
            said = f"endpoint {remote.endpoint.name!r} calls {reply.calls[0].name!r}, but was offered no tools"
            raise EpisodeFailedError("failed", said)
        text = until(reply.text, sampling.stop)  # for servers that do not stop there
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
        """Ask for a choice: the model is asked to answer with one of the options.

        Raises:
            EpisodeFailedError: the endpoint gives no answer, or time and again another one.
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
        """Endpoints do not admit in order."""
        yield

    async def publish(self, policies: Mapping[str, Weights], version: int) -> None:
        """Never: what is behind an endpoint is frozen."""
        raise AssertionError(f"{', '.join(policies)}: nothing behind an endpoint is trained (version {version})")

    async def settle(self) -> None:
        """Nothing is computed here."""

    def version(self, policy: str) -> int:  # noqa: ARG002
        """Always 0: nothing behind an endpoint is trained."""
        return 0

    def usage(self) -> Mapping[str, float]:
        """What answers have taken, by the name of a metric."""
        used = {id(remote.endpoint): remote.endpoint.used for remote in self.policies.values()}
        return as_metrics(sum(used.values(), Usage()), "remote_")

    async def close(self) -> None:
        """The endpoints are whose they are."""

    async def _ask(
        self, remote: RemotePolicy, chat: Sequence[Mapping[str, object]], fields: Mapping[str, object]
    ) -> ModelReply:
        assert chat, "the renderer gives engines the messages"
        assert chat[-1]["role"] != "assistant", "endpoints take no beginning of an answer"
        return await remote.endpoint.ask(remote.endpoint.body(chat, fields))

    def _recorded(self, policy: str, text: str, reply: ModelReply, room: int) -> TokenIds:
        """The turn in the reader's tokens, as many as it has room for, with its end where the model came to it."""
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
    """A message as endpoints take it: the arguments of calls are text."""
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _with_options(chat: Sequence[Mapping[str, object]], texts: Sequence[str]) -> list[Mapping[str, object]]:
    """The chat with the options at its end: in its last message where that is a user's, as many templates want users
    and assistants to take turns."""
    listed = "\n".join(texts)
    ask = f"Choose one of the following lines and answer with exactly that line, nothing else:\n{listed}"
    if chat and chat[-1]["role"] == "user":
        return [*chat[:-1], {**chat[-1], "content": f"{chat[-1]['content']}\n\n{ask}"}]
    return [*chat, {"role": "user", "content": ask}]
