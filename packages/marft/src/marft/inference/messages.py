"""One way from the messages of a chat to token ids: a model's own chat template.

A conversation is rendered once, at its beginning. From there on only what the template puts after it is appended;
what was sampled stays the ids that were sampled. Where a template would change what stands there already, nothing can
be appended exactly, and :class:`NotExact` says why.
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
PROBES = (((ASKED, SAID), (LAST,)), ((ASKED, SAID, MORE, SAID), (LAST,)))  # a conversation, and what is new
REWRITES = "its chat template rewrites what came before once more is said"
OTHER_END = "the turn ended otherwise than its chat template ends one"


class Format(Protocol):
    """How a model is spoken to."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...

    @property
    def template_options(self) -> Mapping[str, Any]: ...

    @property
    def stop_ids(self) -> tuple[int, ...]: ...


def render_messages(
    format: Format, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), begin: bool = True
) -> TokenIds:
    """The ids of a whole chat, [T]. Only the template's own control tokens are tokens; what somebody wrote stays text.

    Args:
        begin: whether the assistant's next turn begins at its end.

    Raises:
        TemplateError, ValueError, TypeError: the template cannot show the chat.
    """
    ids = format.tokenizer.apply_chat_template(
        _chat(format, messages), tools=[schema(tool) for tool in tools] or None, add_generation_prompt=begin,
        return_dict=False, sanitize_control_tokens=True, **format.template_options,
    )  # fmt: skip
    return np.array(ids, np.int32)


def render_text(format: Format, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), begin: bool = True) -> str:
    """A whole chat as text; raises what :func:`render_messages` does."""
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
    """Return a whole chat as text in which control tokens that somebody wrote are marked; its ids are those of
    :func:`render_messages`.

    Args:
        own: which message from the end is a model's own turn, in which marks of thoughts are tokens; 0: none.

    Raises:
        TemplateError, ValueError, TypeError: the template cannot show the chat.
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
    """What the template puts after a conversation whose last turn was sampled: ``new``, and the start of the next turn.

    It is exact where the template shows the last turn where it was sampled, with all that it says, and changes nothing
    of what came before once ``new`` follows. Space around a turn's text may be another: the sampled ids stand.

    Args:
        ids: the conversation so far, [T].
        messages: the same in messages; the last one is the assistant's sampled turn.
        new: messages of users, tools and the system, or turns of others.
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
    """Why a template does not leave a conversation as it stands once ``new`` follows on its last turn, if so: found in
    its text alone, which is not tokenised. None also where it cannot show it.

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
    """The text of a conversation whose last turn was sampled, and where what that says ends; if it is shown as it was
    said."""
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
    """What comes after ``messages``, whose last one is the assistant's, once ``new`` follows.

    What ends a turn is the first end of turn after its beginning. Templates may put it there only when something
    follows, as that which the next turn begins with; or end the whole chat with one more.

    Args:
        ended: the end of turn that the turn has already; without one it is added.

    Raises:
        TemplateError, ValueError, TypeError: the template cannot show them.
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
    """The end of turn that a turn's ids have; None where it was cut short."""
    last = int(turn[-1]) if len(turn) else None
    return last if last in format.stop_ids else None


def common(one: TokenIds, other: TokenIds) -> int:
    """How many first ids two texts share."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if len(differ) else size


def changes_turns(format: Format, tools: Sequence[Tool] = ()) -> NotExact | None:
    """Why no conversation of a template can be continued exactly, if so: found by rendering probes."""
    for messages, new in PROBES:
        found = continue_ids(format, np.array(format.stop_ids[:1], np.int32), messages, new, tools)
        if isinstance(found, NotExact):
            return NotExact(found.reason, everywhere=True)
    return None


def begins_thought(format: Format) -> bool:
    """Whether a template begins each turn with a thought."""
    return render_text(format, [ASKED]).rstrip().endswith(tuple(begins for begins, _ in FAMILIES))


def thinks(format: Format) -> bool:
    """Whether a template knows of thoughts: it has a mark of them."""
    return any(mark in _template(format) for mark in (BEGINS, ENDS))


def marks_of(format: Format) -> tuple[str, str]:
    """Return the marks of a model's thoughts: those that its template begins turns with or holds, or its tokenizer has;
    ``<think>`` where there are none."""
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
    """A tool as chat templates and chat endpoints take it."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _chat(format: Format, messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """The chat as the template takes it."""
    return taken(messages, roles_of(format.tokenizer, format.template_options))
