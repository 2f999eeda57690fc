"""Message roles supported by a chat template, and chats adapted to those roles.

Some models do not support system messages, and some accept only alternating messages of user and assistant. The
adaptation drops no text: a message without a supported role joins a neighboring message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase

from marft.agents.rendering import ChatMessage
from marft.common.thoughts import BEGINS, ENDS
from marft.models.templates import CANNOT_RENDER

BETWEEN = "\n\n"  # separator between texts joined in one message
ONE, OTHER, ANSWER = "probe-of-one-text", "probe-of-another", "probe-of-an-answer"
# marker that may start or end a message without being a token
MARK = re.compile(r"<\|\w+\|>|<</?\w+>>|</?\w+>|\[/?\w+\]")


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles supported by a chat template.

    Args:
        system: the template shows a system message exactly once, and the messages after it.
        late: it also accepts a system message that is not the first message.
        repeated: it shows two consecutive user messages.
        marks: plain-text markers at the start or end of its messages that are not single tokens.
    """

    system: bool = True
    late: bool = True
    repeated: bool = True
    marks: tuple[str, ...] = ()


_known: WeakKeyDictionary[PreTrainedTokenizerBase, dict[str, Roles]] = WeakKeyDictionary()


def roles_of(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]) -> Roles:
    """Detect the roles supported by a tokenizer's chat template; probes run once per template."""
    known, key = _known.setdefault(tokenizer, {}), repr((tokenizer.chat_template, sorted(options.items())))
    if key not in known:
        found = Roles(
            system=_shows_once(tokenizer, options, "system", "user"),
            late=_shows_once(tokenizer, options, "user", "system"),
            repeated=_shows_once(tokenizer, options, "user", "user"),
        )
        known[key] = replace(found, marks=_plain_marks(tokenizer, options, found))
    return known[key]


def _rendered(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any], chat: list[dict[str, Any]]) -> str:
    """Render a chat as text; "" if rendering fails."""
    try:
        return str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **options))
    except CANNOT_RENDER:
        return ""


def _shows_once(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any], first: str, then: str) -> bool:
    """Return whether the template shows both roles exactly once and in order.

    If a role is system, the check also runs with a following assistant turn. Some templates show a system message only
    beside the last user message.
    """
    chat = [_message(first, ONE), _message(then, OTHER)]
    texts = [_rendered(tokenizer, options, chat)]
    if "system" in (first, then):
        texts.append(_rendered(tokenizer, options, [*chat, _message("assistant", ANSWER)]))
    return all(text.count(ONE) == text.count(OTHER) == 1 and text.index(ONE) < text.index(OTHER) for text in texts)


def _plain_marks(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any], roles: Roles) -> tuple[str, ...]:
    roles_of_chat = (("system", ONE), ("user", OTHER), ("assistant", ANSWER), ("user", OTHER))
    text = _rendered(tokenizer, options, taken([_message(*one) for one in roles_of_chat], roles))
    tokens = {token.content for token in tokenizer.added_tokens_decoder.values()}
    return tuple(sorted({mark for mark in MARK.findall(text) if mark not in (*tokens, BEGINS, ENDS)}))


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def taken(messages: Sequence[ChatMessage], roles: Roles) -> list[dict[str, Any]]:
    """Adapt a chat to the roles supported by the template.

    An unsupported system message is prepended to the following user message. If no user message follows, it becomes a
    user message itself. If roles must alternate, consecutive messages of one role are merged. In messages not written
    by the agent, a space breaks plain-text role markers. Such a message therefore cannot imitate another role.

    >>> taken([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}], Roles(system=False))
    [{'role': 'user', 'content': 'Be brief.\\n\\nHi.'}]
    """
    chat, before = list[dict[str, Any]](), ""
    for index, message in enumerate(_unmarked(one, roles.marks) for one in messages):
        if message["role"] == "system" and not (roles.late if index else roles.system):
            before = _joined(before, message["content"])
            continue
        if before and message["role"] == "user":
            message = {**message, "content": _joined(before, message["content"])}
        elif before:
            _add(chat, _message("user", before), roles)
        _add(chat, message, roles)
        before = ""
    if before:
        _add(chat, _message("user", before), roles)
    return chat


def _add(chat: list[dict[str, Any]], message: dict[str, Any], roles: Roles) -> None:
    """Append a message to a chat, or merge it into the last message."""
    if chat and not roles.repeated and _continues(chat[-1], message):
        message = {**message, "content": _joined(chat.pop()["content"], message["content"])}
    chat.append(message)


def _unmarked(message: ChatMessage, marks: Sequence[str]) -> dict[str, Any]:
    """Break the role markers in a message, unless the assistant wrote it."""
    unmarked = dict(message)
    for mark in marks if message["role"] != "assistant" else ():
        unmarked["content"] = str(unmarked["content"]).replace(mark, f"{mark[0]} {mark[1:]}")
    return unmarked


def _continues(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Return whether two messages can merge into a single message."""
    return one["role"] == other["role"] in ("user", "assistant") and not (one.keys() | other.keys()) - {
        "role",
        "content",
    }


def _joined(one: object, other: object) -> str:
    return BETWEEN.join(str(text) for text in (one, other) if text)
