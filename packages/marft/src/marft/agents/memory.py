"""Conversation memory: an agent's own conversation in the episode, extended by each new prompt.

An agent remembers its actions that were finished before the current request, in the order of the requests. Earlier
prompts and turns keep their token ids, and each appears once. After the new observation, the prompt contains only
messages that the agent has not read yet.

If an action's chat was rendered again during tool use, its earlier part appears as the template renders it. Later
sampled tokens keep their ids, even if the action is copied into another branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from marft.agents.agents import Agent, Request, Seen
from marft.agents.communication import Heard, Passing, hear, listen, render, tokens_of
from marft.agents.conversation import Conversation, Node
from marft.agents.rendering import Channel, ChatMessage, NotExact, Renderer, compose
from marft.agents.stop_strings import without_stop
from marft.common.errors import EpisodeFailedError
from marft.common.marks import Mark
from marft.common.types import Action, Observation, Prompt, TokenIds, Tool

FULL = "the context is full: the oldest exchanges were left out"
THOUGHTS = "its thoughts were dropped"
AT_ONCE = "it acted several times at once, and remembers all of it"


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Request for an action with its prompt.

    Args:
        heard: messages that are new to the agent.
        told: new messages of its chat, without the instructions.
        continues: ids of the agent's own actions in the prompt.
        remembered: ``continues`` plus all actions that the agent saw for them.
        restarted: reason why the prompt does not continue the last own action, or "".
        chatted: whether a client sent the request with messages of its own.
    """

    prompt: Prompt
    heard: Sequence[Heard]
    told: tuple[ChatMessage, ...] = ()
    continues: tuple[str, ...] = ()
    remembered: tuple[str, ...] = ()
    restarted: str = ""
    node: Node | None = None
    chatted: bool = False

    def sees(self, renderer: Renderer, policy: str, begins: Action | None) -> dict[str, int]:
        """Return the ids of all actions in the prompt, with the number of tokens newly read from each."""
        tokens = {**dict.fromkeys(self.remembered, 0), **tokens_of(renderer, policy, self.heard)}
        if begins:
            tokens.setdefault(begins.id, 0)
        return tokens


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """The agent's action with its prompt.

    Args:
        heard: (action id, text before the channel) of each message received.
        saw: ids of the actions that the agent saw.
        messages: the agent's text and tool calls, and the tool outputs.
        shortened: reason if the messages contain less than the sampled text, or "".
        turn: node in the conversation.
        since: index in the episode of the oldest remembered action, if older ones were dropped for this action; 0 if
            none were.
        size: approximate number of tokens.
    """

    action: Action
    told: tuple[ChatMessage, ...]
    messages: tuple[ChatMessage, ...]
    shortened: str
    heard: frozenset[tuple[str, str]]
    saw: tuple[str, ...]
    turn: Node
    since: int
    size: int


@dataclass(frozen=True, slots=True)
class Spoken:
    """Chat template of a policy, with the tools offered to its agent."""

    renderer: Renderer
    policy: str
    tools: tuple[Tool, ...]

    def start(self, messages: Sequence[ChatMessage]) -> TokenIds:
        """Return the token ids for a new conversation, up to the start of the next turn, [T]."""
        return self.renderer.start(self.policy, messages, self.tools)

    def go_on(self, ids: TokenIds, messages: Sequence[ChatMessage], new: Sequence[ChatMessage]) -> TokenIds | NotExact:
        """Return the token ids to append for new messages, or ``NotExact``."""
        return self.renderer.go_on(self.policy, ids, messages, new, self.tools)


class Memory:
    """Conversation memory for one agent in one episode.

    Args:
        passing: returns the text that this agent receives from another agent's action.
    """

    def __init__(self, agent: Agent, renderer: Renderer, channel: Channel, passing: Passing) -> None:
        self.agent, self.renderer, self.channel, self.passing = agent, renderer, channel, passing
        self._conversation = Conversation(Spoken(renderer, agent.policy, agent.profile.tools))
        self._exchanges: dict[str, Exchange] = {}  # by action id

    def recalled(self) -> tuple[str, ...]:
        """Return the ids of remembered actions, oldest first."""
        since = max((exchange.since for exchange in self._exchanges.values()), default=0)
        actions = [exchange.action for exchange in self._exchanges.values() if exchange.action.index >= since]
        return tuple(action.id for action in sorted(actions, key=lambda action: action.index))

    def asked(self, request: Request, room: int, recorded: Action | None) -> Asked:
        """Return the prompt for a request.

        Args:
            room: context tokens to reserve for the action.
            recorded: the recorded action in a replayed episode; the prompt then continues the same earlier actions.

        Raises:
            EpisodeFailedError: the prompt does not fit and may not be truncated.
        """
        if recorded is None or not all(name in self._exchanges for name in recorded.continues):
            return self._asked(request, room, self.recalled())
        asked = self._asked(request, room, recorded.continues)
        if not np.array_equal(asked.prompt.ids, recorded.prompt):
            return asked
        prompt = replace(asked.prompt, truncated_tokens=recorded.truncated_tokens)
        return replace(asked, prompt=prompt, restarted=recorded.restarted)

    def _asked(self, request: Request, room: int, known: tuple[str, ...]) -> Asked:
        """Return the prompt for a request that continues the ``known`` actions."""
        kept, whole = known, 0
        while kept:
            heard = self._hear(request.sees, kept)
            told = self._told(request.observation, heard)
            node = self._tell(kept, told)
            whole = whole or len(node.context)
            excess = len(node.context) - self._budget(room)
            if excess <= 0:
                prompt = Prompt(node.context, whole - len(node.context), node.conversation, self.agent.profile.tools)
                return Asked(
                    prompt, heard, told, kept, self._seen(kept), self._why_restarted(known, kept, node), node
                )  # fmt: skip
            self._check_may_give_way(len(node.context), room)
            kept = self._without_oldest(kept, excess)
        heard = self._hear(request.sees, ())
        prompt = render(self.renderer, self.agent, request.observation, heard, room)
        prompt = replace(prompt, truncated_tokens=max(prompt.truncated_tokens, whole - len(prompt.ids)))
        node = self._conversation.tell(prompt.chat, self._conversation.root)
        return Asked(prompt, heard, prompt.chat[len(self._system) :], restarted=FULL if known else "", node=node)

    def keep(self, asked: Asked, action: Action, request: Request) -> None:
        """Store a finished action."""
        assert asked.node is not None, "it was asked with this memory"
        said = tuple(self.renderer.turn(action.policy, action))
        messages = tuple(map(self._without_thought, said)) if self.agent.thinking == "drop" else said
        shortened = THOUGHTS if messages != said else ""
        since = 0
        if action.restarted == FULL:
            since = self._exchanges[action.continues[0]].action.index if action.continues else action.index
        told = sum(self.renderer.count(action.policy, str(message["content"])) for message in asked.told)
        self._exchanges[action.id] = Exchange(
            action=action,
            told=asked.told,
            messages=messages,
            shortened=shortened,
            heard=frozenset((one.action.id, one.passed_on) for one in asked.heard),
            saw=(*(one.action.id for one in asked.heard), *([request.begins.id] if request.begins else ())),
            turn=self._say(asked.node, messages, action, shortened),
            since=since,
            size=told + len(action.tokens),
        )

    def read(
        self, kept: tuple[str, ...], observation: Observation, heard: Sequence[Heard], room: int
    ) -> TokenIds | None:
        """Return the critic's token ids: the agent's conversation with these actions, or the longest suffix that fits.

        Return None if no suffix fits.
        """
        while kept:
            node = self._tell(kept, self._told(observation, heard))
            excess = len(node.context) - self._budget(room)
            if excess <= 0:
                return node.context
            kept = self._without_oldest(kept, excess)
        return None

    @cached_property
    def _system(self) -> tuple[ChatMessage, ...]:
        return tuple(compose(self.agent.profile, "", ())[:-1])

    def _budget(self, room: int) -> int:
        return self.renderer.context(self.agent.policy) - room

    def _hear(self, sees: Sequence[Seen], kept: Sequence[str]) -> list[Heard]:
        """Return the new messages from other agents: not in a kept exchange, and not the agent's own kept actions."""
        known = {key for name in kept for key in self._exchanges[name].heard}
        new = []
        for seen in sees:
            one = hear(self.passing, seen)
            if one.action.id not in kept and (one.action.id, one.passed_on) not in known:
                new.append(seen)
        return listen(self.channel, self.passing, new)

    def _told(self, observation: Observation, heard: Sequence[Heard]) -> tuple[ChatMessage, ...]:
        profile = replace(self.agent.profile, instructions="")
        return tuple(compose(profile, observation.seen_by(self.agent.role), [one.message for one in heard]))

    def _tell(self, kept: Sequence[str], new: tuple[ChatMessage, ...]) -> Node:
        """Return the conversation node after these exchanges and the new messages."""
        node = self._conversation.root
        try:
            for name in kept:
                exchange = self._exchanges[name]
                told = self._conversation.tell(self._opening(node) + exchange.told, node)
                node = self._say(told, exchange.messages, exchange.action, exchange.shortened, sampled=False)
            return self._conversation.tell(self._opening(node) + new, node)
        except ValueError as error:
            raise EpisodeFailedError("failed", f"{self.agent.role}: {error}") from error

    def _without_thought(self, message: ChatMessage) -> ChatMessage:
        text = message["content"]
        if message["role"] != "assistant" or not isinstance(text, str):
            return message
        return {**message, "content": text[self.renderer.thought(self.agent.policy, text) :]}

    def _say(
        self, told: Node, messages: tuple[ChatMessage, ...], action: Action, shortened: str, sampled: bool = True
    ) -> Node:  # fmt: skip
        """Add an action's turn after its prompt, or after its chat as last rendered.

        Raises:
            ValueError: the chat template cannot render the chat.
        """
        shown = 0
        if action.restarts:
            last = action.restarts[-1]
            turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
            shown = turns[last.turns]
            chat = (*told.conversation, *messages[:shown])
            told = self._conversation.begin(chat, last.reason, last.context if sampled else None)
        return self._conversation.say(told, messages[shown:], self._ids(action), action.id, sampled, shortened)

    def _ids(self, action: Action) -> TokenIds:
        """Return the action's ids since its chat was last rendered, without the final stop string, [T]."""
        begins = action.segments[-1].start
        answered = np.flatnonzero(action.marks == Mark.TOOL)
        turn = max(begins, int(answered[-1]) + 1 if len(answered) else 0)
        stops = [stop for stop in self.agent.sampling.stop if isinstance(stop, str)]
        said = without_stop(self.renderer, action.policy, action.tokens[turn:], action.text, stops)
        return np.concatenate([action.tokens[begins:turn], said])

    def _opening(self, node: Node) -> tuple[ChatMessage, ...]:
        return self._system if node is self._conversation.root else ()

    def _seen(self, kept: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(seen for name in kept for seen in (*self._exchanges[name].saw, name)))

    def _without_oldest(self, kept: tuple[str, ...], excess: int) -> tuple[str, ...]:
        """Drop the oldest exchanges, at least one, until they free about ``excess`` tokens."""
        while kept and excess > 0:
            excess -= self._exchanges[kept[0]].size
            kept = kept[1:]
        return kept

    def _check_may_give_way(self, length: int, room: int) -> None:
        if self.agent.cut.what == "nothing":
            context = self.renderer.context(self.agent.policy)
            raise EpisodeFailedError(
                "failed",
                f"agent {self.agent.role!r}: its conversation has {length} tokens, but the context of {context} leaves "
                f"{context - room} beside what it may write; raise the model's context, lower max_new_tokens, or allow "
                "cuts (agents.context.cut)",
            )

    def _why_restarted(self, known: Sequence[str], kept: Sequence[str], node: Node) -> str:
        if node.before is self._exchanges[kept[-1]].turn:
            return ""
        return FULL if len(kept) < len(known) else node.restarted or AT_ONCE
