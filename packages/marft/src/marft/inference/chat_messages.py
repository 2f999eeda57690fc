"""Conversion from chat messages to token ids through the model's own chat template.

A conversation is rendered once, at its start. After that, only the template's continuation is appended, and sampled
tokens stay unchanged. If the template changes earlier text, an exact continuation does not exist. :class:`NotExact`
then gives the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from transformers import PreTrainedTokenizerBase

from marft.agents.prompt_messages import ChatMessage, NotExact
from marft.common.reasoning import DELIMITER_PAIRS, THINK_END, THINK_START
from marft.common.texts import format_error
from marft.common.types import TokenIds, Tool
from marft.inference.roles import adapt_chat, detect_roles
from marft.models.chat_templates import RENDER_ERRORS
from marft.models.control_tokens import escape_control_tokens

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


class ChatTemplateFormat(Protocol):
    """Tokenizer, template options and stop ids for one model's chat format."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...

    @property
    def template_options(self) -> Mapping[str, Any]: ...

    @property
    def stop_ids(self) -> tuple[int, ...]: ...


def render_messages(
    format: ChatTemplateFormat, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), begin: bool = True
) -> TokenIds:
    """Tokenize a whole chat, [T]. Control tokens come only from the template; those in message text stay plain text.

    Args:
        begin: whether the result ends with the start of the assistant's next turn.

    Raises:
        TemplateError, ValueError, TypeError: the template cannot render the chat.
    """
    ids = format.tokenizer.apply_chat_template(
        _adapt_roles(format, messages),
        tools=[tool_schema(tool) for tool in tools] or None,
        add_generation_prompt=begin,
        return_dict=False,
        sanitize_control_tokens=True,
        **format.template_options,
    )
    return np.array(ids, np.int32)


def render_text(
    format: ChatTemplateFormat, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), begin: bool = True
) -> str:
    """Render a whole chat as text; raises the same errors as :func:`render_messages`."""
    return str(
        format.tokenizer.apply_chat_template(
            _adapt_roles(format, messages),
            tools=[tool_schema(tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=begin,
            **format.template_options,
        )
    )


def render_escaped(
    format: ChatTemplateFormat,
    messages: Sequence[ChatMessage],
    tools: Sequence[Tool] = (),
    begin: bool = True,
    own_index: int = 0,
) -> str:
    """Render a whole chat as text with escaped control tokens; its ids equal :func:`render_messages`.

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
    format: ChatTemplateFormat,
    ids: TokenIds,
    messages: Sequence[ChatMessage],
    new: Sequence[ChatMessage],
    tools: Sequence[Tool] = (),
) -> TokenIds | NotExact:
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
        if isinstance(rendered, NotExact):
            return rendered
        return encode_appended(format, messages, new, tools, find_end_id(format, ids))
    except RENDER_ERRORS as error:
        return NotExact(f"its chat template cannot show the conversation: {format_error(error)}")


def check_history(
    format: ChatTemplateFormat, messages: Sequence[ChatMessage], new: Sequence[ChatMessage], tools: Sequence[Tool]
) -> NotExact | None:
    """Return why a template rewrites a conversation when ``new`` follows; None for an unchanged conversation.

    The check compares rendered text without tokenization. The result is also None if the template cannot render the
    conversation.

    Args:
        messages: the conversation; the last one is the assistant's sampled turn.
    """
    try:
        rendered = _render_with_turn(format, messages, tools)
        if isinstance(rendered, NotExact):
            return rendered
        text, offset = rendered
        after = render_text(format, [*messages, *new], tools)
    except RENDER_ERRORS:
        return None
    stops = [str(format.tokenizer.decode([stop])) for stop in format.stop_ids]
    end = min((text.find(stop, offset) + len(stop) for stop in stops if stop in text[offset:]), default=len(text))
    return None if after.startswith(text[:end]) else NotExact(REWRITES_HISTORY)


def _render_with_turn(
    format: ChatTemplateFormat, messages: Sequence[ChatMessage], tools: Sequence[Tool]
) -> tuple[str, int] | NotExact:
    """Render a conversation with a sampled last turn; return the text and the end offset of the turn's content.

    Returns :class:`NotExact` if the template shows the turn differently.
    """
    before = render_text(format, messages[:-1], tools)
    rendered = render_text(format, messages, tools, begin=False)
    content = str(messages[-1].get("content") or "").strip()
    if not rendered.startswith(before):
        return NotExact("its chat template shows a turn that was said otherwise than one that begins")
    offset = len(rendered) - len(rendered[len(before) :].lstrip())
    if not rendered.startswith(content, offset):
        return NotExact("its chat template leaves out parts of what was said")
    return rendered, offset + len(content)


def encode_appended(
    format: ChatTemplateFormat,
    messages: Sequence[ChatMessage],
    new: Sequence[ChatMessage],
    tools: Sequence[Tool] = (),
    end_id: int | None = None,
) -> TokenIds | NotExact:
    """Return the ids after ``messages`` once ``new`` follows; the last message is the assistant's, [T].

    The first end-of-turn token after the start of a turn ends it. Some templates add it only when a message follows, as
    the start of the next turn. Others end the whole chat with a second one.

    Args:
        end_id: end-of-turn token already present in the turn. If None, the result starts with one.

    Raises:
        TemplateError, ValueError, TypeError: the template cannot render the messages.
    """
    prompt_ids = render_messages(format, messages[:-1], tools)
    before = render_messages(format, messages, tools, begin=False)
    start = common_prefix_length(prompt_ids, before)
    after = render_messages(format, [*messages, *new], tools)
    ends = start + np.flatnonzero(np.isin(before[start:], format.stop_ids))
    end = int(ends[0]) if len(ends) else len(before)
    if common_prefix_length(before, after) < min(end + 1, len(before)):
        return NotExact(REWRITES_HISTORY)
    if end == len(after) or after[end] not in format.stop_ids:
        return NotExact("its chat template puts no end of turn after what was said")
    if end_id is not None and end_id != after[end]:
        return NotExact(DIFFERENT_END)
    return after[end + (end_id is not None) :]


def find_end_id(format: ChatTemplateFormat, turn: TokenIds) -> int | None:
    """Return the turn's last id if it ends a turn; None for a truncated turn."""
    last = int(turn[-1]) if len(turn) else None
    return last if last in format.stop_ids else None


def common_prefix_length(first: TokenIds, second: TokenIds) -> int:
    """Return the length of the common prefix."""
    size = min(len(first), len(second))
    differ = np.flatnonzero(first[:size] != second[:size])
    return int(differ[0]) if len(differ) else size


def check_continuation(format: ChatTemplateFormat, tools: Sequence[Tool] = ()) -> NotExact | None:
    """Return why no conversation with this template can be continued exactly; None if possible. Renders probes."""
    for messages, new in PROBE_CHATS:
        continuation = encode_new_messages(format, np.array(format.stop_ids[:1], np.int32), messages, new, tools)
        if isinstance(continuation, NotExact):
            return NotExact(continuation.reason, always=True)
    return None


def starts_with_reasoning(format: ChatTemplateFormat) -> bool:
    """Return whether a template starts each turn with reasoning."""
    return render_text(format, [PROBE_QUESTION]).rstrip().endswith(tuple(begins for begins, _ in DELIMITER_PAIRS))


def supports_reasoning(format: ChatTemplateFormat) -> bool:
    """Return whether a template supports reasoning: it contains a reasoning tag."""
    return any(tag in _template_text(format) for tag in (THINK_START, THINK_END))


def reasoning_tags(format: ChatTemplateFormat) -> tuple[str, str]:
    """Return the model's start and end tag for reasoning.

    The first match wins: the tag at the start of each turn, tags in the template or tokenizer, and ``<think>`` as the
    default.
    """
    prompt, template = render_text(format, [PROBE_QUESTION]).rstrip(), _template_text(format)
    tokens = {token.content for token in format.tokenizer.added_tokens_decoder.values()}
    for tags in DELIMITER_PAIRS:
        if prompt.endswith(tags[0]):
            return tags
    return next(
        (tags for tags in DELIMITER_PAIRS if any(tag in template or tag in tokens for tag in tags)), DELIMITER_PAIRS[0]
    )


def _template_text(format: ChatTemplateFormat) -> str:
    template = format.tokenizer.chat_template
    return "".join(template.values()) if isinstance(template, dict) else str(template)


def tool_schema(tool: Tool) -> dict[str, object]:
    """Return a tool in the JSON format for chat templates and chat endpoints."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _adapt_roles(format: ChatTemplateFormat, messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Adapt the chat to the roles supported by the template."""
    return adapt_chat(messages, detect_roles(format.tokenizer, format.template_options))
