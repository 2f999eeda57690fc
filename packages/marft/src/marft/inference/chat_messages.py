"""Conversion from chat messages to token ids through the model's own chat template.

This module knows one model's template and no agents. :mod:`marft.agents.prompt_messages` defines the messages, and
writes the messages of an observation. :class:`~marft.inference.renderer.ChatRenderer` calls these functions for each
policy of a team.

*Roles.* Some models do not support system messages, and some accept only alternating messages of user and assistant.
The chat is adapted to the roles that the template supports. The adaptation drops no text: a message without a supported
role joins a neighboring message.

*Continuation.* A conversation is rendered once, at its start. After that, only the template's continuation is appended,
and sampled tokens stay unchanged. If the template changes earlier text, an exact continuation does not exist.
:class:`InexactContinuation` then gives the reason.

*Given turns.* A turn may start with more than its text. GLM-4 starts a turn with a newline, gpt-oss with a channel.
SentencePiece tokenizers add a space before a text, which no turn contains. Therefore the chat is rendered twice: up to
the start of sampling, and with the turn. The difference is the turn's ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from transformers import PreTrainedTokenizerBase

from marft.agents.prompt_messages import ChatMessage, InexactContinuation
from marft.common.reasoning import DELIMITER_PAIRS, DELIMITERS, THINK_END, THINK_START, split_reasoning
from marft.common.texts import format_error
from marft.common.token_data import common_prefix_length
from marft.common.types import TokenIds, Tool
from marft.models.chat_templates import RENDER_ERRORS
from marft.models.control_tokens import encode_continuation, encode_text, escape_control_tokens, remove_escapes

TemplateMessage = dict[str, Any]  # message in the form that transformers takes
SEPARATOR = "\n\n"  # separator between texts joined in one message
PROBE_FIRST, PROBE_SECOND, PROBE_REPLY = "probe-of-one-text", "probe-of-another", "probe-of-an-answer"
PROBE_REASONING = "probe-of-reasoning"
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")  # keys of a message, as templates name them
# marker that may start or end a message without being a token
ROLE_MARKER = re.compile(r"<\|\w+\|>|<</?\w+>>|</?\w+>|\[/?\w+\]")
PROBE_ANSWER = {"role": "assistant", "content": "Yes."}
PROBE_QUESTION = {"role": "user", "content": "?"}
PROBE_FOLLOW_UP = {"role": "user", "content": "More?"}
PROBE_LAST = {"role": "user", "content": "Last?"}
PROBE_CHATS = (
    ((PROBE_QUESTION, PROBE_ANSWER), (PROBE_LAST,)),
    ((PROBE_QUESTION, PROBE_ANSWER, PROBE_FOLLOW_UP, PROBE_ANSWER), (PROBE_LAST,)),
)  # a conversation, and the new messages
REWRITES_HISTORY = "its chat template rewrites what came before once more is said"
DIFFERENT_END = "the turn ended otherwise than its chat template ends one"
RENDERED_DIFFERENTLY = "its chat template shows a turn that was said otherwise than one that begins"


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
            named_call_ids="<|tool_call_argument_begin|>" in _source(tokenizer),
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
    template = _source(tokenizer)
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


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Chat format for one model: tokenizer, template options and context length in tokens.

    If ``remote`` is true, the policy is behind an endpoint. It receives messages, and ``tokenizer`` is the local
    tokenizer that records its text. ``grammar_error`` gives the reason why grammars are not supported; "" if they are.
    """

    tokenizer: PreTrainedTokenizerBase
    context: int
    template_options: Mapping[str, Any]
    stop_ids: tuple[int, ...] = ()
    remote: bool = False
    grammar_error: str = ""


def tokenize_messages(
    format: ChatFormat, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), add_generation_prompt: bool = True
) -> TokenIds:
    """Tokenize a whole chat, [T]. Control tokens come only from the template; those in message text stay plain text.

    Args:
        begin: whether the result ends with the start of the assistant's next turn.

    Raises:
        TemplateError, ValueError, TypeError: the template cannot render the chat.
    """
    text = render_escaped(format, messages, tools, add_generation_prompt)
    return np.array(encode_text(format.tokenizer, text), np.int32)


def render_text(
    format: ChatFormat, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), add_generation_prompt: bool = True
) -> str:
    """Render a whole chat as text; raises the same errors as :func:`tokenize_messages`."""
    return str(
        format.tokenizer.apply_chat_template(
            _adapt_roles(format, messages),
            tools=[tool_schema(tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **format.template_options,
        )
    )


def render_escaped(
    format: ChatFormat,
    messages: Sequence[ChatMessage],
    tools: Sequence[Tool] = (),
    begin: bool = True,
    own_index: int = 0,
) -> str:
    """Render a whole chat as text with escaped control tokens; its ids equal :func:`tokenize_messages`.

    Only control tokens in message text are escaped.

    Args:
        own_index: index from the end of the message that is the model's own turn. Reasoning tags in it remain tokens.
            0: no message.

    Raises:
        TemplateError, ValueError, TypeError: the template cannot render the chat.
    """
    tokenizer, chat = format.tokenizer, _adapt_roles(format, messages)
    tool_schemas: list[Any] = [tool_schema(tool) for tool in tools]
    return str(
        tokenizer.apply_chat_template(
            [
                escape_control_tokens(tokenizer, message, is_own_text=index == len(chat) - own_index)
                for index, message in enumerate(chat)
            ],
            tools=escape_control_tokens(tokenizer, tool_schemas) or None,
            tokenize=False,
            add_generation_prompt=begin,
            **escape_control_tokens(tokenizer, dict(format.template_options)),
        )
    )


def encode_new_messages(
    format: ChatFormat,
    ids: TokenIds,
    messages: Sequence[ChatMessage],
    new: Sequence[ChatMessage],
    tools: Sequence[Tool] = (),
) -> TokenIds | InexactContinuation:
    """Return the template's ids after a sampled turn: the ``new`` messages and the start of the next turn, [T].

    The continuation is exact under two conditions. The template shows the last turn at its sampled position with its
    complete text. The template changes no earlier text once ``new`` follows. Whitespace around a turn's text may
    differ: the sampled ids stay.

    Args:
        ids: the conversation so far, [T].
        messages: the same conversation as messages; the last one is the assistant's sampled turn.
        new: messages of users, tools and the system, or turns of other agents.

    Returns:
        Token ids [T], or the reason why no exact continuation exists.
    """
    try:
        rendered = _render_with_turn(format, messages, tools)
        if isinstance(rendered, InexactContinuation):
            return rendered
        return encode_appended(format, messages, new, tools, find_end_id(format, ids))
    except RENDER_ERRORS as error:
        return InexactContinuation(f"its chat template cannot show the conversation: {format_error(error)}")


def check_history(
    format: ChatFormat, messages: Sequence[ChatMessage], new: Sequence[ChatMessage], tools: Sequence[Tool]
) -> InexactContinuation | None:
    """Return why a template rewrites a conversation when ``new`` follows; None for an unchanged conversation.

    The check compares rendered text without tokenization. The result is also None if the template cannot render the
    conversation.

    Args:
        messages: the conversation; the last one is the assistant's sampled turn.
    """
    try:
        rendered = _render_with_turn(format, messages, tools)
        if isinstance(rendered, InexactContinuation):
            return rendered
        text, offset = rendered
        after = render_text(format, [*messages, *new], tools)
    except RENDER_ERRORS:
        return None
    stops = [str(format.tokenizer.decode([stop])) for stop in format.stop_ids]
    end = min((text.find(stop, offset) + len(stop) for stop in stops if stop in text[offset:]), default=len(text))
    return None if after.startswith(text[:end]) else InexactContinuation(REWRITES_HISTORY)


def _render_with_turn(
    format: ChatFormat, messages: Sequence[ChatMessage], tools: Sequence[Tool]
) -> tuple[str, int] | InexactContinuation:
    """Render a conversation with a sampled last turn; return the text and the end offset of the turn's content.

    Returns :class:`InexactContinuation` if the template shows the turn differently.
    """
    before = render_text(format, messages[:-1], tools)
    rendered = render_text(format, messages, tools, add_generation_prompt=False)
    content = str(messages[-1].get("content") or "").strip()
    if not rendered.startswith(before):
        return InexactContinuation(RENDERED_DIFFERENTLY)
    offset = len(rendered) - len(rendered[len(before) :].lstrip())
    has_key = detect_roles(format.tokenizer, format.template_options).reasoning_key
    parts = [part.strip() for part in split_reasoning(content)] if has_key else [content]
    for part in parts:  # delimiters may stand between the parts
        start = rendered.find(part, offset) if has_key else offset
        if start < 0 or not rendered.startswith(part, start):
            return InexactContinuation("its chat template leaves out parts of what was said")
        offset = start + len(part)
    return rendered, offset


def encode_appended(
    format: ChatFormat,
    messages: Sequence[ChatMessage],
    new: Sequence[ChatMessage],
    tools: Sequence[Tool] = (),
    end_id: int | None = None,
) -> TokenIds | InexactContinuation:
    """Return the ids after ``messages`` once ``new`` follows; the last message is the assistant's, [T].

    The first end-of-turn token after the start of a turn ends it. Some templates add it only when a message follows, as
    the start of the next turn. Others end the whole chat with a second one.

    Args:
        end_id: end-of-turn token already present in the turn. If None, the result starts with one.

    Raises:
        TemplateError, ValueError, TypeError: the template cannot render the messages.
    """
    prompt_ids = tokenize_messages(format, messages[:-1], tools)
    before = tokenize_messages(format, messages, tools, add_generation_prompt=False)
    start = common_prefix_length(prompt_ids, before)
    after = tokenize_messages(format, [*messages, *new], tools)
    ends = start + np.flatnonzero(np.isin(before[start:], format.stop_ids))
    end = int(ends[0]) if len(ends) else len(before)
    if common_prefix_length(before, after) < min(end + 1, len(before)):
        return InexactContinuation(REWRITES_HISTORY)
    if end == len(after) or after[end] not in format.stop_ids:
        return InexactContinuation("its chat template puts no end of turn after what was said")
    if end_id is not None and end_id != after[end]:
        return InexactContinuation(DIFFERENT_END)
    return after[end + (end_id is not None) :]


def find_end_id(format: ChatFormat, turn: TokenIds) -> int | None:
    """Return the turn's last id if it ends a turn; None for a truncated turn."""
    last = int(turn[-1]) if len(turn) else None
    return last if last in format.stop_ids else None


def check_continuation(format: ChatFormat, tools: Sequence[Tool] = ()) -> InexactContinuation | None:
    """Return why no conversation with this template can be continued exactly; None if possible. Renders probes."""
    answers = [PROBE_ANSWER["content"]]
    if supports_reasoning(format):
        begins, ends = reasoning_tags(format)
        start = "" if starts_with_reasoning(format) else f"{begins}\n"
        answers.append(f"{start}Hm.\n{ends}\n\n{PROBE_ANSWER['content']}")
    problems = [_check_probes(format, tools, answer) for answer in answers]
    return problems[0] if all(problems) else None


def _check_probes(format: ChatFormat, tools: Sequence[Tool], answer: str) -> InexactContinuation | None:
    """Return why a conversation with this answer cannot be continued exactly; None if possible."""
    for messages, new in PROBE_CHATS:
        chat = [{**message, "content": answer} if message is PROBE_ANSWER else message for message in messages]
        continuation = encode_new_messages(format, np.array(format.stop_ids[:1], np.int32), chat, new, tools)
        if isinstance(continuation, InexactContinuation):
            return InexactContinuation(continuation.reason, always=True)
    return None


def starts_with_reasoning(format: ChatFormat) -> bool:
    """Return whether a template starts each turn with reasoning."""
    return render_text(format, [PROBE_QUESTION]).rstrip().endswith(tuple(begins for begins, _ in DELIMITER_PAIRS))


def supports_reasoning(format: ChatFormat) -> bool:
    """Return whether a template supports reasoning: it contains a delimiter of reasoning."""
    template = _source(format.tokenizer)
    return any(tag in template for tags in DELIMITER_PAIRS for tag in tags)


def reasoning_tags(format: ChatFormat) -> tuple[str, str]:
    """Return the model's start and end tag for reasoning.

    The first match wins: the tag at the start of each turn, tags in the template or tokenizer, and ``<think>`` as the
    default.
    """
    prompt, template = render_text(format, [PROBE_QUESTION]).rstrip(), _source(format.tokenizer)
    tokens = {token.content for token in format.tokenizer.added_tokens_decoder.values()}
    for tags in DELIMITER_PAIRS:
        if prompt.endswith(tags[0]):
            return tags
    return next(
        (tags for tags in DELIMITER_PAIRS if any(tag in template or tag in tokens for tag in tags)), DELIMITER_PAIRS[0]
    )


def _source(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the source of a tokenizer's chat templates."""
    template = tokenizer.chat_template
    return "".join(template.values()) if isinstance(template, dict) else str(template)


def tool_schema(tool: Tool) -> dict[str, object]:
    """Return a tool in the JSON format for chat templates and chat endpoints."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _adapt_roles(format: ChatFormat, messages: Sequence[ChatMessage]) -> list[TemplateMessage]:
    """Adapt the chat to the roles supported by the template."""
    return adapt_chat(messages, detect_roles(format.tokenizer, format.template_options))


class EncodedTurn(NamedTuple):
    """Turn as rendered by a template after its prompt.

    Args:
        ids: up to the end of the turn, [T].
        text: full text that the template adds for the turn.
        has_template_end: whether the template itself ends the turn with the last id. If not, the last id is the model's
            first stop id.
    """

    ids: TokenIds
    text: str
    has_template_end: bool


def encode_full_turn(
    format: ChatFormat,
    messages: Sequence[ChatMessage],
    turn: ChatMessage,
    tools: Sequence[Tool] = (),
    following: Sequence[ChatMessage] = (PROBE_LAST,),
) -> EncodedTurn | InexactContinuation:
    """Return a turn in its sampled form after ``messages``.

    Reasoning tags in the turn are encoded as tokens; other control tokens stay plain text.

    Args:
        turn: the turn, as an assistant message.
        following: messages after the turn, for templates that end a turn only when a message follows.

    Raises:
        TemplateError, ValueError, TypeError: the template cannot render the turn.
    """
    prompt = render_escaped(format, messages, tools)
    rendered = render_escaped(format, [*messages, turn], tools, False, own_index=1)
    if not rendered.startswith(prompt):
        return InexactContinuation(RENDERED_DIFFERENTLY)
    tail, ids = rendered[len(prompt) :], _encode_new_text(format, prompt, rendered)
    ends = np.flatnonzero(np.isin(ids, format.stop_ids))
    if len(ends):
        return EncodedTurn(ids[: int(ends[0]) + 1], remove_escapes(tail), True)
    continued = render_escaped(format, [*messages, turn, *following], tools, own_index=1 + len(following))
    followed = _encode(format, continued)
    rendered_ids = _encode(format, rendered)
    end_index = common_prefix_length(rendered_ids, followed)
    has_end = end_index == len(rendered_ids) < len(followed) and followed[end_index] in format.stop_ids
    end = followed[end_index : end_index + 1] if has_end else format.stop_ids[:1]
    return EncodedTurn(np.array([*ids, *end], np.int32), remove_escapes(tail), has_end)


def encode_turn_start(format: ChatFormat, text: str, is_own_text: bool) -> TokenIds:
    """Return the ids of a text at the start of a turn, after the template's turn header, [T].

    A header that contains reasoning is omitted.

    Args:
        is_own_text: whether the model itself wrote the text. If so, reasoning tags in it are encoded as tokens.
    """
    prompt = render_escaped(format, [PROBE_QUESTION])
    turn = _turn_header(format) + escape_control_tokens(format.tokenizer, text, is_own_text=is_own_text)
    return _encode_new_text(format, prompt, prompt + turn)


def _turn_header(format: ChatFormat) -> str:
    """Return the template's text between a prompt and the text of a turn; "" if it contains reasoning."""
    try:
        turn = encode_full_turn(format, [PROBE_QUESTION], PROBE_ANSWER)
    except RENDER_ERRORS:
        return ""
    before, content, _ = (
        ("", "", "") if isinstance(turn, InexactContinuation) else turn.text.partition(PROBE_ANSWER["content"])
    )
    return before if content and not any(mark in before for mark in DELIMITERS) else ""


def _encode_new_text(format: ChatFormat, prompt: str, rendered: str) -> TokenIds:
    """Return the ids of the text in ``rendered`` after its prefix ``prompt``, [T]."""
    before, rendered_ids = _encode(format, prompt), _encode(format, rendered)
    if common_prefix_length(before, rendered_ids) == len(before):
        return rendered_ids[len(before) :]
    return np.array(encode_continuation(format.tokenizer, rendered[len(prompt) :]), np.int32)


def _encode(format: ChatFormat, text: str) -> TokenIds:
    return np.array(encode_text(format.tokenizer, text), np.int32)
