"""Programs that talk to an agent as clients do, over templates of real shapes and an engine that says what it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from marft.agents.agents import Agent
from marft.agents.chat import Reply
from marft.agents.game import Attempt, Game
from marft.agents.play import play
from marft.common.texts import cut_at_stop, find_stop
from marft.common.types import (
    ActionKey,
    AgentProfile,
    Completion,
    Episode,
    JointAction,
    Observation,
    Prompt,
    SamplingParams,
    Task,
)
from marft.config.interfaces.organization import AgentHandle, Agents, Organization
from marft.inference.chat_messages import ChatFormat
from marft.inference.renderer import ChatRenderer
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from tests.fakes import FakeEngine, Script, ends, game

ADD = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}}}}  # fmt: skip
SEEK = {"type": "function", "function": {"name": "seek", "description": "Seek.", "parameters": {"type": "object"}}}


@dataclass(frozen=True, slots=True)
class Said:
    """What the engine is to say: a text in pieces that are tokenised one by one, so that its ids are none that the whole
    text would have; and whether it comes to its end."""

    pieces: Sequence[str]
    stopped: bool = True


class Parrot(FakeEngine):
    """Says what it is told to, in turn."""

    def __init__(self, format: ChatFormat, say: Callable[[ActionKey], Said]) -> None:
        super().__init__()
        self.format, self.next = format, say
        self.sampled: dict[ActionKey, tuple[Prompt, np.ndarray, SamplingParams]] = {}

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        await asyncio.sleep(0)
        said, encode = self.next(key), self.format.tokenizer.encode
        ids = [i for piece in said.pieces for i in encode(piece, add_special_tokens=False)]
        ids = (ids + list(self.format.stop_ids[:1]) if said.stopped else ids or encode("-"))[: sampling.max_new_tokens]
        tokens = np.array(ids, np.int32)
        assert key not in self.sampled, "a stream is drawn from once"
        self.sampled[key] = prompt, tokens, sampling
        stops = bool(len(ids)) and ids[-1] in self.format.stop_ids
        text = str(self.format.tokenizer.decode(ids[:-1] if stops else ids, skip_special_tokens=True))
        return Completion(tokens, np.full(len(tokens), -1.0, np.float32), text, "stop" if stops else "length")


class Stopping(Parrot):
    """One that heeds the texts that end a turn."""

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        whole = await super().sample(policy, prompt, sampling, key)
        for count in range(1, len(whole.tokens) + 1):
            text = str(self.format.tokenizer.decode(whole.tokens[:count].tolist(), skip_special_tokens=True))
            if any(find_stop(text, stop) >= 0 for stop in sampling.stop):
                self.sampled[key] = prompt, whole.tokens[:count], sampling
                text = cut_at_stop(text, sampling.stop)
                return Completion(whole.tokens[:count], whole.log_probs[:count], text, "stop")
        return whole


class Talking(Organization):
    """An organization that is a function of its seats."""

    _talk: Callable[[Observation, Agents], Awaitable[object]]

    def __init__(self, talk: Callable[[Observation, Agents], Awaitable[object]]) -> None:
        super().__init__()
        self._talk = talk

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        await self._talk(observation, agents)
        return JointAction()


async def asked(
    seat: AgentHandle, messages: Sequence[Mapping[str, Any]], shown: str = "?", **fields: Any
) -> tuple[dict[str, Any], Reply]:
    """Ask as a client would, but for HTTP → the message of the response, as it comes out of JSON, and the reply.

    Args:
        shown: by the environment.
    """
    protocol = ChatCompletions()
    body = json.dumps({"model": "any", "messages": list(messages), **fields})
    request = protocol.parse_request(body.encode())
    reply = await seat.reply(Observation(shown), request.chat)
    told = {"model": "any", "marft": {}}
    response = json.loads(json.dumps(protocol.build_response(request, [reply], told)))
    return response["choices"][0]["message"], reply


def talked(
    format: ChatFormat, say: Callable[[ActionKey], Said], talk: Callable[[Observation, Agents], Awaitable[object]],
    *roles: str, longest: int = 200, critic: bool = False, speaker: type[Parrot] = Parrot, **changes: Any,
) -> tuple[Episode, Parrot]:  # fmt: skip
    """An episode in which a program talks to agents."""
    roles = roles or ("a",)
    g: Game = game(Script([ends()]), *roles, organization=Talking(talk))
    engine = speaker(format, say)
    agents = [
        Agent(
            AgentProfile(role, f"You are {role}.", answers=role == roles[-1]),
            role,
            SamplingParams(max_new_tokens=longest),
        )
        for role in roles
    ]
    team = replace(g.team, agents=tuple(replace(agent, **changes) for agent in agents))
    g = replace(g, team=team, engine=engine, renderer=ChatRenderer(dict.fromkeys(roles, format)))
    try:
        return asyncio.run(play(g, Attempt(Task("t", "begin"), "s", record_critic_states=critic))), engine
    finally:
        g.threads.close()
