"""Which messages a chat template takes, and a chat in such messages alone.

Not every model was taught system messages, and some take messages of user and assistant by turns alone. Nothing is left
out for it: what no message of its own can say is said in the one beside it.
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

BETWEEN = "\n\n"  # texts that are said in one message
ONE, OTHER, ANSWER = "probe-of-one-text", "probe-of-another", "probe-of-an-answer"
MARK = re.compile(r"<\|\w+\|>|<</?\w+>>|</?\w+>|\[/?\w+\]")  # which begins or ends a message where it is no token


@dataclass(frozen=True, slots=True)
class Roles:
    """What a chat template takes.

    Args:
        system: it shows a system message, once, and whatever follows.
        late: also one that is not the first message.
        repeated: it shows two messages of a user, one after the other.
        marks: what it begins and ends messages with that is plain text, and no token.
    """

    system: bool = True
    late: bool = True
    repeated: bool = True
    marks: tuple[str, ...] = ()


_known: WeakKeyDictionary[PreTrainedTokenizerBase, dict[str, Roles]] = WeakKeyDictionary()


def roles_of(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]) -> Roles:
    """What a tokenizer's chat template takes: found by rendering probes, once."""
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
    """The text of a chat; "" where the template cannot show it."""
    try:
        return str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **options))
    except CANNOT_RENDER:
        return ""


def _shows_once(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any], first: str, then: str) -> bool:
    """Whether messages of these roles are both shown, once and in their order; and where one is a system message, still
    when a turn has followed. (Some show it beside the last question alone, if that is the last message.)"""
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
    """A chat as a template takes it: a system message that it does not show begins the user's message which follows, or
    is one, before the turn that it came before; where turns must alternate, messages of one role that follow on each
    other become one. Marks that are plain text are broken by a space where anybody but the agent itself wrote them, so
    that nobody speaks in another's role.

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
    """Put a message at the end of a chat, or into the one there."""
    if chat and not roles.repeated and _continues(chat[-1], message):
        message = {**message, "content": _joined(chat.pop()["content"], message["content"])}
    chat.append(message)


def _unmarked(message: ChatMessage, marks: Sequence[str]) -> dict[str, Any]:
    """The message without marks of others' roles."""
    unmarked = dict(message)
    for mark in marks if message["role"] != "assistant" else ():
        unmarked["content"] = str(unmarked["content"]).replace(mark, f"{mark[0]} {mark[1:]}")
    return unmarked


def _continues(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Whether two messages of a chat can be one."""
    return one["role"] == other["role"] in ("user", "assistant") and not (one.keys() | other.keys()) - {
        "role",
        "content",
    }


def _joined(one: object, other: object) -> str:
    return BETWEEN.join(str(text) for text in (one, other) if text)
