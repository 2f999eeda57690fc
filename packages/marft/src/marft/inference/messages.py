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

from marft.agents.rendering import ChatMessage, NotExact
from marft.common.texts import raised
from marft.common.thoughts import BEGINS, ENDS, FAMILIES
from marft.common.types import TokenIds, Tool
from marft.inference.roles import roles_of, taken
from marft.models.control_tokens import marked
from marft.models.templates import CANNOT_RENDER

SAID = {"role": "assistant", "content": "Yes."}
ASKED = {"role": "user", "content": "?"}
MORE = {"role": "user", "content": "More?"}
LAST = {"role": "user", "content": "Last?"}
PROBES = (((ASKED, SAID), (LAST,)), ((ASKED, SAID, MORE, SAID), (LAST,)))  # a conversation, and the new messages
REWRITES = "its chat template rewrites what came before once more is said"
OTHER_END = "the turn ended otherwise than its chat template ends one"


class Format(Protocol):
    """Tokenizer, template options and stop ids for one model's chat format."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...

    @property
    def template_options(self) -> Mapping[str, Any]: ...

    @property
    def stop_ids(self) -> tuple[int, ...]: ...


def render_messages(
    format: Format, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), begin: bool = True
) -> TokenIds:
    """Tokenize a whole chat, [T]. Control tokens come only from the template; those in message text stay plain text.

    Args:
        begin: whether the result ends with the start of the assistant's next turn.

    Raises:
        TemplateError, ValueError, TypeError: the template cannot render the chat.
    """
    ids = format.tokenizer.apply_chat_template(
        _chat(format, messages), tools=[schema(tool) for tool in tools] or None, add_generation_prompt=begin,
        return_dict=False, sanitize_control_tokens=True, **format.template_options,
    )  # fmt: skip
    return np.array(ids, np.int32)


def render_text(format: Format, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), begin: bool = True) -> str:
    """Render a whole chat as text; raises the same errors as :func:`render_messages`."""
    return str(
        format.tokenizer.apply_chat_template(
            _chat(format, messages),
            tools=[schema(tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=begin,
            **format.template_options,
        )
    )


def marked_text(
    format: Format, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), begin: bool = True, own: int = 0
) -> str:
    """Render a whole chat as text with escaped control tokens; its ids equal :func:`render_messages`.

    Only control tokens in message text are escaped.

    Args:
        own: index from the end of the message that is the model's own turn. Reasoning tags in it remain tokens. 0: no
            message.

    Raises:
        TemplateError, ValueError, TypeError: the template cannot render the chat.
    """
    tokenizer, chat = format.tokenizer, _chat(format, messages)
    told: list[Any] = [schema(tool) for tool in tools]
    return str(
        tokenizer.apply_chat_template(
            [marked(tokenizer, message, own=place == len(chat) - own) for place, message in enumerate(chat)],
            tools=marked(tokenizer, told) or None,
            tokenize=False,
            add_generation_prompt=begin,
            **marked(tokenizer, dict(format.template_options)),
        )
    )


def continue_ids(
    format: Format,
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
        shown = _shown(format, messages, tools)
        if isinstance(shown, NotExact):
            return shown
        return appended(format, messages, new, tools, end_of(format, ids))
    except CANNOT_RENDER as error:
        return NotExact(f"its chat template cannot show the conversation: {raised(error)}")


def rewritten(
    format: Format, messages: Sequence[ChatMessage], new: Sequence[ChatMessage], tools: Sequence[Tool]
) -> NotExact | None:
    """Return why a template rewrites a conversation when ``new`` follows; None for an unchanged conversation.

    The check compares rendered text without tokenization. The result is also None if the template cannot render the
    conversation.

    Args:
        messages: the conversation; the last one is the assistant's sampled turn.
    """
    try:
        shown = _shown(format, messages, tools)
        if isinstance(shown, NotExact):
            return shown
        text, at = shown
        after = render_text(format, [*messages, *new], tools)
    except CANNOT_RENDER:
        return None
    stops = [str(format.tokenizer.decode([stop])) for stop in format.stop_ids]
    end = min((text.find(stop, at) + len(stop) for stop in stops if stop in text[at:]), default=len(text))
    return None if after.startswith(text[:end]) else NotExact(REWRITES)


def _shown(format: Format, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> tuple[str, int] | NotExact:
    """Render a conversation with a sampled last turn; return the text and the end offset of the turn's content.

    Returns :class:`NotExact` if the template shows the turn differently.
    """
    before = render_text(format, messages[:-1], tools)
    shown = render_text(format, messages, tools, begin=False)
    said = str(messages[-1].get("content") or "").strip()
    if not shown.startswith(before):
        return NotExact("its chat template shows a turn that was said otherwise than one that begins")
    at = len(shown) - len(shown[len(before) :].lstrip())
    if not shown.startswith(said, at):
        return NotExact("its chat template leaves out parts of what was said")
    return shown, at + len(said)


def appended(
    format: Format,
    messages: Sequence[ChatMessage],
    new: Sequence[ChatMessage],
    tools: Sequence[Tool] = (),
    ended: int | None = None,
) -> TokenIds | NotExact:
    """Return the ids after ``messages`` once ``new`` follows; the last message is the assistant's, [T].

    The first end-of-turn token after the start of a turn ends it. Some templates add it only when a message follows, as
    the start of the next turn. Others end the whole chat with a second one.

    Args:
        ended: end-of-turn token already present in the turn. If None, the result starts with one.

    Raises:
        TemplateError, ValueError, TypeError: the template cannot render the messages.
    """
    begun = render_messages(format, messages[:-1], tools)
    before = render_messages(format, messages, tools, begin=False)
    start = common(begun, before)
    after = render_messages(format, [*messages, *new], tools)
    ends = start + np.flatnonzero(np.isin(before[start:], format.stop_ids))
    end = int(ends[0]) if len(ends) else len(before)
    if common(before, after) < min(end + 1, len(before)):
        return NotExact(REWRITES)
    if end == len(after) or after[end] not in format.stop_ids:
        return NotExact("its chat template puts no end of turn after what was said")
    if ended is not None and ended != after[end]:
        return NotExact(OTHER_END)
    return after[end + (ended is not None) :]


def end_of(format: Format, turn: TokenIds) -> int | None:
    """Return the turn's last id if it ends a turn; None for a truncated turn."""
    last = int(turn[-1]) if len(turn) else None
    return last if last in format.stop_ids else None


def common(one: TokenIds, other: TokenIds) -> int:
    """Return the length of the common prefix."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if len(differ) else size


def changes_turns(format: Format, tools: Sequence[Tool] = ()) -> NotExact | None:
    """Return why no conversation with this template can be continued exactly; None if possible. Renders probes."""
    for messages, new in PROBES:
        found = continue_ids(format, np.array(format.stop_ids[:1], np.int32), messages, new, tools)
        if isinstance(found, NotExact):
            return NotExact(found.reason, everywhere=True)
    return None


def begins_thought(format: Format) -> bool:
    """Return whether a template starts each turn with reasoning."""
    return render_text(format, [ASKED]).rstrip().endswith(tuple(begins for begins, _ in FAMILIES))


def thinks(format: Format) -> bool:
    """Return whether a template supports reasoning: it contains a reasoning tag."""
    return any(mark in _template(format) for mark in (BEGINS, ENDS))


def marks_of(format: Format) -> tuple[str, str]:
    """Return the model's start and end tag for reasoning.

    The first match wins: the tag at the start of each turn, tags in the template or tokenizer, and ``<think>`` as the
    default.
    """
    begun, template = render_text(format, [ASKED]).rstrip(), _template(format)
    tokens = {token.content for token in format.tokenizer.added_tokens_decoder.values()}
    for marks in FAMILIES:
        if begun.endswith(marks[0]):
            return marks
    return next((marks for marks in FAMILIES if any(mark in template or mark in tokens for mark in marks)), FAMILIES[0])


def _template(format: Format) -> str:
    template = format.tokenizer.chat_template
    return "".join(template.values()) if isinstance(template, dict) else str(template)


def schema(tool: Tool) -> dict[str, object]:
    """Return a tool in the JSON format for chat templates and chat endpoints."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _chat(format: Format, messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Adapt the chat to the roles supported by the template."""
    return taken(messages, roles_of(format.tokenizer, format.template_options))
