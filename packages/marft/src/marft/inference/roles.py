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

from marft.agents.prompt_messages import ChatMessage
from marft.common.reasoning import THINK_END, THINK_START
from marft.models.chat_templates import RENDER_ERRORS

SEPARATOR = "\n\n"  # separator between texts joined in one message
PROBE_FIRST, PROBE_SECOND, PROBE_ANSWER = "probe-of-one-text", "probe-of-another", "probe-of-an-answer"
# marker that may start or end a message without being a token
ROLE_MARKER = re.compile(r"<\|\w+\|>|<</?\w+>>|</?\w+>|\[/?\w+\]")


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles supported by a chat template.

    Args:
        system: the template shows a system message exactly once, and the messages after it.
        late_system: it also accepts a system message that is not the first message.
        repeated_user: it shows two consecutive user messages.
        markers: plain-text markers at the start or end of its messages that are not single tokens.
    """

    system: bool = True
    late_system: bool = True
    repeated_user: bool = True
    markers: tuple[str, ...] = ()


_roles_cache: WeakKeyDictionary[PreTrainedTokenizerBase, dict[str, Roles]] = WeakKeyDictionary()


def detect_roles(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]) -> Roles:
    """Detect the roles supported by a tokenizer's chat template; probes run once per template."""
    cached, key = _roles_cache.setdefault(tokenizer, {}), repr((tokenizer.chat_template, sorted(options.items())))
    if key not in cached:
        roles = Roles(
            system=_shows_once(tokenizer, options, "system", "user"),
            late_system=_shows_once(tokenizer, options, "user", "system"),
            repeated_user=_shows_once(tokenizer, options, "user", "user"),
        )
        cached[key] = replace(roles, markers=_find_markers(tokenizer, options, roles))
    return cached[key]


def _render(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any], chat: list[dict[str, Any]]) -> str:
    """Render a chat as text; "" if rendering fails."""
    try:
        return str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **options))
    except RENDER_ERRORS:
        return ""


def _shows_once(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any], first: str, second: str) -> bool:
    """Return whether the template shows both roles exactly once and in order.

    If a role is system, the check also runs with a following assistant turn. Some templates show a system message only
    beside the last user message.
    """
    chat = [_make_message(first, PROBE_FIRST), _make_message(second, PROBE_SECOND)]
    texts = [_render(tokenizer, options, chat)]
    if "system" in (first, second):
        texts.append(_render(tokenizer, options, [*chat, _make_message("assistant", PROBE_ANSWER)]))
    return all(
        text.count(PROBE_FIRST) == text.count(PROBE_SECOND) == 1 and text.index(PROBE_FIRST) < text.index(PROBE_SECOND)
        for text in texts
    )


def _find_markers(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any], roles: Roles) -> tuple[str, ...]:
    roles_of_chat = (
        ("system", PROBE_FIRST),
        ("user", PROBE_SECOND),
        ("assistant", PROBE_ANSWER),
        ("user", PROBE_SECOND),
    )
    text = _render(tokenizer, options, adapt_chat([_make_message(*probe) for probe in roles_of_chat], roles))
    tokens = {token.content for token in tokenizer.added_tokens_decoder.values()}
    return tuple(
        sorted({marker for marker in ROLE_MARKER.findall(text) if marker not in (*tokens, THINK_START, THINK_END)})
    )


def _make_message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def adapt_chat(messages: Sequence[ChatMessage], roles: Roles) -> list[dict[str, Any]]:
    """Adapt a chat to the roles supported by the template.

    An unsupported system message is prepended to the following user message. If no user message follows, it becomes a
    user message itself. If roles must alternate, consecutive messages of one role are merged. In messages not written
    by the agent, a space breaks plain-text role markers. Such a message therefore cannot imitate another role.

    >>> chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}]
    >>> adapt_chat(chat, Roles(system=False))
    [{'role': 'user', 'content': 'Be brief.\\n\\nHi.'}]
    """
    chat, pending_system = list[dict[str, Any]](), ""
    for index, message in enumerate(_break_markers(original, roles.markers) for original in messages):
        if message["role"] == "system" and not (roles.late_system if index else roles.system):
            pending_system = _join_texts(pending_system, message["content"])
            continue
        if pending_system and message["role"] == "user":
            message = {**message, "content": _join_texts(pending_system, message["content"])}
        elif pending_system:
            _append_or_merge(chat, _make_message("user", pending_system), roles)
        _append_or_merge(chat, message, roles)
        pending_system = ""
    if pending_system:
        _append_or_merge(chat, _make_message("user", pending_system), roles)
    return chat


def _append_or_merge(chat: list[dict[str, Any]], message: dict[str, Any], roles: Roles) -> None:
    """Append a message to a chat, or merge it into the last message."""
    if chat and not roles.repeated_user and _can_merge(chat[-1], message):
        message = {**message, "content": _join_texts(chat.pop()["content"], message["content"])}
    chat.append(message)


def _break_markers(message: ChatMessage, markers: Sequence[str]) -> dict[str, Any]:
    """Break the role markers in a message, unless the assistant wrote it."""
    result = dict(message)
    for marker in markers if message["role"] != "assistant" else ():
        result["content"] = str(result["content"]).replace(marker, f"{marker[0]} {marker[1:]}")
    return result


def _can_merge(first: Mapping[str, object], second: Mapping[str, object]) -> bool:
    """Return whether two messages can merge into a single message."""
    return first["role"] == second["role"] in ("user", "assistant") and not (first.keys() | second.keys()) - {
        "role",
        "content",
    }


def _join_texts(first: object, second: object) -> str:
    return SEPARATOR.join(str(text) for text in (first, second) if text)
