"""A recorded turn as the token ids that a model would have sampled for it: its text, its calls, the end of the turn."""

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
    """Return the ids of a turn as a policy's model has to sample it after the prompt, [T]. Its end is the template's,
    where the turn was whole.

    Args:
        chat: what it is said to.
        tools: that the chat is rendered with.

    Raises:
        UnreadableError: the model's chat template cannot show it, or it calls tools that are not there.
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
    """
    Raises:
        UnreadableError: the turn calls a tool that the agent is not offered: its call would be refused when it acts.
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
    """
    Raises:
        UnreadableError: the template does not show the turn as a model has to sample it.
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
    text = f"{thought}\n{marks[1]}\n\n{turn.text}"  # the prompt begins the thought
    ids = encoded_inside(format.tokenizer, marked(format.tokenizer, text, own=True))
    return np.array([*ids, *format.stop_ids[:1]], np.int32)


def _messages(turn: TracedTurn, thought: str, marks: tuple[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the turn as messages that templates may take: with the thought beside the text, or at its beginning.

    Args:
        marks: of the model's thoughts; channels are the template's to write.
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
    """Return why what a template shows is not what the model has to sample; "" where it is.

    Args:
        ends: the mark that ends a thought which the prompt begins; "" where it begins none.
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
    """Return the calls that a turn's ids make: none where it says none, and its chat template knows no calls."""
    try:
        return renderer.calls(policy, ids, tools)
    except ValueError:
        if turn.calls:
            raise
        return ()


def _check_calls(made: Sequence[ToolCall], tools: Sequence[Tool], turn: TracedTurn) -> None:
    """See that a turn's ids make the calls that it says. Where it says none, its text may make some that can be read.

    Args:
        made: by the ids.

    Raises:
        UnreadableError: they make others, or some that would be refused when the agent acts.
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
