"""OpenAI's Responses: ``POST …/responses``. A request sends its whole input, or what is new since a response that it
names; responses are kept as long as their episode is played."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from marft.game.chat import Chat, Constraint, Reply
from marft.gateway.protocol.chat_completions import ChatCompletions, Number
from marft.gateway.protocol.exchange import NOTHING, Asked, Event, Protocol, call_id, in_pieces, log_probs_of, usage_of
from marft.gateway.protocol.reading import (
    MOST_ALTERNATIVES,
    CallSaid,
    Count,
    Name,
    Part,
    Said,
    Schema,
    Table,
    chat_of,
    forced_call,
    left_out,
    read,
    text_of,
    unheld,
    unsupported,
)
from marft.gateway.refusals import RequestError
from marft.types import Tool

CHANGE_NOTHING = (
    "user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "background", "truncation",
)  # fmt: skip
LOG_PROBS = "message.output_text.logprobs"  # among what is to be included
TEXTS = ("text", "input_text", "output_text", "summary_text")


class Item(Table):
    """Anything of an input; which fields it has follows from its type."""

    type: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[Part] | None = None
    call_id: Name | None = None
    name: Name | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class OfferedTool(Table):
    type: str
    name: Name | None = None
    description: str | None = None
    parameters: Schema | None = None


class Forced(Table):
    type: Literal["function"]
    name: Name


class Format(Table):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = Field(default=None, alias="schema")


class Text(Table):
    format: Format | None = None


class Request(Table):
    model: str = ""
    input: str | Annotated[list[Item], Field(min_length=1)]
    instructions: str | None = None
    tools: list[OfferedTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | Forced | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Count | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    text: Text | None = None
    stream: bool | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_ALTERNATIVES)] | None = None
    conversation: object = None


class Responses(Protocol):
    def read(self, body: bytes, earlier: Mapping[str, tuple[Said, ...]] = NOTHING) -> Asked:
        request = read(Request, body)
        if request.conversation is not None:
            raise unsupported("conversation", "send the whole input, or what is new since previous_response_id")
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
        wishes = {name: getattr(request, name) for name in ("temperature", "top_p")}
        chat = Chat(
            messages=chat_of([*told, *turns]),
            tools=tools,
            calls=request.tool_choice != "none",
            max_tokens=request.max_output_tokens,
            wishes={name: value for name, value in wishes.items() if value is not None},
            constraint=_constraint(request, tools),
            pieces=LOG_PROBS in (request.include or ()) or bool(request.top_logprobs),
            alternatives=request.top_logprobs or 0,
        )
        ignored = (*left_out(request, CHANGE_NOTHING), *unheld(request.parallel_tool_calls, chat))
        keeps = None if request.store is False else tuple(turns)
        return Asked(chat, 1, bool(request.stream), ignored, json.loads(body), keeps)

    def kept(self, asked: Asked, replies: Sequence[Reply]) -> Mapping[str, tuple[Said, ...]]:
        if asked.turns is None:
            return NOTHING
        (reply,) = replies
        calls = [CallSaid(call_id(reply, n), call.name, call.arguments) for n, call in enumerate(reply.calls)]
        said = Said("assistant", str(reply.message["content"] or ""), tuple(calls))
        return {f"resp_{_name(reply)}": (*asked.turns, said)}

    def response(self, asked: Asked, replies: Sequence[Reply], told: Mapping[str, Any]) -> Mapping[str, Any]:
        (reply,) = replies
        cut = reply.action.finish == "length"
        return self._head(asked, reply, told) | {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": _output(reply),
            "usage": _usage(reply),
        }

    def events(self, asked: Asked, replies: Sequence[Reply], told: Mapping[str, Any]) -> Iterator[Event]:
        (reply,) = replies
        begun = {**self._head(asked, reply, told), "status": "in_progress", "incomplete_details": None, "output": []}
        told_events: list[dict[str, Any]] = [
            {"type": f"response.{state}", "response": begun} for state in ("created", "in_progress")
        ]
        for index, item in enumerate(_output(reply)):
            told_events += _item_events(index, item)
        whole = self.response(asked, replies, told)
        told_events.append({"type": f"response.{whole['status']}", "response": whole})
        for number, event in enumerate(told_events):
            yield event["type"], {**event, "sequence_number": number}

    def error(self, error: RequestError) -> Mapping[str, Any]:
        return ChatCompletions().error(error)

    @staticmethod
    def _head(asked: Asked, reply: Reply, told: Mapping[str, Any]) -> dict[str, Any]:
        body = asked.detail or {}
        return {
            "id": f"resp_{_name(reply)}",
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


def _turns(items: Sequence[Item], earlier: Sequence[Said]) -> list[Said]:
    """The messages of an input, after earlier ones. Calls are part of the assistant's turn that they follow on."""
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
        elif kind == "function_call_output" and item.call_id:
            turns.append(Said("tool", text_of(item.output, TEXTS), answers=item.call_id))
        elif kind != "reasoning":  # what was thought is in the ids, where it is gone on from
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


def _name(reply: Reply) -> str:
    return reply.action.id.replace("/", "-")


def _output(reply: Reply) -> list[dict[str, Any]]:
    """What was said, then what is called."""
    name, text = _name(reply), str(reply.message["content"] or "")
    items: list[dict[str, Any]] = []
    if reply.thought:
        summary = [{"type": "summary_text", "text": reply.thought}]
        items.append({"type": "reasoning", "id": f"rs_{name}", "summary": summary})
    if text or not reply.calls:
        part = {
            "type": "output_text",
            "text": text,
            "annotations": [],
            "logprobs": log_probs_of(reply),
        }
        items.append(
            {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed", "content": [part]}
        )
    return items + [
        {
            "type": "function_call", "id": f"fc_{name}_{number}", "call_id": call_id(reply, number), "name": call.name,
            "arguments": call.arguments, "status": "completed",
        }
        for number, call in enumerate(reply.calls)
    ]  # fmt: skip


def _item_events(index: int, item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """An item as it comes about in a stream."""
    where = {"output_index": index, "item_id": item["id"]}
    empty: dict[str, dict[str, Any]] = {
        "message": {"content": []},
        "function_call": {"arguments": ""},
        "reasoning": {"summary": []},
    }
    added = {**item, **empty[item["type"]], **({} if item["type"] == "reasoning" else {"status": "in_progress"})}
    yield {"type": "response.output_item.added", "output_index": index, "item": added}
    if item["type"] == "message":
        (part,) = item["content"]
        place = {**where, "content_index": 0}
        yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
        for piece in in_pieces(part["text"]):
            yield {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
        yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **place, "part": part}
    elif item["type"] == "function_call":
        for piece in in_pieces(item["arguments"]):
            yield {"type": "response.function_call_arguments.delta", **where, "delta": piece}
        arguments = {"arguments": item["arguments"], "name": item["name"]}
        yield {"type": "response.function_call_arguments.done", **where, **arguments}
    yield {"type": "response.output_item.done", "output_index": index, "item": dict(item)}


def _usage(reply: Reply) -> dict[str, Any]:
    read_, sampled = usage_of([reply])
    return {
        "input_tokens": read_,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read_ + sampled,
    }
