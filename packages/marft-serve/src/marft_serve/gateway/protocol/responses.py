"""OpenAI Responses API: ``POST …/responses``.

A request contains its whole input, or the new part after a previous response. Responses are stored until the end of
their episode.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Annotated, Any, Literal

from pydantic import Field

from marft.agents.chat import Chat, Constraint, Reply
from marft.agents.live import Begun
from marft.common.types import Tool
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from marft_serve.gateway.protocol.exchange import (
    NOTHING,
    Asked,
    Event,
    Protocol,
    Stream,
    call_id,
    in_pieces,
    log_probs_of,
    said_by,
    usage_of,
)
from marft_serve.gateway.protocol.fields import Sampled, ignored
from marft_serve.gateway.protocol.reading import (
    MOST_ALTERNATIVES,
    MOST_MESSAGES,
    MOST_TOOLS,
    CallSaid,
    Content,
    Count,
    Name,
    Said,
    Schema,
    Table,
    chat_of,
    forced_call,
    read,
    text_of,
    unsupported,
)
from marft_serve.gateway.refusals import RequestError

LOG_PROBS = "message.output_text.logprobs"  # value of ``include``
PART = ("response.reasoning_summary_part", "response.content_part")  # for reasoning, for messages
TEXT = ("response.reasoning_summary_text", "response.output_text")
TEXTS = ("text", "input_text", "output_text", "summary_text")


class Item(Table):
    """Item of an input; its fields depend on its type."""

    type: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Content = None
    call_id: Name | None = None
    name: Name | None = None
    arguments: str | None = None
    output: Content = None


class OfferedTool(Table):
    """Definition of a tool."""

    type: str
    name: Name | None = None
    description: str | None = None
    parameters: Schema | None = None


class Forced(Table):
    """Choice of a named function."""

    type: Literal["function"]
    name: Name


class Format(Table):
    """Format of the response text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = Field(default=None, alias="schema")


class Text(Table):
    """Options of the response text."""

    format: Format | None = None


class Request(Sampled):
    """Body of a request."""

    model: str = ""
    input: str | Annotated[list[Item], Field(min_length=1, max_length=MOST_MESSAGES)]
    instructions: str | None = None
    tools: Annotated[list[OfferedTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | Forced | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Count | None = None
    text: Text | None = None
    stream: bool | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    include: (
        Annotated[list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]], Field(max_length=16)]
        | None
    ) = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_ALTERNATIVES)] | None = None


class Responses(Protocol):
    """OpenAI Responses API."""

    def read(self, body: bytes, earlier: Mapping[str, tuple[Said, ...]] = NOTHING) -> Asked:
        request = read(Request, body)
        left = ignored(request)
        previous = request.previous_response_id
        if previous is not None and previous not in earlier:
            raise RequestError(
                400, "previous_response_not_found", "no response of this agent that was stored is called so",
                "previous_response_id",
            )  # fmt: skip
        tools = tuple(map(_tool, request.tools or ()))
        items = [Item(role="user", content=request.input)] if isinstance(request.input, str) else request.input
        told = [Said("system", request.instructions)] if request.instructions else []
        turns = _turns(items, earlier[previous] if previous else ())
        chat = Chat(
            messages=chat_of([*told, *turns]),
            tools=tools,
            calls=request.tool_choice != "none",
            max_tokens=request.max_output_tokens,
            wishes=request.wishes,
            constraint=_constraint(request, tools),
            pieces=LOG_PROBS in (request.include or ()) or bool(request.top_logprobs),
            alternatives=request.top_logprobs or 0,
            parallel=request.parallel_tool_calls is not False,
        )
        keeps = None if request.store is False else tuple(turns)
        return Asked(chat, 1, bool(request.stream), left, json.loads(body), keeps, request.model)

    def kept(self, asked: Asked, replies: Sequence[Reply]) -> Mapping[str, tuple[Said, ...]]:
        if asked.turns is None:
            return NOTHING
        (reply,) = replies
        calls = [CallSaid(call_id(reply, n), call.name, call.arguments) for n, call in enumerate(reply.calls)]
        said = Said("assistant", said_by(reply), tuple(calls))
        return {f"resp_{_name(reply.action.id)}": (*asked.turns, said)}

    def response(self, asked: Asked, replies: Sequence[Reply], told: Mapping[str, Any]) -> Mapping[str, Any]:
        (reply,) = replies
        cut = reply.action.finish == "length"
        return self.head(asked, reply.action.id, told) | {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": _output(reply),
            "usage": _usage(reply),
        }

    def stream(self, asked: Asked, begun: Begun, told: Mapping[str, Any]) -> Stream:
        return Items(self, asked, begun, told)

    def error(self, error: RequestError) -> Mapping[str, Any]:
        return ChatCompletions().error(error)

    @staticmethod
    def head(asked: Asked, action: str, told: Mapping[str, Any]) -> dict[str, Any]:
        """Return the response fields known before any text."""
        body = asked.detail or {}
        return {
            "id": f"resp_{_name(action)}",
            "object": "response",
            "created_at": int(time.time()),
            "model": told["model"],
            "error": None,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata") or {},
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "previous_response_id": body.get("previous_response_id"),
            "store": asked.turns is not None,
            "temperature": body.get("temperature"),
            "top_p": body.get("top_p"),
            "max_output_tokens": body.get("max_output_tokens"),
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "text": body.get("text") or {"format": {"type": "text"}},
            "usage": None,
            "marft": told["marft"],
        }


class Items(Stream):
    """Encoder for a response streamed in items: optional reasoning, an optional message, and tool calls."""

    def __init__(self, protocol: Responses, asked: Asked, begun: Begun, told: Mapping[str, Any]) -> None:
        super().__init__(asked, begun, told)
        self.protocol = protocol
        self._number = count()  # number of the next event
        self._index = -1  # index of the open item, or of the last item
        self._open: dict[str, Any] = {}
        self._text = ""  # text of the open item

    def begin(self) -> Iterator[Event]:
        head = self.protocol.head(self.asked, self.begun.id, self.told)
        response = {**head, "status": "in_progress", "incomplete_details": None, "output": []}
        for state in ("created", "in_progress"):
            yield self._event(f"response.{state}", response=response)

    def say(self, index: int, thought: str, text: str) -> Iterator[Event]:  # noqa: ARG002  always 0: one action
        if thought:
            yield from self._go_on(_reasoning(self.begun.id, ""), thought)
        if text:
            yield from self._go_on(_message(self.begun.id, ""), text)

    def end(self, replies: Sequence[Reply], told: Mapping[str, Any]) -> Iterator[Event]:
        (reply,) = replies
        if self._open.get("type") != "message" and not reply.calls:  # a response has at least one item
            yield from self._go_on(_message(self.begun.id, ""), "")
        yield from self._close(log_probs_of(reply))
        for call in _calls(reply):
            yield from self._begin({**call, "arguments": "", "status": "in_progress"})
            for piece in in_pieces(call["arguments"]):
                yield self._event("response.function_call_arguments.delta", **self._where, delta=piece)
            arguments = {"arguments": call["arguments"], "name": call["name"]}
            yield self._event("response.function_call_arguments.done", **self._where, **arguments)
            yield self._event("response.output_item.done", output_index=self._index, item=call)
        whole = self.protocol.response(self.asked, replies, told)
        yield self._event(f"response.{whole['status']}", response=whole)

    @property
    def _where(self) -> dict[str, Any]:
        inside = {"message": {"content_index": 0}, "reasoning": {"summary_index": 0}}.get(self._open["type"], {})
        return {"output_index": self._index, "item_id": self._open["id"], **inside}

    def _go_on(self, item: dict[str, Any], text: str) -> Iterator[Event]:
        """Yield the events for more reasoning or text; first close an item with a different type."""
        is_message = item["type"] == "message"
        if self._open.get("type") != item["type"]:
            yield from self._close()
            (part,) = item["content" if is_message else "summary"]
            empty: dict[str, Any] = {"status": "in_progress", "content": []} if is_message else {"summary": []}
            yield from self._begin(item | empty)
            yield self._event(PART[is_message] + ".added", **self._where, part=part)
        self._text += text
        more: dict[str, Any] = {"logprobs": []} if is_message else {}
        for piece in in_pieces(text):
            yield self._event(TEXT[is_message] + ".delta", **self._where, delta=piece, **more)

    def _begin(self, item: dict[str, Any]) -> Iterator[Event]:
        self._index += 1
        self._open, self._text = item, ""
        yield self._event("response.output_item.added", output_index=self._index, item=item)

    def _close(self, log_probs: Sequence[Mapping[str, Any]] = ()) -> Iterator[Event]:
        """Yield the events that close an open reasoning item or message."""
        if not self._open:
            return
        is_message = self._open["type"] == "message"
        item = _message(self.begun.id, self._text, log_probs) if is_message else _reasoning(self.begun.id, self._text)
        (part,) = item["content" if is_message else "summary"]
        more: dict[str, Any] = {"logprobs": []} if is_message else {}
        yield self._event(TEXT[is_message] + ".done", **self._where, text=self._text, **more)
        yield self._event(PART[is_message] + ".done", **self._where, part=part)
        yield self._event("response.output_item.done", output_index=self._index, item=item)
        self._open = {}

    def _event(self, kind: str, **more: Any) -> Event:
        return kind, {"type": kind, **more, "sequence_number": next(self._number)}


def _turns(items: Sequence[Item], earlier: Sequence[Said]) -> list[Said]:
    """Return an input's messages after the earlier messages.

    Tool calls are added to the preceding assistant turn.
    """
    turns = list(earlier)
    for number, item in enumerate(items):
        kind = item.type or "message"
        if kind == "message" and item.role:
            role = "system" if item.role == "developer" else item.role
            turns.append(Said(role, text_of(item.content, TEXTS)))
        elif kind == "function_call" and item.call_id and item.name:
            call = CallSaid(item.call_id, item.name, item.arguments or "")
            open_turn = bool(turns) and turns[-1].role == "assistant"
            last = turns.pop() if open_turn else Said("assistant", "")
            turns.append(Said("assistant", last.text, (*last.calls, call)))
        elif kind == "function_call_output":
            if not item.call_id:
                raise RequestError(400, "invalid_value", f"input.{number}: an output needs its call_id", "input")
            turns.append(Said("tool", text_of(item.output, TEXTS), answers=item.call_id))
        elif kind != "reasoning":  # earlier reasoning is in the token ids of a turn that the chat continues
            raise RequestError(
                400, "invalid_value", f"input.{number}: no item of type {kind[:64]!r} can be read like this", "input"
            )
    return turns


def _tool(tool: OfferedTool) -> Tool:
    if tool.type != "function" or tool.name is None:
        raise unsupported("tools", f"agents are offered functions, and nothing of type {tool.type[:64]!r}")
    return Tool(tool.name, tool.description or "", tool.parameters or {})


def _constraint(request: Request, tools: Sequence[Tool]) -> Constraint | None:
    choice, parallel = request.tool_choice, request.parallel_tool_calls is not False
    if isinstance(choice, Forced):
        return forced_call(tools, choice.name, parallel)
    if choice == "required":
        return forced_call(tools, "", parallel)
    form = request.text.format if request.text else None
    if form is None or form.type == "text":
        return None
    if form.type == "json_schema" and form.json_schema is None:
        raise RequestError(400, "invalid_value", "text.format: schema is missing", "text.format")
    return Constraint("json", schema=form.json_schema, parallel=parallel)


def _name(action: str) -> str:
    return action.replace("/", "-")


def _output(reply: Reply) -> list[dict[str, Any]]:
    """Return the output items: reasoning, message, tool calls."""
    text = said_by(reply)
    thought = [_reasoning(reply.action.id, reply.thought)] if reply.thought else []
    message = [_message(reply.action.id, text, log_probs_of(reply))] if text or not reply.calls else []
    return thought + message + _calls(reply)


def _reasoning(action: str, thought: str) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": thought}]
    return {"type": "reasoning", "id": f"rs_{_name(action)}", "summary": summary}


def _message(action: str, text: str, log_probs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": list(log_probs)}
    return {
        "type": "message", "id": f"msg_{_name(action)}", "role": "assistant", "status": "completed", "content": [part],
    }  # fmt: skip


def _calls(reply: Reply) -> list[dict[str, Any]]:
    name = _name(reply.action.id)
    return [
        {
            "type": "function_call", "id": f"fc_{name}_{number}", "call_id": call_id(reply, number), "name": call.name,
            "arguments": call.arguments, "status": "completed",
        }
        for number, call in enumerate(reply.calls)
    ]  # fmt: skip


def _usage(reply: Reply) -> dict[str, Any]:
    read_, sampled = usage_of([reply])
    return {
        "input_tokens": read_,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read_ + sampled,
    }
