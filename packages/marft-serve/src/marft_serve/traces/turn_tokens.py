"""Token ids of a recorded turn: its text, its tool calls and the end of the turn, in the form a model would sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from marft.agents.prompt_messages import ChatMessage, InexactContinuation, parse_arguments, tool_call_messages
from marft.common.reasoning import CHANNEL_DELIMITERS, THINK_END, THINK_START
from marft.common.texts import format_error
from marft.common.types import TokenIds, Tool, ToolCall
from marft.inference.chat_messages import (
    PROBE_LAST,
    RENDERED_DIFFERENTLY,
    EncodedTurn,
    encode_full_turn,
    reasoning_tags,
    starts_with_reasoning,
)
from marft.inference.renderer import ChatRenderer
from marft.models.chat_templates import RENDER_ERRORS
from marft.models.control_tokens import encode_continuation, escape_control_tokens
from marft_serve.traces.messages import normalize_arguments
from marft_serve.traces.types import TracedTurn, UnreadableError

Thinking = Literal["keep", "drop"]
TEMPLATE_OMITS_TEXT = "its chat template leaves out parts of what was said"


def encode_turn(
    renderer: ChatRenderer,
    policy: str,
    chat: Sequence[ChatMessage],
    tools: Sequence[Tool],
    turn: TracedTurn,
    thinking: Thinking,
) -> TokenIds:
    """Return a turn's token ids in the form that a policy would sample after the prompt, shape [T].

    The end of the turn follows the chat template. A truncated turn has no end token.

    Args:
        renderer: renderer of the chat templates.
        policy: the policy.
        chat: the prompt.
        tools: tools in the prompt.
        turn: the turn.
        thinking: ``keep`` or ``drop`` recorded reasoning.

    Raises:
        UnreadableError: the model's chat template cannot represent the turn, or the turn calls an unknown tool.
    """
    chat_format = renderer.formats[policy]
    check_known_tools(turn, tools)
    try:
        ids = _encode(renderer, policy, chat, tools, turn, thinking)
        if tools and not chat_format.remote:
            _check_calls(_parse_calls(renderer, policy, ids, tools, turn), tools, turn)
    except UnreadableError:
        raise
    except RENDER_ERRORS as error:
        raise UnreadableError(f"the model cannot say it: {format_error(error)}") from error
    return ids if turn.complete or not len(ids) or ids[-1] not in chat_format.stop_ids else ids[:-1]


def check_known_tools(turn: TracedTurn, tools: Sequence[Tool]) -> None:
    """Check a turn's tool calls against the offered tools.

    Raises:
        UnreadableError: the turn calls a tool that is not offered; the call would be rejected at run time.
    """
    tool_names = [tool.name for tool in tools]
    unknown = next((call.name for call in turn.calls if call.name not in tool_names), None)
    if unknown is not None:
        if not tool_names:
            raise UnreadableError(f"it calls tools, and the agent is offered none, not even {unknown!r}")
        raise UnreadableError(f"it calls {unknown!r}, and the agent is offered {', '.join(tool_names)} alone")


def _encode(
    renderer: ChatRenderer,
    policy: str,
    chat: Sequence[ChatMessage],
    tools: Sequence[Tool],
    turn: TracedTurn,
    thinking: Thinking,
) -> TokenIds:
    """Return the token ids of a turn under the chat template.

    Raises:
        UnreadableError: the template does not represent the turn in the form that a model samples.
    """
    chat_format = renderer.formats[policy]
    reasoning = turn.reasoning if thinking == "keep" else ""
    prompt_opens_reasoning = not chat_format.remote and starts_with_reasoning(chat_format)
    if chat_format.remote and not turn.calls:
        return renderer.tokenize_option(
            policy, (f"{THINK_START}\n{reasoning}\n{THINK_END}\n\n" if reasoning else "") + turn.text
        )
    reason, marks = RENDERED_DIFFERENTLY, reasoning_tags(chat_format)
    for message in _iter_messages(turn, reasoning, marks):
        try:
            rendered = encode_full_turn(
                chat_format,
                chat,
                message,
                tools,
                tool_call_messages("", turn.calls)[1:] if turn.calls else (PROBE_LAST,),
            )
        except RENDER_ERRORS as error:
            reason = f"the model cannot say it: {format_error(error)}"
            continue
        problem = _find_mismatch(rendered, turn, reasoning, marks[1] if prompt_opens_reasoning else "")
        if isinstance(rendered, EncodedTurn) and not problem:
            return rendered.ids
        reason = problem
    if turn.calls or not prompt_opens_reasoning:
        raise UnreadableError(reason)
    text = f"{reasoning}\n{marks[1]}\n\n{turn.text}"  # the prompt begins the reasoning
    ids = encode_continuation(
        chat_format.tokenizer, escape_control_tokens(chat_format.tokenizer, text, is_own_text=True)
    )
    return np.array([*ids, *chat_format.stop_ids[:1]], np.int32)


def _iter_messages(turn: TracedTurn, reasoning: str, marks: tuple[str, str]) -> Iterator[dict[str, object]]:
    """Yield the turn as messages for a template: with separate reasoning, or with reasoning at the start of the text.

    Args:
        turn: the turn.
        reasoning: reasoning; "" without any.
        marks: start and end marks of the model's reasoning. Channel marks are left to the template.
    """
    calls = tool_call_messages("", turn.calls)[0]["tool_calls"] if turn.calls else None
    message = {"role": "assistant", "content": turn.text} | ({"tool_calls": calls} if calls else {})
    if reasoning:
        yield {**message, "reasoning_content": reasoning, "thinking": reasoning}
        if marks != CHANNEL_DELIMITERS:
            yield {**message, "content": f"{marks[0]}\n{reasoning}\n{marks[1]}\n\n{turn.text}"}
    else:
        yield message


def _find_mismatch(rendered: EncodedTurn | InexactContinuation, turn: TracedTurn, reasoning: str, end_mark: str) -> str:
    """Return the reason why a rendered turn differs from a sampled turn; "" without a difference.

    Args:
        rendered: the rendered turn.
        turn: the recorded turn.
        reasoning: reasoning; "" without any.
        end_mark: end mark of reasoning begun by the prompt; "" if the prompt begins none.
    """
    if isinstance(rendered, InexactContinuation):
        return rendered.reason
    at = 0
    for part in map(str.strip, (reasoning, end_mark, turn.text)):
        position = rendered.text.find(part, at)
        if position < 0:
            return TEMPLATE_OMITS_TEXT
        at = position + len(part)
    if turn.calls and not rendered.has_template_end:
        return "its chat template puts no end of turn after a turn that calls tools"
    return ""


def _parse_calls(
    renderer: ChatRenderer, policy: str, ids: TokenIds, tools: Sequence[Tool], turn: TracedTurn
) -> Sequence[ToolCall]:
    """Return the tool calls in a turn's token ids.

    The result is empty if the turn has no recorded calls and the template does not support calls.
    """
    try:
        return renderer.calls(policy, ids, tools)
    except ValueError:
        if turn.calls:
            raise
        return ()


def _check_calls(parsed_calls: Sequence[ToolCall], tools: Sequence[Tool], turn: TracedTurn) -> None:
    """Check that a turn's token ids contain the recorded tool calls.

    If the turn has no recorded calls, its text may still contain valid calls.

    Args:
        parsed_calls: calls parsed from the token ids.
        tools: the offered tools.
        turn: the turn.

    Raises:
        UnreadableError: the calls differ, or would be rejected at run time.
    """
    if turn.calls:
        if [_normalize_call(call) for call in parsed_calls] != [_normalize_call(call) for call in turn.calls]:
            raise UnreadableError("its chat template shows a turn that calls tools otherwise than one that is sampled")
        return
    for call in parsed_calls:
        if not call.name:
            raise UnreadableError(f"its text makes a call that cannot be read: {call.output}")
        normalize_arguments(call.arguments, call.name)
    check_known_tools(replace(turn, calls=tuple(parsed_calls)), tools)


def _normalize_call(call: ToolCall) -> tuple[str, dict[str, object]]:
    return call.name, parse_arguments(call.arguments)
