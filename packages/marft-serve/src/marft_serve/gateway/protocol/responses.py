"""OpenAI Responses API: ``POST …/responses``.

A request contains its whole input, or the new part after a previous response. Responses are stored until the end of
their episode.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Annotated, Literal

from pydantic import Field

from marft.agents.chat import Chat, Constraint, Reply
from marft.agents.streaming import ActionStart
from marft.common.types import Tool
from marft_serve.gateway.errors import RequestError, invalid_error
from marft_serve.gateway.protocol.base import (
    NO_CONVERSATIONS,
    Event,
    Metadata,
    ParsedRequest,
    Protocol,
    Stream,
    build_call_id,
    build_log_probs,
    count_usage,
    get_reply_text,
    split_text,
)
from marft_serve.gateway.protocol.fields import SamplingParams, collect_ignored_fields
from marft_serve.gateway.protocol.parsing import (
    MAX_ALTERNATIVES,
    MAX_MESSAGES,
    MAX_TOOLS,
    ClientMessage,
    ClientToolCall,
    Content,
    Count,
    Name,
    RequestModel,
    Schema,
    build_call_constraint,
    build_chat_messages,
    extract_text,
    parse_body,
    unsupported_error,
)

LOG_PROBS = "message.output_text.logprobs"  # value of ``include``
PART_EVENTS = ("response.reasoning_summary_part", "response.content_part")  # for reasoning, for messages
TEXT_EVENTS = ("response.reasoning_summary_text", "response.output_text")
TEXT_TYPES = ("text", "input_text", "output_text", "summary_text")


class InputItem(RequestModel):
    """Item of an input; its fields depend on its type."""

    type: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Content = None
    call_id: Name | None = None
    name: Name | None = None
    arguments: str | None = None
    output: Content = None


class ToolDefinition(RequestModel):
    """Definition of a tool."""

    type: str
    name: Name | None = None
    description: str | None = None
    parameters: Schema | None = None


class NamedToolChoice(RequestModel):
    """Choice of a named function."""

    type: Literal["function"]
    name: Name


class TextFormat(RequestModel):
    """Format of the response text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = Field(default=None, alias="schema")


class TextOptions(RequestModel):
    """Options of the response text."""

    format: TextFormat | None = None


class Request(SamplingParams):
    """Body of a request."""

    model: str = ""
    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    tools: Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Count | None = None
    text: TextOptions | None = None
    stream: bool | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    include: (
        Annotated[list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]], Field(max_length=16)]
        | None
    ) = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None


class ItemStream(Stream):
    """Encoder for a response streamed in items: optional reasoning, an optional message, and tool calls."""

    def __init__(self, request: ParsedRequest, first_action: ActionStart, metadata: Metadata) -> None:
        super().__init__(request, first_action, metadata)
        self._number = count()  # number of the next event
        self._index = -1  # index of the open item, or of the last item
        self._open, self._item_id = "", ""  # type and id of the open item
        self._text = ""  # text of the open item

    def begin(self) -> Iterator[Event]:
        head = _build_head(self.request, self.first_action.id, self.metadata)
        response = {**head, "status": "in_progress", "incomplete_details": None, "output": []}
        for state in ("created", "in_progress"):
            yield self._build_event(f"response.{state}", response=response)

    def emit_delta(self, index: int, reasoning: str, text: str) -> Iterator[Event]:  # noqa: ARG002  always 0: one action
        if reasoning:
            yield from self._append_text("reasoning", reasoning)
        if text:
            yield from self._append_text("message", text)

    def end(self, replies: Sequence[Reply], metadata: Metadata) -> Iterator[Event]:
        (reply,) = replies
        if self._open != "message" and not reply.calls:  # a response has at least one item
            yield from self._append_text("message", "")
        yield from self._close_item(build_log_probs(reply))
        for number, call in enumerate(reply.calls):
            item = _build_call(reply, number)
            yield from self._open_item("function_call", {**item, "arguments": "", "status": "in_progress"})
            for piece in split_text(call.arguments):
                yield self._build_event("response.function_call_arguments.delta", **self._position, delta=piece)
            arguments = {"arguments": call.arguments, "name": call.name}
            yield self._build_event("response.function_call_arguments.done", **self._position, **arguments)
            yield self._build_event("response.output_item.done", output_index=self._index, item=item)
        response = _build_response(self.request, reply, metadata)
        yield self._build_event(f"response.{response['status']}", response=response)

    @property
    def _position(self) -> dict[str, object]:
        part_position = {"message": {"content_index": 0}, "reasoning": {"summary_index": 0}}.get(self._open, {})
        return {"output_index": self._index, "item_id": self._item_id, **part_position}

    def _append_text(self, kind: str, text: str) -> Iterator[Event]:
        """Yield the events for more reasoning or text; first close an item with a different type."""
        is_message = kind == "message"
        if self._open != kind:
            yield from self._close_item()
            item, part = _build_text_item(kind, self.first_action.id, "")
            empty: dict[str, object] = {"status": "in_progress", "content": []} if is_message else {"summary": []}
            yield from self._open_item(kind, item | empty)
            yield self._build_event(PART_EVENTS[is_message] + ".added", **self._position, part=part)
        self._text += text
        more: dict[str, object] = {"logprobs": []} if is_message else {}
        for piece in split_text(text):
            yield self._build_event(TEXT_EVENTS[is_message] + ".delta", **self._position, delta=piece, **more)

    def _open_item(self, kind: str, item: dict[str, object]) -> Iterator[Event]:
        self._index += 1
        self._open, self._item_id, self._text = kind, str(item["id"]), ""
        yield self._build_event("response.output_item.added", output_index=self._index, item=item)

    def _close_item(self, log_probs: Sequence[Mapping[str, object]] = ()) -> Iterator[Event]:
        """Yield the events that close an open reasoning item or message."""
        if not self._open:
            return
        is_message = self._open == "message"
        item, part = _build_text_item(self._open, self.first_action.id, self._text, log_probs)
        more: dict[str, object] = {"logprobs": []} if is_message else {}
        yield self._build_event(TEXT_EVENTS[is_message] + ".done", **self._position, text=self._text, **more)
        yield self._build_event(PART_EVENTS[is_message] + ".done", **self._position, part=part)
        yield self._build_event("response.output_item.done", output_index=self._index, item=item)
        self._open = ""

    def _build_event(self, kind: str, **more: object) -> Event:
        return kind, {"type": kind, **more, "sequence_number": next(self._number)}


class Responses(Protocol):
    """OpenAI Responses API."""

    stream_type = ItemStream

    def parse_request(
        self, body: bytes, earlier: Mapping[str, tuple[ClientMessage, ...]] = NO_CONVERSATIONS
    ) -> ParsedRequest:
        request = parse_body(Request, body)
        ignored_fields = collect_ignored_fields(request)
        previous = request.previous_response_id
        if previous is not None and previous not in earlier:
            raise RequestError(
                400,
                "previous_response_not_found",
                "no response of this agent that was stored is called so",
                "previous_response_id",
            )
        tools = tuple(map(_convert_tool, request.tools or ()))
        items = [InputItem(role="user", content=request.input)] if isinstance(request.input, str) else request.input
        instructions = [ClientMessage("system", request.instructions)] if request.instructions else []
        turns = _convert_items(items, earlier[previous] if previous else ())
        chat = Chat(
            messages=build_chat_messages([*instructions, *turns]),
            tools=tools,
            parse_calls=request.tool_choice != "none",
            max_tokens=request.max_output_tokens,
            recorded_options=request.recorded_options,
            constraint=_build_constraint(request, tools),
            return_token_texts=LOG_PROBS in (request.include or ()) or bool(request.top_logprobs),
            alternatives=request.top_logprobs or 0,
            allow_parallel_calls=request.parallel_tool_calls is not False,
        )
        stored_turns = None if request.store is False else tuple(turns)
        return ParsedRequest(
            chat, 1, bool(request.stream), ignored_fields, json.loads(body), stored_turns, request.model
        )

    def conversations_to_store(
        self, request: ParsedRequest, replies: Sequence[Reply]
    ) -> Mapping[str, tuple[ClientMessage, ...]]:
        if request.turns is None:
            return NO_CONVERSATIONS
        (reply,) = replies
        calls = [
            ClientToolCall(build_call_id(reply, n), call.name, call.arguments) for n, call in enumerate(reply.calls)
        ]
        message = ClientMessage("assistant", get_reply_text(reply), tuple(calls))
        return {f"resp_{_format_id(reply.action.id)}": (*request.turns, message)}

    def build_response(
        self, request: ParsedRequest, replies: Sequence[Reply], metadata: Metadata
    ) -> Mapping[str, object]:
        (reply,) = replies
        return _build_response(request, reply, metadata)


def _convert_items(items: Sequence[InputItem], earlier: Sequence[ClientMessage]) -> list[ClientMessage]:
    """Return an input's messages after the earlier messages.

    Tool calls are added to the preceding assistant turn.
    """
    turns = list(earlier)
    for number, item in enumerate(items):
        kind = item.type or "message"
        if kind == "message" and item.role:
            role = "system" if item.role == "developer" else item.role
            turns.append(ClientMessage(role, extract_text(item.content, TEXT_TYPES)))
        elif kind == "function_call" and item.call_id and item.name:
            call = ClientToolCall(item.call_id, item.name, item.arguments or "")
            open_turn = bool(turns) and turns[-1].role == "assistant"
            last = turns.pop() if open_turn else ClientMessage("assistant", "")
            turns.append(ClientMessage("assistant", last.text, (*last.calls, call)))
        elif kind == "function_call_output":
            if not item.call_id:
                raise invalid_error(f"input.{number}: an output needs its call_id", "input")
            turns.append(ClientMessage("tool", extract_text(item.output, TEXT_TYPES), tool_call_id=item.call_id))
        elif kind != "reasoning":  # earlier reasoning is in the token ids of a turn that the chat continues
            raise invalid_error(f"input.{number}: no item of type {kind[:64]!r} can be read like this", "input")
    return turns


def _convert_tool(tool: ToolDefinition) -> Tool:
    if tool.type != "function" or tool.name is None:
        raise unsupported_error("tools", f"agents are offered functions, and nothing of type {tool.type[:64]!r}")
    return Tool(tool.name, tool.description or "", tool.parameters or {})


def _build_constraint(request: Request, tools: Sequence[Tool]) -> Constraint | None:
    choice, parallel = request.tool_choice, request.parallel_tool_calls is not False
    if isinstance(choice, NamedToolChoice):
        return build_call_constraint(tools, choice.name, parallel)
    if choice == "required":
        return build_call_constraint(tools, "", parallel)
    form = request.text.format if request.text else None
    if form is None or form.type == "text":
        return None
    if form.type == "json_schema" and form.json_schema is None:
        raise invalid_error("text.format: schema is missing", "text.format")
    return Constraint("json", schema=form.json_schema, allow_parallel_calls=parallel)


def _format_id(action_id: str) -> str:
    return action_id.replace("/", "-")


def _build_response(request: ParsedRequest, reply: Reply, metadata: Metadata) -> dict[str, object]:
    truncated = reply.action.finish == "length"
    return _build_head(request, reply.action.id, metadata) | {
        "status": "incomplete" if truncated else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if truncated else None,
        "output": _build_output(reply),
        "usage": _build_usage(reply),
    }


def _build_head(request: ParsedRequest, action_id: str, metadata: Metadata) -> dict[str, object]:
    """Return the response fields known before any text."""
    body = request.detail or {}
    return {
        "id": f"resp_{_format_id(action_id)}",
        "object": "response",
        "created_at": int(time.time()),
        "model": metadata["model"],
        "error": None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": body.get("previous_response_id"),
        "store": request.turns is not None,
        "temperature": body.get("temperature"),
        "top_p": body.get("top_p"),
        "max_output_tokens": body.get("max_output_tokens"),
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "text": body.get("text") or {"format": {"type": "text"}},
        "usage": None,
        "marft": metadata["marft"],
    }


def _build_output(reply: Reply) -> list[dict[str, object]]:
    """Return the output items: reasoning, message, tool calls."""
    text, items = get_reply_text(reply), list[dict[str, object]]()
    if reply.thought:
        items.append(_build_text_item("reasoning", reply.action.id, reply.thought)[0])
    if text or not reply.calls:
        items.append(_build_text_item("message", reply.action.id, text, build_log_probs(reply))[0])
    return items + [_build_call(reply, number) for number in range(len(reply.calls))]


def _build_text_item(
    kind: str, action_id: str, text: str, log_probs: Sequence[Mapping[str, object]] = ()
) -> tuple[dict[str, object], dict[str, object]]:
    """Return a reasoning item or a message, and its only part."""
    part: dict[str, object] = {"type": "summary_text", "text": text}
    if kind == "reasoning":
        return {"type": "reasoning", "id": f"rs_{_format_id(action_id)}", "summary": [part]}, part
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": list(log_probs)}
    return {
        "type": "message",
        "id": f"msg_{_format_id(action_id)}",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }, part


def _build_call(reply: Reply, number: int) -> dict[str, object]:
    call = reply.calls[number]
    return {
        "type": "function_call",
        "id": f"fc_{_format_id(reply.action.id)}_{number}",
        "call_id": build_call_id(reply, number),
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }


def _build_usage(reply: Reply) -> dict[str, object]:
    prompt_tokens, sampled = count_usage([reply])
    return {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt_tokens + sampled,
    }
