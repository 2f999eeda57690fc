"""Token ids of a recorded turn: its text, its tool calls and the end of the turn, in the form a model would sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from marft.agents.rendering import ChatMessage, NotExact, arguments_of, exchange
from marft.common.texts import raised
from marft.common.thoughts import BEGINS, CHANNELS, ENDS
from marft.common.types import TokenIds, Tool, ToolCall
from marft.inference.messages import LAST, begins_thought, marks_of
from marft.inference.renderer import ChatRenderer
from marft.inference.whole_turns import OTHERWISE, WholeTurn, whole_turn
from marft.models.control_tokens import encoded_inside, marked
from marft.models.templates import CANNOT_RENDER
from marft_serve.traces.messages import arguments
from marft_serve.traces.record import TracedTurn, UnreadableError

Thinking = Literal["keep", "drop"]
LEAVES_OUT = "its chat template leaves out parts of what was said"


def turn_ids(
    renderer: ChatRenderer, policy: str, chat: Sequence[ChatMessage], tools: Sequence[Tool], turn: TracedTurn,
    thinking: Thinking,
) -> TokenIds:  # fmt: skip
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
    format = renderer.formats[policy]
    refuse_unknown_calls(turn, tools)
    try:
        ids = _ids(renderer, policy, chat, tools, turn, thinking)
        if tools and not format.remote:
            _check_calls(_made(renderer, policy, ids, tools, turn), tools, turn)
    except UnreadableError:
        raise
    except CANNOT_RENDER as error:
        raise UnreadableError(f"the model cannot say it: {raised(error)}") from error
    return ids if turn.whole or not len(ids) or ids[-1] not in format.stop_ids else ids[:-1]


def refuse_unknown_calls(turn: TracedTurn, tools: Sequence[Tool]) -> None:
    """Check a turn's tool calls against the offered tools.

    Raises:
        UnreadableError: the turn calls a tool that is not offered; the call would be rejected at run time.
    """
    offered = [tool.name for tool in tools]
    unknown = next((call.name for call in turn.calls if call.name not in offered), None)
    if unknown is not None:
        if not offered:
            raise UnreadableError(f"it calls tools, and the agent is offered none, not even {unknown!r}")
        raise UnreadableError(f"it calls {unknown!r}, and the agent is offered {', '.join(offered)} alone")


def _ids(
    renderer: ChatRenderer, policy: str, chat: Sequence[ChatMessage], tools: Sequence[Tool], turn: TracedTurn,
    thinking: Thinking,
) -> TokenIds:  # fmt: skip
    """Return the token ids of a turn under the chat template.

    Raises:
        UnreadableError: the template does not represent the turn in the form that a model samples.
    """
    format = renderer.formats[policy]
    thought = turn.thought if thinking == "keep" else ""
    begun = not format.remote and begins_thought(format)
    if format.remote and not turn.calls:
        return renderer.option(policy, (f"{BEGINS}\n{thought}\n{ENDS}\n\n" if thought else "") + turn.text)
    reason, marks = OTHERWISE, marks_of(format)
    for said in _messages(turn, thought, marks):
        try:
            found = whole_turn(format, chat, said, tools, exchange("", turn.calls)[1:] if turn.calls else (LAST,))
        except CANNOT_RENDER as error:
            reason = f"the model cannot say it: {raised(error)}"
            continue
        problem = _problem(found, turn, thought, marks[1] if begun else "")
        if isinstance(found, WholeTurn) and not problem:
            return found.ids
        reason = problem
    if turn.calls or not begun:
        raise UnreadableError(reason)
    text = f"{thought}\n{marks[1]}\n\n{turn.text}"  # the prompt begins the reasoning
    ids = encoded_inside(format.tokenizer, marked(format.tokenizer, text, own=True))
    return np.array([*ids, *format.stop_ids[:1]], np.int32)


def _messages(turn: TracedTurn, thought: str, marks: tuple[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the turn as messages for a template: with separate reasoning, or with reasoning at the start of the text.

    Args:
        turn: the turn.
        thought: reasoning; "" without any.
        marks: start and end marks of the model's reasoning. Channel marks are left to the template.
    """
    calls = exchange("", turn.calls)[0]["tool_calls"] if turn.calls else None
    said = {"role": "assistant", "content": turn.text} | ({"tool_calls": calls} if calls else {})
    if thought:
        yield {**said, "reasoning_content": thought, "thinking": thought}
        if marks != CHANNELS:
            yield {**said, "content": f"{marks[0]}\n{thought}\n{marks[1]}\n\n{turn.text}"}
    else:
        yield said


def _problem(found: WholeTurn | NotExact, turn: TracedTurn, thought: str, ends: str) -> str:
    """Return the reason why a rendered turn differs from a sampled turn; "" without a difference.

    Args:
        found: the rendered turn.
        turn: the recorded turn.
        thought: reasoning; "" without any.
        ends: end mark of reasoning begun by the prompt; "" if the prompt begins none.
    """
    if isinstance(found, NotExact):
        return found.reason
    at = 0
    for part in map(str.strip, (thought, ends, turn.text)):
        place = found.text.find(part, at)
        if place < 0:
            return LEAVES_OUT
        at = place + len(part)
    if turn.calls and not found.ended:
        return "its chat template puts no end of turn after a turn that calls tools"
    return ""


def _made(
    renderer: ChatRenderer, policy: str, ids: TokenIds, tools: Sequence[Tool], turn: TracedTurn
) -> Sequence[ToolCall]:  # fmt: skip
    """Return the tool calls in a turn's token ids.

    The result is empty if the turn has no recorded calls and the template does not support calls.
    """
    try:
        return renderer.calls(policy, ids, tools)
    except ValueError:
        if turn.calls:
            raise
        return ()


def _check_calls(made: Sequence[ToolCall], tools: Sequence[Tool], turn: TracedTurn) -> None:
    """Check that a turn's token ids contain the recorded tool calls.

    If the turn has no recorded calls, its text may still contain valid calls.

    Args:
        made: calls parsed from the token ids.
        tools: the offered tools.
        turn: the turn.

    Raises:
        UnreadableError: the calls differ, or would be rejected at run time.
    """
    if turn.calls:
        if [_as_read(call) for call in made] != [_as_read(call) for call in turn.calls]:
            raise UnreadableError("its chat template shows a turn that calls tools otherwise than one that is sampled")
        return
    for call in made:
        if not call.name:
            raise UnreadableError(f"its text makes a call that cannot be read: {call.output}")
        arguments(call.arguments, call.name)
    refuse_unknown_calls(replace(turn, calls=tuple(made)), tools)


def _as_read(call: ToolCall) -> tuple[str, dict[str, object]]:
    return call.name, arguments_of(call.arguments)
