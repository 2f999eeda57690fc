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
from typing import Protocol

import numpy as np

from marft.agents.rendering import ChatMessage, NotExact
from marft.common.types import TokenIds


class Template(Protocol):
    """Rendering from messages to token ids."""

    def start(self, messages: Sequence[ChatMessage]) -> TokenIds:
        """Return the ids for a new conversation, up to the start of the next turn."""

    def go_on(self, ids: TokenIds, messages: Sequence[ChatMessage], new: Sequence[ChatMessage]) -> TokenIds | NotExact:
        """Return the ids to append after a turn: ``new`` and the start of the next turn.

        Return ``NotExact`` if the template cannot append them exactly.
        """


@dataclass(slots=True, eq=False)
class Node:
    """Conversation segment: a prompt up to the start of the agent's turn, or the turn itself.

    Args:
        messages: messages that the node adds to its parent's.
        ids: ids that the node adds to its parent's context, [T].
        context: ids from the root to this node, [C].
        said: id of the action if the node is a turn; "" for a prompt.
        sampled: whether the turn was sampled here. A turn copied from another branch was not.
        restarted: reason why the node begins a new segment instead of continuing its predecessor.
        shortened: reason why no continuation of the turn as sampled is possible: its messages contain less.
        begun: the client's beginning of the next turn; its ids are the last ids of this node.
    """

    parent: Node | None
    messages: tuple[ChatMessage, ...]
    ids: TokenIds
    context: TokenIds
    said: str = ""
    sampled: bool = False
    restarted: str = ""
    shortened: str = ""
    begun: str = ""
    children: list[Node] = field(default_factory=list)

    @property
    def conversation(self) -> tuple[ChatMessage, ...]:
        """All messages from the root to this node."""
        stretches, at = [self.messages], self.parent
        while at is not None:
            stretches.append(at.messages)
            at = at.parent
        return tuple(message for stretch in reversed(stretches) for message in stretch)

    @property
    def before(self) -> Node:
        """Parent node, missing for the root."""
        assert self.parent is not None, "nothing comes before the root"
        return self.parent


class Conversation:
    """Conversation record of one agent."""

    def __init__(self, template: Template) -> None:
        self.template = template
        empty = np.empty(0, np.int32)
        self.root = Node(None, (), empty, empty)

    def tell(self, new: Sequence[ChatMessage], after: Node) -> Node:
        """Add messages after a turn or the root, and return the node that the next turn continues.

        Raises:
            ValueError: the chat template cannot render the messages.
        """
        reason, rest, node = "", tuple(new), after
        known = _told(after, rest)
        if known is not None:
            return known
        while node.said:
            ids = (
                NotExact(node.shortened)
                if node.shortened
                else self.template.go_on(node.context, node.conversation, rest)
            )
            if not isinstance(ids, NotExact):
                return self._add(node, rest, ids, reason)
            reason = reason or ids.reason
            while node.said:  # go back over the turn and the prompt before it
                told = node.before
                node, rest = told.before, (*told.messages, *node.messages, *rest)
                if not ids.everywhere:
                    break
        return self._add(node, rest, self.template.start(rest), reason)

    def begin(self, messages: Sequence[ChatMessage], reason: str, ids: TokenIds | None = None) -> Node:
        """Add a conversation rendered as a whole, and return the node that the next turn continues.

        Args:
            reason: reason for the new segment.
            ids: existing rendering of the messages, if available.

        Raises:
            ValueError: the chat template cannot render the messages.
        """
        known = _told(self.root, tuple(messages))
        return known or self._add(
            self.root, tuple(messages), self.template.start(messages) if ids is None else ids, reason
        )

    def open(self, told: Node, begun: str, ids: TokenIds) -> Node:
        """Add a client's beginning of the next turn, and return the node that the turn continues.

        Args:
            told: the prompt before the turn.
            begun: the text that begins the turn.
            ids: token ids for that text, [T].
        """
        known = _told(told.before, told.messages, begun)
        whole = np.concatenate([told.ids, ids])
        return known or self._add(told.before, told.messages, whole, told.restarted, begun)

    def say(
        self, told: Node, messages: Sequence[ChatMessage], ids: TokenIds, said: str, sampled: bool = True,
        shortened: str = "",
    ) -> Node:  # fmt: skip
        """Add an agent's turn and return its node.

        Args:
            ids: the sampled ids with tool outputs between them, [T].
            said: the action's id.
            shortened: reason if the messages contain less than the sampled text.
        """
        assert not told.said, "a turn follows on what an agent was told"
        known = next((child for child in told.children if child.said == said), None)
        if known is not None:
            known.sampled |= sampled
            return known
        turn = Node(told, tuple(messages), ids, np.concatenate([told.context, ids]), said, sampled, shortened=shortened)
        told.children.append(turn)
        return turn

    def reached(self, messages: Sequence[ChatMessage]) -> tuple[Node, int]:
        """Return the deepest turn (or the root) continued by these messages, and the number of messages up to it."""
        found, waiting = (self.root, 0), [(self.root, 0)]
        while waiting:
            node, at = waiting.pop()
            if node.said and at > found[1]:
                found = node, at
            for child in reversed(node.children):
                end = at + len(child.messages)
                if child.messages == tuple(messages[at:end]):
                    waiting.append((child, end))
        return found

    def _add(
        self, parent: Node, messages: tuple[ChatMessage, ...], ids: TokenIds, reason: str, begun: str = ""
    ) -> Node:  # fmt: skip
        known = _told(parent, messages, begun)
        if known is not None:
            return known
        node = Node(parent, messages, ids, np.concatenate([parent.context, ids]), restarted=reason, begun=begun)
        parent.children.append(node)
        return node


def _told(parent: Node, messages: tuple[ChatMessage, ...], begun: str = "") -> Node | None:
    """Return the existing prompt child with the same messages and the same beginning of the next turn, or None."""
    return next((child for child in parent.children if child.messages == messages and child.begun == begun), None)
