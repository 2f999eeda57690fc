"""History of one agent's client chats in an episode, with attribution of quotes from other agents.

The agent answers a chat after the deepest of its turns that the chat continues, using that turn's token ids. If a
program has changed an earlier part (``WHY``), the rest of that history is plain text: a new segment begins there,
and the history keeps the reason.
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
    "template": "",  # the chat template gives the reason itself
}
ONE_CALL = "of its calls the first alone was told"
STOPPED = "the stop string behind its calls was not told"
MOST_MESSAGES = 8192  # maximum messages in a chat; rendering more would block all episodes
CHARACTERS_OF_A_TOKEN = 64  # approximate maximum characters per token; a longer chat is rejected without rendering


class ChatRecord:
    """One agent's conversations with an episode's programs: one tree per list of tools.

    Args:
        quoting: all actions of the episode and the texts that agents saw.
    """

    def __init__(self, agent: Agent, renderer: Renderer, quoting: Quoting) -> None:
        self.agent, self.renderer, self._quoting = agent, renderer, quoting
        self._conversations: dict[str, Conversation] = {}
        self._said: dict[str, tuple[ChatMessage, Reply]] = {}  # by action id
        self._alternatives: dict[str, Sequence[Sequence[tuple[int, float]]]] = {}  # by action id

    def asked(self, chat: Chat, earlier: Sequence[Action], task: str = "") -> Asked:
        """Return the prompt request for a chat.

        Args:
            earlier: the episode's actions so far.
            task: the environment's text. Its words count for no agent in quote attribution.

        Raises:
            ChatRefusedError: the chat cannot be answered.
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
        """Record an action's turn in the form that its client receives."""
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
        """Return a turn's token ids in its client's form (:func:`~marft.agents.stop_strings.without_stop`)."""
        return without_stop(self.renderer, policy, tokens, text, self._stops(chat), bool(chat.begun))

    def reply(self, action: Action, pieces: bool = False) -> Reply:
        """Return an action in the form that its client receives.

        Args:
            pieces: whether to include the text of each token.
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
        """Store the most likely alternatives to an action's tokens.

        Only the client receives them; they are not recorded.
        """
        self._alternatives[name] = alternatives

    def read(self, asked: Asked, unseen: Sequence[Heard]) -> TokenIds:
        """Return the critic's token ids: the agent's chat plus unseen messages from other agents.

        If the chat template cannot render the addition, return the chat alone.
        """
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
        """Return the client's or recipe's stop string that ended a turn, or ""."""
        return ended_by(self._stops(chat), self.renderer.spelled(policy, tokens, bool(chat.begun)), text)

    def _stops(self, chat: Chat) -> list[str]:
        return [stop for stop in (*chat.stop, *self.agent.sampling.stop) if isinstance(stop, str)]

    def _shortened(self, chat: Chat, action: Action) -> str:
        """Return the reason why no turn can continue an action as sampled, or "" if a turn can."""
        calls = _calls(action)
        if action.thought:
            return THOUGHTS
        if chat.calls_once and len(self.renderer.calls(action.policy, action.tokens, chat.tools)) > len(calls) > 0:
            return ONE_CALL
        return STOPPED if calls and self._stopped(chat, action.policy, action.tokens, action.text) else ""

    def _opened(self, told: Node, chat: Chat, earlier: Sequence[Action]) -> tuple[Node, list[str]]:
        """Return the node for a turn that the client begins, and the matching own action's id in a list.

        If the client's text equals one of the agent's own turns, the node uses that turn's token ids. Otherwise the
        list is empty.

        Raises:
            ChatRefusedError: no turn can begin with this text.
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
        """Return an action's turn in the form that its client receives."""
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
        """Return the reason why a chat does not continue all own turns in its messages, or "" if it does."""
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
        if len(chat.messages) > min(context, MOST_MESSAGES):  # each message takes at least one token
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
    """Raise an error if no response can satisfy a chat's constraint.

    Raises:
        ChatRefusedError: the renderer cannot build a grammar for the constraint.
    """
    try:
        renderer.grammar(policy, chat)
    except ValueError as error:
        raise ChatRefusedError("unsupported", f"no answer can have the form that is asked for: {error}") from error


def _reason(slug: str) -> str:
    return f"{slug}: {WHY[slug]}"


def _turns(node: Node) -> list[Node]:
    """Return the turns before a node, oldest first."""
    found, at = list[Node](), node.parent
    while at is not None:
        if at.said:
            found.append(at)
        at = at.parent
    return found[::-1]


def _whole(chat: Chat) -> tuple[ChatMessage, ...]:
    """Return a chat's messages, plus the client's beginning of the next turn if given."""
    return (*chat.messages, {"role": "assistant", "content": chat.begun}) if chat.begun else chat.messages


def _calls(action: Action) -> tuple[ToolCall, ...]:
    return tuple(call for call in action.calls if call.name)
