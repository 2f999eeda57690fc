"""Messages in the form that a chat template takes: roles, reasoning, and the arguments and ids of calls.

Probes are rendered once per template to detect what it takes. Some models do not support system messages, and some
accept only alternating messages of user and assistant. Some templates take reasoning under a key of its own. The
adaptation drops no text: a message without a supported role joins a neighboring message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase

from marft.agents.prompt_messages import ChatMessage
from marft.common.reasoning import DELIMITER_PAIRS, THINK_END, THINK_START, split_reasoning
from marft.models.chat_templates import RENDER_ERRORS

TemplateMessage = dict[str, Any]  # message in the form that transformers takes
SEPARATOR = "\n\n"  # separator between texts joined in one message
PROBE_FIRST, PROBE_SECOND, PROBE_REPLY = "probe-of-one-text", "probe-of-another", "probe-of-an-answer"
PROBE_REASONING = "probe-of-reasoning"
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")  # keys of a message, as templates name them
# marker that may start or end a message without being a token
ROLE_MARKER = re.compile(r"<\|\w+\|>|<</?\w+>>|</?\w+>|\[/?\w+\]")


@dataclass(frozen=True, slots=True)
class RoleSupport:
    """Roles and messages supported by a chat template.

    Args:
        system: the template shows a system message exactly once, and the messages after it.
        late_system: it also accepts a system message that is not the first message.
        repeated_user: it shows two consecutive user messages.
        markers: plain-text markers at the start or end of its messages that are not single tokens.
        reasoning_key: message key for reasoning, if the template does not show reasoning in the text; "" otherwise.
        joins_reasoning: beside calls, the template shows either reasoning or text (gpt-oss).
        opened_reasoning: delimiters of the reasoning that the template begins each turn with; empty if it begins none.
        text_arguments: a call's arguments must be JSON text.
        named_call_ids: a call's id contains the tool's name and the call's number (Kimi K2).
    """

    system: bool = True
    late_system: bool = True
    repeated_user: bool = True
    markers: tuple[str, ...] = ()
    reasoning_key: str = ""
    joins_reasoning: bool = False
    opened_reasoning: tuple[str, ...] = ()
    text_arguments: bool = False
    named_call_ids: bool = False


_roles_cache: WeakKeyDictionary[PreTrainedTokenizerBase, dict[str, RoleSupport]] = WeakKeyDictionary()


def detect_roles(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]) -> RoleSupport:
    """Detect the roles supported by a tokenizer's chat template; probes run once per template."""
    cached, key = _roles_cache.setdefault(tokenizer, {}), repr((tokenizer.chat_template, sorted(options.items())))
    if key not in cached:
        reasoning_key = _find_reasoning_key(tokenizer, options)
        prompt = _render(tokenizer, options, [_make_message("user", PROBE_FIRST)]).rstrip()
        roles = RoleSupport(
            opened_reasoning=next((tags for tags in DELIMITER_PAIRS if prompt.endswith(tags[0])), ()),
            system=_shows_once(tokenizer, options, "system", "user"),
            late_system=_shows_once(tokenizer, options, "user", "system"),
            repeated_user=_shows_once(tokenizer, options, "user", "user"),
            reasoning_key=reasoning_key,
            joins_reasoning=bool(reasoning_key) and _joins_reasoning(tokenizer, options, reasoning_key),
            text_arguments=_takes_text_arguments(tokenizer, options),
            named_call_ids="<|tool_call_argument_begin|>" in template_source(tokenizer),
        )
        cached[key] = replace(roles, markers=_find_markers(tokenizer, options, roles))
    return cached[key]


def _render(
    tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any], chat: list[TemplateMessage], begin: bool = True
) -> str:
    """Render a chat as text; "" if rendering fails.

    Args:
        begin: whether the result ends with the start of the assistant's next turn.
    """
    try:
        return str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=begin, **options))
    except RENDER_ERRORS:
        return ""


def _shows_once(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, object], first: str, second: str) -> bool:
    """Return whether the template shows both roles exactly once and in order.

    If a role is system, the check also runs with a following assistant turn. Some templates show a system message only
    beside the last user message.
    """
    chat = [_make_message(first, PROBE_FIRST), _make_message(second, PROBE_SECOND)]
    texts = [_render(tokenizer, options, chat)]
    if "system" in (first, second):
        texts.append(_render(tokenizer, options, [*chat, _make_message("assistant", PROBE_REPLY)]))
    return all(
        text.count(PROBE_FIRST) == text.count(PROBE_SECOND) == 1 and text.index(PROBE_FIRST) < text.index(PROBE_SECOND)
        for text in texts
    )


def _find_markers(
    tokenizer: PreTrainedTokenizerBase, options: Mapping[str, object], roles: RoleSupport
) -> tuple[str, ...]:
    contents = {"system": PROBE_FIRST, "user": PROBE_SECOND, "assistant": PROBE_REPLY}
    chat = [_make_message(role, contents[role]) for role in ("system", "user", "assistant", "user")]
    text = _render(tokenizer, options, adapt_chat(chat, roles))
    tokens = {token.content for token in tokenizer.added_tokens_decoder.values()}
    return tuple(
        sorted({marker for marker in ROLE_MARKER.findall(text) if marker not in (*tokens, THINK_START, THINK_END)})
    )


def _find_reasoning_key(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, object]) -> str:
    """Return the message key for reasoning; "" if the template shows reasoning in the text alike, or none at all."""
    template = template_source(tokenizer)
    begins, ends = next((tags for tags in DELIMITER_PAIRS if tags[0] in template or tags[1] in template), ("", ""))
    if not begins:
        return ""
    in_text = {"content": f"{begins}\n{PROBE_REASONING}\n{ends}\n\n{PROBE_REPLY}"}
    shown = _render_call_turn(tokenizer, options, in_text)
    for key in REASONING_KEYS:
        shown_by_key = _render_call_turn(tokenizer, options, {"content": PROBE_REPLY, key: PROBE_REASONING})
        if PROBE_REASONING not in shown_by_key:
            shown_by_key = _render_call_turn(tokenizer, options, {"content": "", key: PROBE_REASONING})
        if PROBE_REASONING in shown_by_key:
            return "" if shown.split() == shown_by_key.split() else key
    return ""


def _render_call_turn(
    tokenizer: PreTrainedTokenizerBase, options: Mapping[str, object], parts: Mapping[str, object]
) -> str:
    """Render a conversation that ends with a turn of these parts and a call; "" if rendering fails."""
    turn = {"role": "assistant", "tool_calls": [_probe_call({})], **parts}
    return _render(tokenizer, options, [_make_message("user", PROBE_FIRST), turn], False)


def _joins_reasoning(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, object], key: str) -> bool:
    """Return whether the template leaves out reasoning beside calls if the turn has a text."""
    return PROBE_REASONING not in _render_call_turn(tokenizer, options, {"content": PROBE_REPLY, key: PROBE_REASONING})


def _takes_text_arguments(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, object]) -> bool:
    """Return whether the template renders a call only if its arguments are JSON text."""

    def render(arguments: object) -> str:
        turn = {"content": PROBE_REPLY, "tool_calls": [_probe_call(arguments)]}
        return _render_call_turn(tokenizer, options, turn)

    return not render({}) and bool(render("{}"))


def _probe_call(arguments: object) -> TemplateMessage:
    return {"type": "function", "id": "call00000", "function": {"name": PROBE_SECOND, "arguments": arguments}}


def _make_message(role: str, text: str) -> TemplateMessage:
    return {"role": role, "content": text}


def adapt_chat(messages: Sequence[ChatMessage], roles: RoleSupport) -> list[TemplateMessage]:
    """Adapt a chat to the roles supported by the template.

    An unsupported system message is prepended to the following user message. If no user message follows, it becomes a
    user message itself. If roles must alternate, consecutive messages of one role are merged. In messages not written
    by the agent, a space breaks plain-text role markers. Such a message therefore cannot imitate another role.
    Reasoning, and the arguments and ids of calls, get the form that the template takes.

    >>> chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}]
    >>> adapt_chat(chat, RoleSupport(system=False))
    [{'role': 'user', 'content': 'Be brief.\\n\\nHi.'}]
    """
    chat, pending_system = list[TemplateMessage](), ""
    for index, message in enumerate(_adapt_message(original, roles) for original in messages):
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
    return _name_calls(chat) if roles.named_call_ids else chat


def _append_or_merge(chat: list[TemplateMessage], message: TemplateMessage, roles: RoleSupport) -> None:
    """Append a message to a chat, or merge it into the last message."""
    if chat and not roles.repeated_user and _can_merge(chat[-1], message):
        message = {**message, "content": _join_texts(chat.pop()["content"], message["content"])}
    chat.append(message)


def _adapt_message(message: ChatMessage, roles: RoleSupport) -> TemplateMessage:
    """Return a message with broken role markers, and with reasoning and arguments in the template's form."""
    adapted = _break_markers(message, roles.markers)
    if message["role"] != "assistant":
        return adapted
    calls = adapted.get("tool_calls")
    if calls and roles.text_arguments:
        adapted["tool_calls"] = [_write_arguments(call) for call in calls]
    text = str(adapted["content"])
    if roles.opened_reasoning and roles.opened_reasoning[1] in text and roles.opened_reasoning[0] not in text:
        adapted["content"] = f"{roles.opened_reasoning[0]}\n{text}"  # the prompt began the reasoning
    if roles.reasoning_key and roles.reasoning_key not in adapted:
        reasoning, content = split_reasoning(str(adapted["content"]))
        if calls and roles.joins_reasoning:
            reasoning, content = _join_texts(reasoning, content), ""
        adapted |= {"content": content} | ({roles.reasoning_key: reasoning} if reasoning else {})
    return adapted


def _name_calls(chat: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Return a chat with ids of the form ``functions.name:number`` for calls and their results."""
    named, ids, number = list[TemplateMessage](), dict[str, str](), 0
    for message in chat:
        calls = []
        for call in message.get("tool_calls") or ():
            ids[call["id"]] = f"functions.{call['function']['name']}:{number}"
            calls.append({**call, "id": ids[call["id"]]})
            number += 1
        call_id = message.get("tool_call_id", "")
        given = {"tool_calls": calls} if calls else {"tool_call_id": ids.get(call_id, call_id)} if call_id else {}
        named.append({**message, **given})
    return named


def _write_arguments(call: TemplateMessage) -> TemplateMessage:
    """Return a call with its arguments as JSON text."""
    arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _break_markers(message: ChatMessage, markers: Sequence[str]) -> TemplateMessage:
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


def template_source(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the source of a tokenizer's chat templates."""
    template = tokenizer.chat_template
    return "".join(template.values()) if isinstance(template, dict) else str(template)
