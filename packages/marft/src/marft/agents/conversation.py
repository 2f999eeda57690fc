"""Tree of token-id segments for one agent's conversation.

A conversation is a list of messages. In the tree, a node adds messages and their token ids. The ids from the root
to a node are the context at that node. Turns keep the ids that were sampled. A continuation of a turn is appended
to it. If messages cannot be appended exactly, a new segment begins at the deepest turn that the chat template
leaves unchanged, or at the root. A turn that continued a freshly rendered chat is stored after that chat, with the
ids sampled from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from marft.agents.prompt_messages import ChatMessage, InexactContinuation, Renderer
from marft.common.types import TokenIds, Tool


@dataclass(frozen=True, slots=True)
class Template:
    """Chat template of a policy, with the tools offered to its agent."""

    renderer: Renderer
    policy: str
    tools: tuple[Tool, ...]

    def tokenize_prompt(self, messages: Sequence[ChatMessage]) -> TokenIds:
        """Return the token ids for a new conversation, up to the start of the next turn, [T]."""
        return self.renderer.tokenize_prompt(self.policy, messages, self.tools)

    def continue_chat(
        self, ids: TokenIds, messages: Sequence[ChatMessage], new: Sequence[ChatMessage]
    ) -> TokenIds | InexactContinuation:
        """Return the ids to append after a turn: ``new`` and the start of the next turn.

        Return ``InexactContinuation`` if the template cannot append them exactly.
        """
        return self.renderer.continue_chat(self.policy, ids, messages, new, self.tools)


@dataclass(slots=True, eq=False)
class Node:
    """Conversation segment: a prompt up to the start of the agent's turn, or the turn itself.

    Args:
        messages: messages that the node adds to its parent's.
        ids: ids that the node adds to its parent's context, [T].
        context: ids from the root to this node, [C].
        action_id: id of the action if the node is a turn; "" for a prompt.
        sampled: whether the turn was sampled here. A turn copied from another branch was not.
        restart_reason: reason why the node begins a new segment instead of continuing its predecessor.
        shortened_reason: reason why no continuation of the turn as sampled is possible: its messages contain less.
        prefix: the client's beginning of the next turn; its ids are the last ids of this node.
    """

    parent: Node | None
    messages: tuple[ChatMessage, ...]
    ids: TokenIds
    context: TokenIds
    action_id: str = ""
    is_sampled: bool = False
    restart_reason: str = ""
    shortened_reason: str = ""
    prefix: str = ""
    children: list[Node] = field(default_factory=list)

    @property
    def conversation(self) -> tuple[ChatMessage, ...]:
        """All messages from the root to this node."""
        segments, at = [self.messages], self.parent
        while at is not None:
            segments.append(at.messages)
            at = at.parent
        return tuple(message for segment in reversed(segments) for message in segment)

    @property
    def previous(self) -> Node:
        """Parent node, missing for the root."""
        assert self.parent is not None, "nothing comes before the root"
        return self.parent


class Conversation:
    """Conversation record of one agent."""

    def __init__(self, template: Template) -> None:
        self.template = template
        empty = np.empty(0, np.int32)
        self.root = Node(None, (), empty, empty)

    def add_messages(self, new: Sequence[ChatMessage], after: Node) -> Node:
        """Add messages after a turn or the root, and return the node that the next turn continues.

        Raises:
            ValueError: the chat template cannot render the messages.
        """
        reason, messages, node = "", tuple(new), after
        existing = _find_prompt(after, messages)
        if existing is not None:
            return existing
        while node.action_id:
            ids: TokenIds | InexactContinuation = InexactContinuation(node.shortened_reason)
            if not node.shortened_reason:
                ids = self.template.continue_chat(node.context, node.conversation, messages)
            if not isinstance(ids, InexactContinuation):
                return self._add_prompt(node, messages, ids, reason)
            reason = reason or ids.reason
            while node.action_id:  # go back over the turn and the prompt before it
                prompt_node = node.previous
                node, messages = prompt_node.previous, (*prompt_node.messages, *node.messages, *messages)
                if not ids.always:
                    break
        return self._add_prompt(node, messages, self.template.tokenize_prompt(messages), reason)

    def add_rendered(self, messages: Sequence[ChatMessage], reason: str, ids: TokenIds | None = None) -> Node:
        """Add a conversation rendered as a whole, and return the node that the next turn continues.

        Args:
            reason: reason for the new segment.
            ids: existing rendering of the messages, if available.

        Raises:
            ValueError: the chat template cannot render the messages.
        """
        existing = _find_prompt(self.root, tuple(messages))
        if existing is not None:
            return existing
        ids = self.template.tokenize_prompt(messages) if ids is None else ids
        return self._add_prompt(self.root, tuple(messages), ids, reason)

    def add_prefix(self, prompt_node: Node, prefix: str, ids: TokenIds) -> Node:
        """Add a client's beginning of the next turn, and return the node that the turn continues.

        Args:
            prompt_node: the prompt before the turn.
            prefix: the text that begins the turn.
            ids: token ids for that text, [T].
        """
        prompt_ids, reason = np.concatenate([prompt_node.ids, ids]), prompt_node.restart_reason
        return self._add_prompt(prompt_node.previous, prompt_node.messages, prompt_ids, reason, prefix)

    def add_turn(
        self,
        prompt_node: Node,
        messages: Sequence[ChatMessage],
        ids: TokenIds,
        action_id: str,
        sampled: bool = True,
        shortened_reason: str = "",
    ) -> Node:
        """Add an agent's turn and return its node.

        Args:
            ids: the sampled ids with tool outputs between them, [T].
            action_id: the action's id.
            shortened_reason: reason if the messages contain less than the sampled text.
        """
        assert not prompt_node.action_id, "a turn follows on what an agent was told"
        existing = next((child for child in prompt_node.children if child.action_id == action_id), None)
        if existing is not None:
            existing.is_sampled |= sampled
            return existing
        context = np.concatenate([prompt_node.context, ids])
        turn = Node(prompt_node, tuple(messages), ids, context, action_id, sampled, shortened_reason=shortened_reason)
        prompt_node.children.append(turn)
        return turn

    def find_turn(self, messages: Sequence[ChatMessage]) -> tuple[Node, int]:
        """Return the deepest turn (or the root) continued by these messages, and the number of messages up to it."""
        last_turn, waiting = (self.root, 0), [(self.root, 0)]
        while waiting:
            node, at = waiting.pop()
            if node.action_id and at > last_turn[1]:
                last_turn = node, at
            for child in reversed(node.children):
                end = at + len(child.messages)
                if child.messages == tuple(messages[at:end]):
                    waiting.append((child, end))
        return last_turn

    def _add_prompt(
        self, parent: Node, messages: tuple[ChatMessage, ...], ids: TokenIds, reason: str, prefix: str = ""
    ) -> Node:
        existing = _find_prompt(parent, messages, prefix)
        if existing is not None:
            return existing
        node = Node(parent, messages, ids, np.concatenate([parent.context, ids]), restart_reason=reason, prefix=prefix)
        parent.children.append(node)
        return node


def _find_prompt(parent: Node, messages: tuple[ChatMessage, ...], prefix: str = "") -> Node | None:
    """Return the existing prompt child with the same messages and the same beginning of the next turn, or None."""
    return next((child for child in parent.children if child.messages == messages and child.prefix == prefix), None)


def find_stop_string(stops: Sequence[str], sampled_text: str, text: str) -> str:
    """Return the stop string that ended a turn, or "".

    Args:
        sampled_text: the complete sampled text.
        text: the text as passed on, without the stop string.
    """
    matches = [(at, len(stop), stop) for stop in stops if (at := sampled_text.find(stop)) >= 0]
    return min(matches)[2] if matches and min(matches)[2] not in text else ""


def strip_stop_string(
    renderer: Renderer, policy: str, tokens: TokenIds, text: str, stops: Sequence[str], inside: bool = False
) -> TokenIds:
    """Return a turn's token ids without the final stop string and any text sampled with it.

    The result keeps the sampled ids. Only text from a token that also contains the start of the stop string is
    encoded again.

    Args:
        tokens: the turn as sampled, [T].
        text: the turn's text without the stop string.
        inside: whether the turn continues a client's beginning.
    """
    if not stops or not find_stop_string(stops, renderer.decode_tokens(policy, tokens, inside), text):
        return tokens
    count = len(tokens)
    while not text.startswith(decoded := renderer.decode_tokens(policy, tokens[:count], inside)):
        count -= 1
    return np.concatenate([tokens[:count], renderer.encode_text(policy, text[len(decoded) :])])
