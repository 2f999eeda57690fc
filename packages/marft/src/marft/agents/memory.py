"""What an agent with a memory remembers: its own conversation of the episode, continued by what is new.

An agent remembers its actions that were finished when it is asked, in the order asked for. What it was told and said
stands in its prompt by the same ids, each once; from the new observation on it is told what it has not read yet.

Of an action whose chat was rendered anew while it used tools, what it said before stands there as its template shows
it, and what it sampled since by the same ids: also where the action is taken over into another branch.
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
    """What an action is made from.

    Args:
        heard: the messages that are new to the agent.
        told: the messages of its chat that are new, but for its instructions.
        continues: ids of its own actions in the prompt, and ``remembered`` those with all that it saw for them.
        restarted: why the prompt is not the last of them continued.
        chatted: whether a client asked, in messages of its own.
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
        """The actions that stand in the prompt, by id, and how many tokens are read of each now."""
        tokens = {**dict.fromkeys(self.remembered, 0), **tokens_of(renderer, policy, self.heard)}
        if begins:
            tokens.setdefault(begins.id, 0)
        return tokens


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """An action of the agent, with what it was told before.

    Args:
        heard: of whom and what, as it was passed on.
        saw: ids of the actions that it saw.
        messages: what it said, called and was answered.
        shortened: why that is less than was sampled, if so.
        turn: where it stands in the conversation.
        since: index in the episode from which on actions are remembered: what is older gave way for it; 0: nothing did.
        size: tokens, about.
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
    """The chat template of a policy, with the tools that its agent is told of."""

    renderer: Renderer
    policy: str
    tools: tuple[Tool, ...]

    def start(self, messages: Sequence[ChatMessage]) -> TokenIds:
        return self.renderer.start(self.policy, messages, self.tools)

    def go_on(self, ids: TokenIds, messages: Sequence[ChatMessage], new: Sequence[ChatMessage]) -> TokenIds | NotExact:
        return self.renderer.go_on(self.policy, ids, messages, new, self.tools)


class Memory:
    """Memory of one agent in one episode.

    Args:
        passing: what it hears of an action.
    """

    def __init__(self, agent: Agent, renderer: Renderer, channel: Channel, passing: Passing) -> None:
        self.agent, self.renderer, self.channel, self.passing = agent, renderer, channel, passing
        self._conversation = Conversation(Spoken(renderer, agent.policy, agent.profile.tools))
        self._exchanges: dict[str, Exchange] = {}  # by id of the action

    def recalled(self) -> tuple[str, ...]:
        """Ids of the actions that are remembered now, oldest first."""
        since = max((exchange.since for exchange in self._exchanges.values()), default=0)
        actions = [exchange.action for exchange in self._exchanges.values() if exchange.action.index >= since]
        return tuple(action.id for action in sorted(actions, key=lambda action: action.index))

    def asked(self, request: Request, room: int, recorded: Action | None) -> Asked:
        """What the agent is asked with.

        Args:
            room: tokens of the context that the action may take.
            recorded: the action of an episode that is played again: what it remembered is remembered.

        Raises:
            EpisodeFailedError: it does not fit, and may not be cut.
        """
        if recorded is None or not all(name in self._exchanges for name in recorded.continues):
            return self._asked(request, room, self.recalled())
        asked = self._asked(request, room, recorded.continues)
        if not np.array_equal(asked.prompt.ids, recorded.prompt):
            return asked
        prompt = replace(asked.prompt, truncated_tokens=recorded.truncated_tokens)
        return replace(asked, prompt=prompt, restarted=recorded.restarted)

    def _asked(self, request: Request, room: int, known: tuple[str, ...]) -> Asked:
        """What the agent is asked with, where it remembers these actions."""
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
        """Remember an action."""
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
        """What a critic reads in the agent's place: its conversation with these actions, or as many of the last of
        them as fit; None where none does."""
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
        """What of others the agent reads now: what it has not read in the exchanges that are kept, nor said itself."""
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
        """The conversation of these exchanges, with what is new."""
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
        """An action's turn, after what the agent was told, or after its chat as it was last rendered anew.

        Raises:
            ValueError: the chat template cannot show it.
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
        """Return the ids of an action since its chat was last rendered anew, without a stop string that ended it."""
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
        """Without as many of the oldest exchanges as hold about so many tokens, at least one."""
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
