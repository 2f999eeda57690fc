"""History of one agent's client chats in an episode, with attribution of quotes from other agents.

The agent answers a chat after the deepest of its turns that the chat continues, using that turn's token ids. If a
program has changed an earlier part (``RESTART_REASONS``), the rest of that history is plain text: a new segment begins
there, and the history keeps the reason.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from marft.agents.agents import Agent
from marft.agents.chat import Chat, ChatRefusedError, Reply
from marft.agents.conversation import Conversation, Node, Template, find_stop_string, strip_stop_string
from marft.agents.conversation_memory import REASONING_DROPPED, PromptRequest, ReceivedMessage
from marft.agents.prompt_messages import ChatMessage, Renderer, format_message
from marft.agents.quote_tracker import QuoteTracker, iter_texts
from marft.common.types import Action, Prompt, TokenIds, ToolCall
from marft.config.interfaces.channel import Message

RESTART_REASONS = {
    "edited": "what was said is changed, or something was put in",
    "trimmed": "what was said stands after something else than it was said to",
    "tools": "other tools are offered than before",
    "template": "",  # the chat template gives the reason itself
}
EXTRA_CALLS_DROPPED = "of its calls the first alone was told"
STOP_STRING_DROPPED = "the stop string behind its calls was not told"
MAX_MESSAGES = 8192  # maximum messages in a chat; rendering more would block all episodes
CHARACTERS_PER_TOKEN = 64  # approximate maximum characters per token; a longer chat is rejected without rendering


class ChatHistory:
    """One agent's conversations with an episode's programs: one tree per list of tools.

    Args:
        quote_tracker: all actions of the episode and the texts that agents saw.
    """

    def __init__(self, agent: Agent, renderer: Renderer, quote_tracker: QuoteTracker) -> None:
        self.agent, self.renderer, self._quote_tracker = agent, renderer, quote_tracker
        self._conversations: dict[str, Conversation] = {}
        self._replies: dict[str, tuple[ChatMessage, Reply]] = {}  # by action id
        self._alternatives: dict[str, Sequence[Sequence[tuple[int, float]]]] = {}  # by action id

    def build_request(self, chat: Chat, earlier: Sequence[Action], task: str = "") -> PromptRequest:
        """Return the prompt request for a chat.

        Args:
            earlier: the episode's actions so far.
            task: the environment's text. Its words count for no agent in quote attribution.

        Raises:
            ChatRefusedError: the chat cannot be answered.
        """
        self._check(chat, earlier)
        conversation = self._conversation(chat)
        node, count = conversation.find_turn(chat.messages)
        reason = self._restart_reason(chat, node, count)
        try:
            prompt_node = conversation.add_messages(chat.messages[count:], node)
        except ValueError as error:
            raise ChatRefusedError("invalid", str(error)) from error
        path = [turn.action_id for turn in _previous_turns(prompt_node)]
        if chat.prefix:
            prompt_node, prefix_ids = self._add_prefix(prompt_node, chat, earlier)
            path += prefix_ids
        self._check_length(len(prompt_node.context))
        if not reason and prompt_node.restart_reason:
            reason = f"template: {prompt_node.restart_reason}"
        actions = {action.id: action for action in earlier}
        seen = tuple(dict.fromkeys(name for action_id in path for name in (*actions[action_id].sees, action_id)))
        if chat.sees is None:
            new = [*iter_texts(chat.messages[count:]), chat.prefix]
            quoted = self._quote_tracker.find_quoted(new, [task, self.agent.profile.instructions], earlier)
            new_actions = [action for action in earlier if action.id in quoted.difference(seen)]
        else:
            new_actions = [actions[name] for name in dict.fromkeys(chat.sees) if name not in seen]
        received = [ReceivedMessage(new, Message(new.agent, new.message), new.message) for new in new_actions]
        prompt = Prompt(prompt_node.context, 0, _messages_with_prefix(chat), chat.tools)
        return PromptRequest(prompt, received, (), tuple(path), seen, reason, prompt_node, from_client=True)

    def store(self, request: PromptRequest, chat: Chat, action: Action) -> None:
        """Record an action's turn in the form that its client receives."""
        assert request.node is not None, "it was asked with this record"
        calls = _named_calls(action)
        message = self._message(action)
        if chat.prefix:
            message = {**message, "content": f"{chat.prefix}{message['content'] or ''}"}
        ids = self.client_tokens(chat, action.policy, action.tokens, action.text)
        shortened = self._shortened_reason(chat, action)
        self._conversation(chat).add_turn(request.node, [message], ids, action.id, shortened_reason=shortened)
        thought, stopped = action.text[: action.thought], self._matched_stop(chat, action)
        self._replies[action.id] = message, Reply(action, message, calls, thought, chat.prefix, stopped)
        self._quote_tracker.add_action(action, message, chat)

    def client_tokens(self, chat: Chat, policy: str, tokens: TokenIds, text: str) -> TokenIds:
        """Return a turn's token ids in its client's form (:func:`~marft.agents.conversation.strip_stop_string`)."""
        return strip_stop_string(self.renderer, policy, tokens, text, self._stop_strings(chat), bool(chat.prefix))

    def reply(self, action: Action, pieces: bool = False) -> Reply:
        """Return an action in the form that its client receives.

        Args:
            pieces: whether to include the text of each token.
        """
        reply = self._replies[action.id][1]
        if not pieces:
            return reply
        candidates, token_texts = self._alternatives.get(action.id, ()), self.renderer.token_texts
        ids = np.array([token for position in candidates for token, _ in position], np.int32)
        begin, first = 0 if reply.prefix else 1, candidates[0] if candidates else ()
        texts = iter(token_texts(action.policy, ids, begin * len(first)))
        alternatives = tuple(tuple((next(texts), value) for _, value in position) for position in candidates)
        return replace(reply, pieces=token_texts(action.policy, action.tokens, begin), alternatives=alternatives)

    def store_alternatives(self, name: str, alternatives: Sequence[Sequence[tuple[int, float]]]) -> None:
        """Store the most likely alternatives to an action's tokens.

        Only the client receives them; they are not recorded.
        """
        self._alternatives[name] = alternatives

    def critic_tokens(self, request: PromptRequest, new_messages: Sequence[ReceivedMessage]) -> TokenIds:
        """Return the critic's token ids: the agent's chat plus unseen messages from other agents.

        If the chat template cannot render the addition, return the chat alone.
        """
        prompt = request.prompt
        added = "\n\n".join(format_message(received.message) for received in new_messages)
        prefix = request.node.prefix if request.node else ""
        chat = prompt.chat[:-1] if prefix else prompt.chat
        try:
            ids = self.renderer.tokenize_prompt(
                self.agent.policy, [*chat, {"role": "user", "content": added}], prompt.tools
            )
            return np.concatenate([ids, self.renderer.encode_prefix(self.agent.policy, prefix)]) if prefix else ids
        except ValueError:
            return prompt.ids

    def _matched_stop(self, chat: Chat, action: Action) -> str:
        """Return the client's or recipe's stop string that ended a turn, or ""."""
        sampled_text = self.renderer.decode_tokens(action.policy, action.tokens, bool(chat.prefix))
        return find_stop_string(self._stop_strings(chat), sampled_text, action.text)

    def _stop_strings(self, chat: Chat) -> list[str]:
        return [stop for stop in (*chat.stop, *self.agent.sampling.stop) if isinstance(stop, str)]

    def _shortened_reason(self, chat: Chat, action: Action) -> str:
        """Return the reason why no turn can continue an action as sampled, or "" if a turn can."""
        calls = _named_calls(action)
        if action.thought:
            return REASONING_DROPPED
        if chat.stops_after_first_call:
            num_sampled_calls = len(self.renderer.calls(action.policy, action.tokens, chat.tools))
            if num_sampled_calls > len(calls) > 0:
                return EXTRA_CALLS_DROPPED
        return STOP_STRING_DROPPED if calls and self._matched_stop(chat, action) else ""

    def _add_prefix(self, prompt_node: Node, chat: Chat, earlier: Sequence[Action]) -> tuple[Node, list[str]]:
        """Return the node for a turn that the client begins, and the matching own action's id in a list.

        If the client's text equals one of the agent's own turns, the node uses that turn's token ids. Otherwise the
        list is empty.

        Raises:
            ChatRefusedError: no turn can begin with this text.
        """
        if chat.constraint:
            raise ChatRefusedError("unsupported", "an answer of a given form is written from its beginning on")
        policy, turn = self.agent.policy, ({"role": "assistant", "content": chat.prefix},)
        try:
            ids = self.renderer.encode_prefix(policy, chat.prefix)
        except ValueError as error:
            raise ChatRefusedError("unsupported", f"the last message cannot be continued: {error}") from error
        own_turn = next((child for child in prompt_node.children if child.messages == turn), None)
        if own_turn is None or own_turn.shortened_reason:
            return self._conversation(chat).add_prefix(prompt_node, chat.prefix, ids), []
        action = next(action for action in earlier if action.id == own_turn.action_id)
        suffix_length = len(action.tokens) - self.renderer.response_prefix(policy, action)
        ids = own_turn.ids[: len(own_turn.ids) - (suffix_length if own_turn.ids is action.tokens else 0)]
        return self._conversation(chat).add_prefix(prompt_node, chat.prefix, ids), [own_turn.action_id]

    def _message(self, action: Action) -> ChatMessage:
        """Return an action's turn in the form that its client receives."""
        calls = _named_calls(action)
        if not calls:
            return {"role": "assistant", "content": action.message}
        return self.renderer.tool_call_messages(action.policy, action.message, calls, np.empty(0, np.int32))[0]

    def _conversation(self, chat: Chat) -> Conversation:
        key = json.dumps([(tool.name, tool.description, tool.parameters) for tool in chat.tools])
        if key not in self._conversations:
            self._conversations[key] = Conversation(Template(self.renderer, self.agent.policy, chat.tools))
        return self._conversations[key]

    def _restart_reason(self, chat: Chat, node: Node, count: int) -> str:
        """Return the reason why a chat does not continue all own turns in its messages, or "" if it does."""
        new_messages = chat.messages[count:]
        if not any(message["role"] == "assistant" for message in new_messages):
            return ""
        if any(conversation.find_turn(chat.messages)[1] > count for conversation in self._conversations.values()):
            return _format_reason("tools")
        own_messages = [message for message, _ in self._replies.values()]
        first = next(n for n, message in enumerate(new_messages) if message["role"] == "assistant")
        answered = any(child.messages == new_messages[:first] and child.children for child in node.children)
        if new_messages[first] not in own_messages and (node.action_id or answered):
            return _format_reason("edited")
        return _format_reason("trimmed") if any(message in own_messages for message in new_messages) else ""

    def _check(self, chat: Chat, earlier: Sequence[Action]) -> None:
        context = self.renderer.context_length(self.agent.policy)
        if len(chat.messages) > min(context, MAX_MESSAGES):  # each message takes at least one token
            raise self._too_long_error(f"{len(chat.messages)} messages")
        size = sum(len(str(message["content"])) for message in _messages_with_prefix(chat))
        if size > CHARACTERS_PER_TOKEN * context:
            raise self._too_long_error(f"{size} characters")
        unknown = set(chat.sees or ()) - {action.id for action in earlier}
        if unknown:
            raise ChatRefusedError("invalid", f"no action of this episode is called {min(unknown)!r}")
        try:
            if chat.tools and chat.parse_calls:
                self.renderer.calls(self.agent.policy, np.empty(0, np.int32), chat.tools)
        except ValueError as error:
            raise ChatRefusedError("invalid", str(error)) from error
        if chat.constraint:
            check_constraint(self.renderer, self.agent.policy, chat)

    def _check_length(self, tokens: int) -> None:
        if tokens >= self.renderer.context_length(self.agent.policy):
            raise self._too_long_error(f"{tokens} tokens")

    def _too_long_error(self, size: str) -> ChatRefusedError:
        max_tokens = self.renderer.context_length(self.agent.policy)
        return ChatRefusedError(
            "too_long", f"This model's maximum context length is {max_tokens} tokens, and the messages have {size}."
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


def _format_reason(slug: str) -> str:
    return f"{slug}: {RESTART_REASONS[slug]}"


def _previous_turns(node: Node) -> list[Node]:
    """Return the turns before a node, oldest first."""
    turns, at = list[Node](), node.parent
    while at is not None:
        if at.action_id:
            turns.append(at)
        at = at.parent
    return turns[::-1]


def _messages_with_prefix(chat: Chat) -> tuple[ChatMessage, ...]:
    """Return a chat's messages, plus the client's beginning of the next turn if given."""
    return (*chat.messages, {"role": "assistant", "content": chat.prefix}) if chat.prefix else chat.messages


def _named_calls(action: Action) -> tuple[ToolCall, ...]:
    return tuple(call for call in action.calls if call.name)


def count_chat_tokens(renderer: Renderer, policy: str, chat: Chat) -> int:
    """Return the number of tokens in a chat, its tools and the opening of the next turn.

    The count includes the client's beginning of that turn.

    Raises:
        ChatRefusedError: the chat template cannot render the chat, or the chat far exceeds the model's context.
    """
    context = renderer.context_length(policy)
    size = sum(len(str(message["content"])) for message in chat.messages) + len(chat.prefix)
    if size > CHARACTERS_PER_TOKEN * context or len(chat.messages) > MAX_MESSAGES:
        raise ChatRefusedError("too_long", f"This model's maximum context length is {context} tokens.")
    try:
        count = len(renderer.tokenize_prompt(policy, list(chat.messages), chat.tools))
        return count + (len(renderer.encode_prefix(policy, chat.prefix)) if chat.prefix else 0)
    except ValueError as error:
        raise ChatRefusedError("invalid", str(error)) from error
