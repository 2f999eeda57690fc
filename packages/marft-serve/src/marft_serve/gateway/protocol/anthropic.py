"""Anthropic Messages API: ``POST …/messages``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from marft.agents.chat import Chat, Constraint, Reply
from marft.agents.prompt_messages import parse_arguments
from marft.agents.streaming import ActionStart
from marft.common.texts import replace_surrogates
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
    count_usage,
    get_reply_text,
    split_text,
)
from marft_serve.gateway.protocol.fields import SamplingParams, collect_ignored_fields
from marft_serve.gateway.protocol.parsing import (
    MAX_MESSAGES,
    MAX_STOPS,
    MAX_TOOLS,
    ClientMessage,
    ClientToolCall,
    Content,
    Count,
    Name,
    RequestModel,
    Schema,
    Stop,
    build_call_constraint,
    build_chat_messages,
    extract_text,
    get_prefix,
    join_parts,
    parse_body,
    unsupported_error,
)

DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}  # delta type and field, by type of the block
ERROR_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    408: "timeout_error",
    410: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


class ContentBlock(RequestModel):
    """Content block of a message; its fields depend on its type."""

    type: str
    text: str | None = None
    id: Name | None = None
    name: Name | None = None
    input: dict[str, object] | None = None
    tool_use_id: Name | None = None
    content: Content = None


class Message(RequestModel):
    """Message of a request."""

    role: Literal["user", "assistant"]
    content: str | Annotated[list[ContentBlock], Field(max_length=MAX_MESSAGES)]


class ToolDefinition(RequestModel):
    """Definition of a tool."""

    type: str | None = None
    name: Name
    description: str | None = None
    input_schema: Schema = Field(default_factory=dict)


class ToolChoice(RequestModel):
    """Tool choice: automatic, any tool, a named tool or no tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool = False


class JsonSchemaFormat(RequestModel):
    """JSON schema for the response."""

    type: Literal["json_schema"]
    json_schema: Schema = Field(alias="schema")


class OutputConfig(RequestModel):
    """Format of the response."""

    format: JsonSchemaFormat | None = None


class Request(SamplingParams):
    """Body of a request."""

    model: str = ""
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: Count
    system: Content = None
    tools: Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    stop_sequences: Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    output_config: OutputConfig | None = None


class CountTokensRequest(Request):
    """Request body for counting tokens."""

    max_tokens: Count = 1


class BlockStream(Stream):
    """Encoder for a streamed message with content blocks."""

    def __init__(self, request: ParsedRequest, first_action: ActionStart, metadata: Metadata) -> None:
        super().__init__(request, first_action, metadata)
        self._index = -1  # index of the open block, or of the last block
        self._open = ""  # type of the open block

    def begin(self) -> Iterator[Event]:
        usage = {"input_tokens": self.first_action.prompt_tokens, "output_tokens": 0}
        message = {
            **_build_head(self.first_action.id, self.metadata),
            "content": [],
            "stop_reason": None,
            "usage": usage,
        }
        yield "message_start", {"type": "message_start", "message": message}

    def emit_delta(self, index: int, reasoning: str, text: str) -> Iterator[Event]:  # noqa: ARG002  always 0: one action
        if reasoning:
            yield from self._append_text({"type": "thinking", "thinking": "", "signature": ""}, reasoning)
        if text:
            yield from self._append_text({"type": "text", "text": ""}, text)

    def end(self, replies: Sequence[Reply], metadata: Metadata) -> Iterator[Event]:  # noqa: ARG002
        (reply,) = replies
        if self._open != "text" and not reply.calls:  # a response has at least one block
            yield from self._append_text({"type": "text", "text": ""}, "")
        for call in _build_blocks(reply):
            if call["type"] == "tool_use":
                yield from self._close_block()
                yield from self._append_text({**call, "input": {}}, json.dumps(call["input"]))
        yield from self._close_block()
        end = {"delta": _build_stop_fields(self.request, reply), "usage": _build_usage(reply)}
        yield "message_delta", {"type": "message_delta", **end}
        yield "message_stop", {"type": "message_stop"}

    def _append_text(self, block: Mapping[str, object], text: str) -> Iterator[Event]:
        """Yield the events for more block text; first close a block with a different type."""
        if self._open != block["type"]:
            yield from self._close_block()
            self._open = str(block["type"])
            self._index += 1
            yield self._build_event("content_block_start", content_block=block)
        kind, key = DELTAS[self._open]
        for piece in split_text(text):
            yield self._build_event("content_block_delta", delta={"type": kind, key: piece})

    def _close_block(self) -> Iterator[Event]:
        if self._open:
            yield self._build_event("content_block_stop")
        self._open = ""

    def _build_event(self, name: str, **more: object) -> Event:
        return name, {"type": name, "index": self._index, **more}


class Messages(Protocol):
    """Anthropic Messages API; ``Messages(CountTokensRequest)`` parses requests to count tokens."""

    stream_type = BlockStream
    has_own_errors = True

    def __init__(self, request_type: type[Request] = Request) -> None:
        self.request_type = request_type

    def parse_request(
        self,
        body: bytes,
        earlier: Mapping[str, tuple[ClientMessage, ...]] = NO_CONVERSATIONS,  # noqa: ARG002
    ) -> ParsedRequest:
        request = parse_body(self.request_type, body)
        ignored_fields = collect_ignored_fields(request)
        system = extract_text(request.system)
        messages = [*([ClientMessage("system", system)] if system else []), *_convert_messages(request.messages)]
        prefix = get_prefix(messages) if request.messages[-1].role == "assistant" else None
        tools = tuple(map(_convert_tool, request.tools or ()))
        chat = Chat(
            messages=build_chat_messages(messages if prefix is None else messages[:-1]),
            tools=tools,
            parse_calls=request.tool_choice is None or request.tool_choice.type != "none",
            max_tokens=request.max_tokens,
            stop=tuple(request.stop_sequences or ()),
            recorded_options=request.recorded_options,
            constraint=_build_constraint(request, tools),
            allow_parallel_calls=request.tool_choice is None or not request.tool_choice.disable_parallel_tool_use,
            prefix=prefix or "",
        )
        return ParsedRequest(chat, 1, bool(request.stream), ignored_fields, model=request.model)

    def build_response(
        self, request: ParsedRequest, replies: Sequence[Reply], metadata: Metadata
    ) -> Mapping[str, object]:
        (reply,) = replies
        return {
            **_build_head(reply.action.id, metadata),
            "content": _build_blocks(reply),
            **_build_stop_fields(request, reply),
            "usage": _build_usage(reply),
        }

    def build_error(self, error: RequestError) -> Mapping[str, object]:
        return {
            "type": "error",
            "error": {"type": ERROR_TYPES.get(error.status, "api_error"), "message": error.message},
        }


def _convert_messages(messages: Sequence[Message]) -> Iterator[ClientMessage]:
    """Yield a request's messages.

    A user's message may contain tool results. They come before the user's text.
    """
    for message in messages:
        if isinstance(message.content, str):
            yield ClientMessage(message.role, message.content)
            continue
        texts, calls = list[str](), list[ClientToolCall]()
        for block in message.content:
            if block.type == "text" and block.text is not None:
                texts.append(block.text)
            elif block.type == "tool_use" and message.role == "assistant" and block.id and block.name:
                calls.append(ClientToolCall(block.id, block.name, json.dumps(block.input or {})))
            elif block.type == "tool_result" and message.role == "user":
                if not block.tool_use_id:
                    raise invalid_error("a tool_result needs its tool_use_id", "messages")
                yield ClientMessage("tool", extract_text(block.content), tool_call_id=block.tool_use_id)
            # earlier reasoning is in the token ids of a turn that the chat continues
            elif block.type not in ("thinking", "redacted_thinking"):
                raise unsupported_error(
                    "messages", f"a block of type {replace_surrogates(block.type)[:64]!r} cannot be read like this"
                )
        if texts or calls or message.role == "assistant":
            yield ClientMessage(message.role, join_parts(texts), tuple(calls))


def _convert_tool(tool: ToolDefinition) -> Tool:
    if tool.type not in (None, "custom"):
        raise unsupported_error("tools", f"agents are offered tools of the client, and none of type {tool.type[:64]!r}")
    return Tool(tool.name, tool.description or "", tool.input_schema)


def _build_constraint(request: Request, tools: Sequence[Tool]) -> Constraint | None:
    choice = request.tool_choice
    if choice is None or choice.type in ("auto", "none"):
        form = request.output_config.format if request.output_config else None
        parallel = choice is None or not choice.disable_parallel_tool_use
        return Constraint("json", schema=form.json_schema, allow_parallel_calls=parallel) if form else None
    if choice.type == "tool" and choice.name is None:
        raise invalid_error("tool_choice: the tool's name is missing", "tool_choice")
    name = "" if choice.type == "any" else choice.name or ""
    return build_call_constraint(tools, name, not choice.disable_parallel_tool_use)


def _build_head(action_id: str, metadata: Metadata) -> dict[str, object]:
    return {
        "id": f"msg_{action_id.replace('/', '-')}",
        "type": "message",
        "role": "assistant",
        "model": metadata["model"],
        "stop_sequence": None,
        "marft": metadata["marft"],
    }


def _build_blocks(reply: Reply) -> list[dict[str, object]]:
    text, blocks = get_reply_text(reply), list[dict[str, object]]()
    if reply.thought:
        blocks.append({"type": "thinking", "thinking": reply.thought, "signature": ""})
    if text or not reply.calls:
        blocks.append({"type": "text", "text": text})
    for number, call in enumerate(reply.calls):
        tool_input = parse_arguments(call.arguments)
        blocks.append({"type": "tool_use", "id": build_call_id(reply, number), "name": call.name, "input": tool_input})
    return blocks


def _build_stop_fields(request: ParsedRequest, reply: Reply) -> dict[str, str | None]:
    """Return the stop reason, and the client's stop sequence if it ended the answer.

    An answer with tool calls has the reason ``tool_use``.
    """
    sequence = reply.stop_string if reply.stop_string in request.chat.stop else None
    default_reason = "stop_sequence" if sequence is not None else "end_turn"
    reason = "max_tokens" if reply.action.finish == "length" else default_reason
    return {"stop_reason": "tool_use" if reply.calls else reason, "stop_sequence": sequence}


def _build_usage(reply: Reply) -> dict[str, int]:
    prompt_tokens, sampled = count_usage([reply])
    return {"input_tokens": prompt_tokens, "output_tokens": sampled}
