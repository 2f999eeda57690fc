"""What an agent was told and said, as a tree of stretches of ids.

A conversation is a list of messages. Its record is a tree: a node adds messages and the ids that they came to, and the
ids from the root to a node are what was in context there. Turns stay the ids that were sampled. What goes on from a
turn is appended to it; what cannot be appended exactly begins a new segment, at the deepest turn that its chat template
leaves as it is, or at the root. A turn that went on from a chat that was rendered anew is there as it ended: after that
chat, with what was sampled from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from marft.agents.rendering import ChatMessage, NotExact
from marft.common.types import TokenIds


class Template(Protocol):
    """How messages become ids."""

    def start(self, messages: Sequence[ChatMessage]) -> TokenIds:
        """The ids of a conversation, up to where the next turn begins."""

    def go_on(self, ids: TokenIds, messages: Sequence[ChatMessage], new: Sequence[ChatMessage]) -> TokenIds | NotExact:
        """What is appended to a conversation that ends with a turn: ``new``, and the start of the next turn."""


@dataclass(slots=True, eq=False)
class Node:
    """A stretch of a conversation: what an agent is told up to where its turn begins, or such a turn.

    Args:
        messages: that it adds to its parent's.
        ids: that it adds to its parent's context, [T].
        context: from the root to here, [C].
        said: the id of the action whose turn it is; "" where the agent is told something.
        sampled: whether the turn was sampled here. A turn that is taken over from another branch was not.
        restarted: why it begins a new segment, in place of what its messages would go on from.
        shortened: why nothing can go on from a turn as it was sampled: its messages say less.
        begun: the text that a client begins the next turn with; its ids are the last ones here.
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
        """All messages from the root to here."""
        stretches, at = [self.messages], self.parent
        while at is not None:
            stretches.append(at.messages)
            at = at.parent
        return tuple(message for stretch in reversed(stretches) for message in stretch)

    @property
    def before(self) -> Node:
        """What it was said or told after."""
        assert self.parent is not None, "nothing comes before the root"
        return self.parent


class Conversation:
    """The record of one agent's conversation."""

    def __init__(self, template: Template) -> None:
        self.template = template
        empty = np.empty(0, np.int32)
        self.root = Node(None, (), empty, empty)

    def tell(self, new: Sequence[ChatMessage], after: Node) -> Node:
        """What the agent is told after a turn, or after nothing: the node that its next turn goes on from.

        Raises:
            ValueError: the chat template cannot show it.
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
            while node.said:  # back over the turn and what it was said to
                told = node.before
                node, rest = told.before, (*told.messages, *node.messages, *rest)
                if not ids.everywhere:
                    break
        return self._add(node, rest, self.template.start(rest), reason)

    def begin(self, messages: Sequence[ChatMessage], reason: str, ids: TokenIds | None = None) -> Node:
        """A conversation that is rendered as a whole: the node that its next turn goes on from.

        Args:
            ids: as which it has been rendered before, where it has.

        Raises:
            ValueError: the chat template cannot show it.
        """
        known = _told(self.root, tuple(messages))
        return known or self._add(
            self.root, tuple(messages), self.template.start(messages) if ids is None else ids, reason
        )

    def open(self, told: Node, begun: str, ids: TokenIds) -> Node:
        """Return the node that a turn goes on from which a client begins.

        Args:
            told: what the agent is told before.
            begun: the text that the turn begins with.
            ids: of that text, [T].
        """
        known = _told(told.before, told.messages, begun)
        whole = np.concatenate([told.ids, ids])
        return known or self._add(told.before, told.messages, whole, told.restarted, begun)

    def say(
        self, told: Node, messages: Sequence[ChatMessage], ids: TokenIds, said: str, sampled: bool = True,
        shortened: str = "",
    ) -> Node:  # fmt: skip
        """An agent's turn.

        Args:
            ids: as they were sampled, and between them what tools answered, [T].
            said: the action's id.
            shortened: why the messages say less than was sampled, if so.
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
        """The deepest turn that these messages go on from, or the root → and how many of them lead there."""
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
    """Where the same was told after the same before (a turn, or the root), and the next turn begins in the same way."""
    return next((child for child in parent.children if child.messages == messages and child.begun == begun), None)
