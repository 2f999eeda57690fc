"""Anthropic Messages API: ``POST …/messages``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from marft.agents.chat import Chat, Constraint, Reply
from marft.agents.live import Begun
from marft.agents.rendering import arguments_of
from marft.common.texts import storable
from marft.common.types import Tool
from marft_serve.gateway.protocol.exchange import (
    NOTHING,
    Asked,
    Event,
    Protocol,
    Stream,
    call_id,
    in_pieces,
    said_by,
    usage_of,
)
from marft_serve.gateway.protocol.fields import Sampled, ignored
from marft_serve.gateway.protocol.reading import (
    MOST_MESSAGES,
    MOST_STOPS,
    MOST_TOOLS,
    CallSaid,
    Content,
    Count,
    Name,
    Said,
    Schema,
    Stop,
    Table,
    chat_of,
    forced_call,
    joined,
    read,
    text_of,
    turn_to_continue,
    unsupported,
)
from marft_serve.gateway.refusals import RequestError

DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}  # delta type and field, by type of the block
KINDS = {
    400: "invalid_request_error", 404: "not_found_error", 408: "timeout_error", 410: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error",
}  # fmt: skip


class Block(Table):
    """Content block of a message; its fields depend on its type."""

    type: str
    text: str | None = None
    id: Name | None = None
    name: Name | None = None
    input: dict[str, Any] | None = None
    tool_use_id: Name | None = None
    content: Content = None


class Message(Table):
    """Message of a request."""

    role: Literal["user", "assistant"]
    content: str | Annotated[list[Block], Field(max_length=MOST_MESSAGES)]


class OfferedTool(Table):
    """Definition of a tool."""

    type: str | None = None
    name: Name
    description: str | None = None
    input_schema: Schema = Field(default_factory=dict)


class Choice(Table):
    """Tool choice: automatic, any tool, a named tool or no tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool = False


class Format(Table):
    """JSON schema for the response."""

    type: Literal["json_schema"]
    json_schema: Schema = Field(alias="schema")


class OutputConfig(Table):
    """Format of the response."""

    format: Format | None = None


class Request(Sampled):
    """Body of a request."""

    model: str = ""
    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_tokens: Count
    system: Content = None
    tools: Annotated[list[OfferedTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Choice | None = None
    stop_sequences: Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    stream: bool | None = None
    output_config: OutputConfig | None = None


class Counted(Request):
    """Request body for counting tokens."""

    max_tokens: Count = 1


class Messages(Protocol):
    """Anthropic Messages API; ``Messages(Counted)`` parses requests to count tokens."""

    def __init__(self, kind: type[Request] = Request) -> None:
        self.kind = kind

    def read(self, body: bytes, earlier: Mapping[str, tuple[Said, ...]] = NOTHING) -> Asked:  # noqa: ARG002
        request = read(self.kind, body)
        left = ignored(request)
        system = text_of(request.system)
        said = [*([Said("system", system)] if system else []), *_turns(request.messages)]
        begun = turn_to_continue(said) if request.messages[-1].role == "assistant" else None
        tools = tuple(map(_tool, request.tools or ()))
        chat = Chat(
            messages=chat_of(said if begun is None else said[:-1]),
            tools=tools,
            calls=request.tool_choice is None or request.tool_choice.type != "none",
            max_tokens=request.max_tokens,
            stop=tuple(request.stop_sequences or ()),
            wishes=request.wishes,
            constraint=_constraint(request, tools),
            parallel=request.tool_choice is None or not request.tool_choice.disable_parallel_tool_use,
            begun=begun or "",
        )
        return Asked(chat, 1, bool(request.stream), left, model=request.model)

    def response(self, asked: Asked, replies: Sequence[Reply], told: Mapping[str, Any]) -> Mapping[str, Any]:
        (reply,) = replies
        return {
            **_head(reply.action.id, told),
            "content": _blocks(reply),
            **_stopped(asked, reply),
            "usage": _usage(reply),
        }

    def stream(self, asked: Asked, begun: Begun, told: Mapping[str, Any]) -> Stream:
        return Blocks(asked, begun, told)

    def error(self, error: RequestError) -> Mapping[str, Any]:
        return {"type": "error", "error": {"type": KINDS.get(error.status, "api_error"), "message": error.message}}


class Blocks(Stream):
    """Encoder for a streamed message with content blocks."""

    def __init__(self, asked: Asked, begun: Begun, told: Mapping[str, Any]) -> None:
        super().__init__(asked, begun, told)
        self._index = -1  # index of the open block, or of the last block
        self._open = ""  # type of the open block

    def begin(self) -> Iterator[Event]:
        usage = {"input_tokens": self.begun.read, "output_tokens": 0}
        message = {**_head(self.begun.id, self.told), "content": [], "stop_reason": None, "usage": usage}
        yield "message_start", {"type": "message_start", "message": message}

    def say(self, index: int, thought: str, text: str) -> Iterator[Event]:  # noqa: ARG002  always 0: one action
        if thought:
            yield from self._go_on({"type": "thinking", "thinking": "", "signature": ""}, thought)
        if text:
            yield from self._go_on({"type": "text", "text": ""}, text)

    def end(self, replies: Sequence[Reply], told: Mapping[str, Any]) -> Iterator[Event]:  # noqa: ARG002
        (reply,) = replies
        if self._open != "text" and not reply.calls:  # a response has at least one block
            yield from self._go_on({"type": "text", "text": ""}, "")
        for call in _blocks(reply):
            if call["type"] == "tool_use":
                yield from self._close()
                yield from self._go_on({**call, "input": {}}, json.dumps(call["input"]))
        yield from self._close()
        end = {"delta": _stopped(self.asked, reply), "usage": _usage(reply)}
        yield "message_delta", {"type": "message_delta", **end}
        yield "message_stop", {"type": "message_stop"}

    def _go_on(self, block: Mapping[str, Any], text: str) -> Iterator[Event]:
        """Yield the events for more block text; first close a block with a different type."""
        if self._open != block["type"]:
            yield from self._close()
            self._open = block["type"]
            self._index += 1
            yield self._event("content_block_start", content_block=block)
        kind, key = DELTAS[self._open]
        for piece in in_pieces(text):
            yield self._event("content_block_delta", delta={"type": kind, key: piece})

    def _close(self) -> Iterator[Event]:
        if self._open:
            yield self._event("content_block_stop")
        self._open = ""

    def _event(self, name: str, **more: Any) -> Event:
        return name, {"type": name, "index": self._index, **more}


def _turns(messages: Sequence[Message]) -> Iterator[Said]:
    """Yield a request's messages.

    A user's message may contain tool results. They come before the user's text.
    """
    for message in messages:
        if isinstance(message.content, str):
            yield Said(message.role, message.content)
            continue
        texts, calls = list[str](), list[CallSaid]()
        for block in message.content:
            if block.type == "text" and block.text is not None:
                texts.append(block.text)
            elif block.type == "tool_use" and message.role == "assistant" and block.id and block.name:
                calls.append(CallSaid(block.id, block.name, json.dumps(block.input or {})))
            elif block.type == "tool_result" and message.role == "user":
                if not block.tool_use_id:
                    raise RequestError(400, "invalid_value", "a tool_result needs its tool_use_id", "messages")
                yield Said("tool", text_of(block.content), answers=block.tool_use_id)
            # earlier reasoning is in the token ids of a turn that the chat continues
            elif block.type not in ("thinking", "redacted_thinking"):
                raise unsupported("messages", f"a block of type {storable(block.type)[:64]!r} cannot be read like this")
        if texts or calls or message.role == "assistant":
            yield Said(message.role, joined(texts), tuple(calls))


def _tool(tool: OfferedTool) -> Tool:
    if tool.type not in (None, "custom"):
        raise unsupported("tools", f"agents are offered tools of the client, and none of type {tool.type[:64]!r}")
    return Tool(tool.name, tool.description or "", tool.input_schema)


def _constraint(request: Request, tools: Sequence[Tool]) -> Constraint | None:
    choice = request.tool_choice
    if choice is None or choice.type in ("auto", "none"):
        form = request.output_config.format if request.output_config else None
        parallel = choice is None or not choice.disable_parallel_tool_use
        return Constraint("json", schema=form.json_schema, parallel=parallel) if form else None
    if choice.type == "tool" and choice.name is None:
        raise RequestError(400, "invalid_value", "tool_choice: the tool's name is missing", "tool_choice")
    name = "" if choice.type == "any" else choice.name or ""
    return forced_call(tools, name, not choice.disable_parallel_tool_use)


def _head(name: str, told: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"msg_{name.replace('/', '-')}", "type": "message", "role": "assistant",
        "model": told["model"], "stop_sequence": None, "marft": told["marft"],
    }  # fmt: skip


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    text = said_by(reply)
    thought = [{"type": "thinking", "thinking": reply.thought, "signature": ""}] if reply.thought else []
    said = [{"type": "text", "text": text}] if text or not reply.calls else []
    calls = [
        {"type": "tool_use", "id": call_id(reply, number), "name": call.name, "input": arguments_of(call.arguments)}
        for number, call in enumerate(reply.calls)
    ]
    return [*thought, *said, *calls]


def _stopped(asked: Asked, reply: Reply) -> dict[str, str | None]:
    """Return the stop reason, and the client's stop sequence if it ended the answer.

    An answer with tool calls has the reason ``tool_use``.
    """
    sequence = reply.stopped if reply.stopped in asked.chat.stop else None
    said = "stop_sequence" if sequence is not None else "end_turn"
    reason = "max_tokens" if reply.action.finish == "length" else said
    return {"stop_reason": "tool_use" if reply.calls else reason, "stop_sequence": sequence}


def _usage(reply: Reply) -> dict[str, int]:
    read_, sampled = usage_of([reply])
    return {"input_tokens": read_, "output_tokens": sampled}
