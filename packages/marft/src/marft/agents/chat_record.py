"""What one agent was told and said through clients in an episode, and what a chat shows of what others said.

A chat is answered after the deepest turn that it goes on from, by that turn's ids. Where a program has changed what
comes before (``WHY``), what is left of it is text like any other: a new segment begins there, and the reason is kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from marft.agents.agents import Agent
from marft.agents.chat import Chat, ChatRefusedError, Reply
from marft.agents.communication import Heard
from marft.agents.conversation import Conversation, Node
from marft.agents.memory import THOUGHTS, Asked, Spoken
from marft.agents.quoting import Quoting, texts_of
from marft.agents.rendering import ChatMessage, Message, Renderer
from marft.agents.stop_strings import ended_by, without_stop
from marft.common.types import Action, Prompt, TokenIds, ToolCall

WHY = {
    "edited": "what was said is changed, or something was put in",
    "trimmed": "what was said stands after something else than it was said to",
    "tools": "other tools are offered than before",
    "template": "",  # the reason is the template's own
}
ONE_CALL = "of its calls the first alone was told"
STOPPED = "the stop string behind its calls was not told"
MOST_MESSAGES = 8192  # of a chat: to render more would hold up all episodes
CHARACTERS_OF_A_TOKEN = 64  # of a token, about: a chat of more than so many a token of context need not be rendered


class ChatRecord:
    """One agent's conversations with the programs of an episode: a tree for each list of tools.

    Args:
        quoting: what all agents of the episode said and were shown.
    """

    def __init__(self, agent: Agent, renderer: Renderer, quoting: Quoting) -> None:
        self.agent, self.renderer, self._quoting = agent, renderer, quoting
        self._conversations: dict[str, Conversation] = {}
        self._said: dict[str, tuple[ChatMessage, Reply]] = {}  # by id of the action
        self._alternatives: dict[str, Sequence[Sequence[tuple[int, float]]]] = {}  # by id of the action

    def asked(self, chat: Chat, earlier: Sequence[Action], task: str = "") -> Asked:
        """What an action is made from.

        Args:
            earlier: the episode's actions so far.
            task: what the environment shows: its words are nobody's.

        Raises:
            ChatRefusedError: it cannot be answered.
        """
        self._check(chat, earlier)
        conversation = self._conversation(chat)
        node, count = conversation.reached(chat.messages)
        why = self._why(chat, node, count)
        try:
            told = conversation.tell(chat.messages[count:], node)
        except ValueError as error:
            raise ChatRefusedError("invalid", str(error)) from error
        path = [turn.said for turn in _turns(told)]
        if chat.begun:
            told, begun_by = self._opened(told, chat, earlier)
            path += begun_by
        self._check_room(len(told.context))
        if not why and told.restarted:
            why = f"template: {told.restarted}"
        known = {action.id: action for action in earlier}
        seen = tuple(dict.fromkeys(name for said in path for name in (*known[said].sees, said)))
        if chat.sees is None:
            new = [*texts_of(chat.messages[count:]), chat.begun]
            quoted = self._quoting.seen(new, [task, self.agent.profile.instructions], earlier)
            others = [action for action in earlier if action.id in quoted.difference(seen)]
        else:
            others = [known[name] for name in dict.fromkeys(chat.sees) if name not in seen]
        heard = [Heard(other, Message(other.agent, other.message), other.message) for other in others]
        prompt = Prompt(told.context, 0, _whole(chat), chat.tools)
        return Asked(prompt, heard, (), tuple(path), seen, why, told, chatted=True)

    def keep(self, asked: Asked, chat: Chat, action: Action) -> None:
        """Record an action's turn, as its client is told it."""
        assert asked.node is not None, "it was asked with this record"
        calls = _calls(action)
        message = self._message(action)
        if chat.begun:
            message = {**message, "content": f"{chat.begun}{message['content'] or ''}"}
        ids = self.told(chat, action.policy, action.tokens, action.text)
        shortened = self._shortened(chat, action)
        self._conversation(chat).say(asked.node, [message], ids, action.id, shortened=shortened)
        thought, stopped = action.text[: action.thought], self._stopped(chat, action.policy, action.tokens, action.text)
        self._said[action.id] = message, Reply(action, message, calls, thought, chat.begun, stopped)
        self._quoting.note(action, message, chat)

    def told(self, chat: Chat, policy: str, tokens: TokenIds, text: str) -> TokenIds:
        """Return the ids of a turn as its client is told it: :func:`~marft.agents.stop_strings.without_stop`."""
        return without_stop(self.renderer, policy, tokens, text, self._stops(chat), bool(chat.begun))

    def reply(self, action: Action, pieces: bool = False) -> Reply:
        """An action as its client is told it.

        Args:
            pieces: the text of each token too.
        """
        reply = self._said[action.id][1]
        if not pieces:
            return reply
        told, texts_in = self._alternatives.get(action.id, ()), partial(self.renderer.pieces, action.policy)
        ids = np.array([token for of_one in told for token, _ in of_one], np.int32)
        begin, first = 0 if reply.begun else 1, told[0] if told else ()
        texts = iter(texts_in(ids, begin * len(first)))
        alternatives = tuple(tuple((next(texts), value) for _, value in of_one) for of_one in told)
        return replace(reply, pieces=texts_in(action.tokens, begin), alternatives=alternatives)

    def note_alternatives(self, name: str, alternatives: Sequence[Sequence[tuple[int, float]]]) -> None:
        """Tokens that were as likely as those of an action: they are told its client, and are in no record."""
        self._alternatives[name] = alternatives

    def read(self, asked: Asked, unseen: Sequence[Heard]) -> TokenIds:
        """What a critic reads in the agent's place: its chat, and what others said that it did not see. The chat alone
        where its template cannot show that."""
        prompt = asked.prompt
        added = "\n\n".join(f"Message from {one.message.role}:\n{one.message.text}" for one in unseen)
        begun = asked.node.begun if asked.node else ""
        chat = prompt.chat[:-1] if begun else prompt.chat
        try:
            ids = self.renderer.start(self.agent.policy, [*chat, {"role": "user", "content": added}], prompt.tools)
            return np.concatenate([ids, self.renderer.opening(self.agent.policy, begun)]) if begun else ids
        except ValueError:
            return prompt.ids

    def _stopped(self, chat: Chat, policy: str, tokens: TokenIds, text: str) -> str:
        """The stop string, of the client or of the recipe, that ended a turn; "" where none did."""
        return ended_by(self._stops(chat), self.renderer.spelled(policy, tokens, bool(chat.begun)), text)

    def _stops(self, chat: Chat) -> list[str]:
        return [stop for stop in (*chat.stop, *self.agent.sampling.stop) if isinstance(stop, str)]

    def _shortened(self, chat: Chat, action: Action) -> str:
        """Why nothing goes on from an action as it was sampled; "" where something may."""
        calls = _calls(action)
        if action.thought:
            return THOUGHTS
        if chat.calls_once and len(self.renderer.calls(action.policy, action.tokens, chat.tools)) > len(calls) > 0:
            return ONE_CALL
        return STOPPED if calls and self._stopped(chat, action.policy, action.tokens, action.text) else ""

    def _opened(self, told: Node, chat: Chat, earlier: Sequence[Action]) -> tuple[Node, list[str]]:
        """What a turn goes on from that a client begins, and the id of the agent's own turn that it was, if it was one:
        then by the ids of that.

        Raises:
            ChatRefusedError: no turn can begin so.
        """
        if chat.constraint:
            raise ChatRefusedError("unsupported", "an answer of a given form is written from its beginning on")
        policy, turn = self.agent.policy, ({"role": "assistant", "content": chat.begun},)
        try:
            ids = self.renderer.opening(policy, chat.begun)
        except ValueError as error:
            raise ChatRefusedError("unsupported", f"the last message cannot be continued: {error}") from error
        own = next((child for child in told.children if child.messages == turn), None)
        if own is None or own.shortened:
            return self._conversation(chat).open(told, chat.begun, ids), []
        action = next(action for action in earlier if action.id == own.said)
        ended = len(action.tokens) - self.renderer.response_prefix(policy, action)
        ids = own.ids[: len(own.ids) - (ended if own.ids is action.tokens else 0)]
        return self._conversation(chat).open(told, chat.begun, ids), [own.said]

    def _message(self, action: Action) -> ChatMessage:
        """An action's turn, as a client is told it."""
        calls = _calls(action)
        if not calls:
            return {"role": "assistant", "content": action.message}
        return self.renderer.calling_turn(action.policy, action.message, calls, np.empty(0, np.int32))[0]

    def _conversation(self, chat: Chat) -> Conversation:
        key = json.dumps([(tool.name, tool.description, tool.parameters) for tool in chat.tools])
        if key not in self._conversations:
            self._conversations[key] = Conversation(Spoken(self.renderer, self.agent.policy, chat.tools))
        return self._conversations[key]

    def _why(self, chat: Chat, node: Node, count: int) -> str:
        """Why a chat does not go on from all that it holds of what the agent said; "" where it does."""
        rest = chat.messages[count:]
        if not any(message["role"] == "assistant" for message in rest):
            return ""
        if any(one.reached(chat.messages)[1] > count for one in self._conversations.values()):
            return _reason("tools")
        mine = [message for message, _ in self._said.values()]
        first = next(n for n, message in enumerate(rest) if message["role"] == "assistant")
        answered = any(child.messages == rest[:first] and child.children for child in node.children)
        if rest[first] not in mine and (node.said or answered):
            return _reason("edited")
        return _reason("trimmed") if any(message in mine for message in rest) else ""

    def _check(self, chat: Chat, earlier: Sequence[Action]) -> None:
        context = self.renderer.context(self.agent.policy)
        if len(chat.messages) > min(context, MOST_MESSAGES):  # each takes a token at least
            raise self._too_long(f"{len(chat.messages)} messages")
        size = sum(len(str(message["content"])) for message in _whole(chat))
        if size > CHARACTERS_OF_A_TOKEN * context:
            raise self._too_long(f"{size} characters")
        unknown = set(chat.sees or ()) - {action.id for action in earlier}
        if unknown:
            raise ChatRefusedError("invalid", f"no action of this episode is called {min(unknown)!r}")
        try:
            if chat.tools and chat.calls:
                self.renderer.calls(self.agent.policy, np.empty(0, np.int32), chat.tools)
        except ValueError as error:
            raise ChatRefusedError("invalid", str(error)) from error
        if chat.constraint:
            check_constraint(self.renderer, self.agent.policy, chat)

    def _check_room(self, tokens: int) -> None:
        if tokens >= self.renderer.context(self.agent.policy):
            raise self._too_long(f"{tokens} tokens")

    def _too_long(self, size: str) -> ChatRefusedError:
        most = self.renderer.context(self.agent.policy)
        return ChatRefusedError(
            "too_long", f"This model's maximum context length is {most} tokens, and the messages have {size}."
        )


def check_constraint(renderer: Renderer, policy: str, chat: Chat) -> None:
    """
    Raises:
        ChatRefusedError: no answer can be held to what a chat asks for.
    """
    try:
        renderer.grammar(policy, chat)
    except ValueError as error:
        raise ChatRefusedError("unsupported", f"no answer can have the form that is asked for: {error}") from error


def _reason(slug: str) -> str:
    return f"{slug}: {WHY[slug]}"


def _turns(node: Node) -> list[Node]:
    """The turns before a node, oldest first."""
    found, at = list[Node](), node.parent
    while at is not None:
        if at.said:
            found.append(at)
        at = at.parent
    return found[::-1]


def _whole(chat: Chat) -> tuple[ChatMessage, ...]:
    """A chat's messages, and the beginning of the turn where the client gives one."""
    return (*chat.messages, {"role": "assistant", "content": chat.begun}) if chat.begun else chat.messages


def _calls(action: Action) -> tuple[ToolCall, ...]:
    return tuple(call for call in action.calls if call.name)
