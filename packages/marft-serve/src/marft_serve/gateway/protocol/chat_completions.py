"""OpenAI Chat Completions API: ``POST …/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from marft.agents.chat import Chat, Constraint, Reply
from marft.agents.streaming import ActionStart
from marft.common.types import Tool
from marft_serve.gateway.errors import invalid_error
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
    MAX_ACTIONS,
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
    Stops,
    build_call_constraint,
    build_chat_messages,
    extract_text,
    get_prefix,
    normalize_stop,
    parse_body,
)


class FunctionCall(RequestModel):
    """Function name and arguments in a tool call."""

    name: Name
    arguments: str = "{}"


class ToolCall(RequestModel):
    """Tool call in an assistant message."""

    id: Name
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(RequestModel):
    """Message of a request."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: Name | None = None
    refusal: str | None = None


class Function(RequestModel):
    """Definition of a function."""

    name: Name
    description: str | None = None
    parameters: Schema | None = None


class ToolDefinition(RequestModel):
    """Definition of a tool."""

    type: Literal["function"]
    function: Function


class FunctionName(RequestModel):
    """Name of a function."""

    name: Name


class NamedToolChoice(RequestModel):
    """Choice of a named function."""

    type: Literal["function"]
    function: FunctionName


class JsonSchema(RequestModel):
    """JSON schema for the response."""

    name: Name
    json_schema: Schema = Field(default_factory=dict, alias="schema")


class ResponseFormat(RequestModel):
    """Format of the response."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(RequestModel):
    """Options of a streamed response."""

    include_usage: bool | None = None


class Request(SamplingParams):
    """Body of a request."""

    model: str = ""
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    tools: Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ACTIONS)] | None = None
    stop: Stops = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    response_format: ResponseFormat | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None


class ChunkStream(Stream):
    """Encoder for a response streamed in chunks."""

    def __init__(self, request: ParsedRequest, first_action: ActionStart, metadata: Metadata) -> None:
        super().__init__(request, first_action, metadata)
        self._head = _build_head(first_action.id, metadata, "chat.completion.chunk")

    def begin(self) -> Iterator[Event]:
        for index in range(self.request.count):
            yield self._build_chunk(index, {"role": "assistant", "content": ""})

    def emit_delta(self, index: int, reasoning: str, text: str) -> Iterator[Event]:
        for piece in split_text(reasoning):
            yield self._build_chunk(index, {"reasoning_content": piece})
        for piece in split_text(text):
            yield self._build_chunk(index, {"content": piece})

    def end(self, replies: Sequence[Reply], metadata: Metadata) -> Iterator[Event]:
        self.metadata = metadata
        for index, reply in enumerate(replies):
            if self.request.chat.return_token_texts:
                log_probs = {"content": build_log_probs(reply), "refusal": None}
                yield self._build_chunk(index, {"content": ""}, logprobs=log_probs)
            for number, call in enumerate(reply.calls):
                yield self._build_chunk(index, {"tool_calls": [{**_build_call(reply, number, ""), "index": number}]})
                for piece in split_text(call.arguments):
                    function = {"arguments": piece}
                    yield self._build_chunk(index, {"tool_calls": [{"index": number, "function": function}]})
            yield self._build_chunk(index, {}, get_finish_reason(reply))
        if self.request.detail and self.request.detail["usage"]:
            yield "", {**self._head, "marft": metadata["marft"], "choices": [], "usage": _build_usage(replies)}
        yield "", "[DONE]"

    def _build_chunk(self, index: int, delta: Mapping[str, object], finish: str | None = None, **more: object) -> Event:
        choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": None, **more}
        return "", {**self._head, "marft": self.metadata["marft"], "choices": [choice]}


class ChatCompletions(Protocol):
    """OpenAI Chat Completions API."""

    stream_type = ChunkStream
    error_event = ""

    def parse_request(
        self,
        body: bytes,
        earlier: Mapping[str, tuple[ClientMessage, ...]] = NO_CONVERSATIONS,  # noqa: ARG002
    ) -> ParsedRequest:
        request = parse_body(Request, body)
        if request.top_logprobs and not request.logprobs:
            raise invalid_error("top_logprobs needs logprobs", "top_logprobs")
        ignored_fields = collect_ignored_fields(request)
        messages = [_convert_message(message) for message in request.messages]
        prefix = get_prefix(messages) if _continues_last_message(request) else None
        tools = tuple(_convert_tool(tool) for tool in request.tools or ())
        chat = Chat(
            messages=build_chat_messages(messages if prefix is None else messages[:-1]),
            tools=tools,
            parse_calls=request.tool_choice != "none",
            max_tokens=min(filter(None, (request.max_completion_tokens, request.max_tokens)), default=None),
            stop=normalize_stop(request.stop),
            recorded_options=request.recorded_options,
            constraint=_build_constraint(request, tools),
            return_token_texts=bool(request.logprobs),
            alternatives=request.top_logprobs or 0,
            allow_parallel_calls=request.parallel_tool_calls is not False,
            prefix=prefix or "",
        )
        usage = bool(request.stream_options and request.stream_options.include_usage)
        return ParsedRequest(
            chat, request.n or 1, bool(request.stream), ignored_fields, {"usage": usage}, model=request.model
        )

    def build_response(
        self, request: ParsedRequest, replies: Sequence[Reply], metadata: Metadata
    ) -> Mapping[str, object]:
        choices = [
            {
                "index": index,
                "message": _build_message(reply),
                "logprobs": {"content": build_log_probs(reply), "refusal": None}
                if request.chat.return_token_texts
                else None,
                "finish_reason": get_finish_reason(reply),
            }
            for index, reply in enumerate(replies)
        ]
        return _build_head(replies[0].action.id, metadata, "chat.completion") | {
            "choices": choices,
            "usage": _build_usage(replies),
            "marft": metadata["marft"],
        }


def get_finish_reason(reply: Reply) -> str:
    """Return a reply's finish reason."""
    return "tool_calls" if reply.calls else reply.action.finish


def _convert_message(message: Message) -> ClientMessage:
    role = "system" if message.role == "developer" else message.role
    text = extract_text(message.content, ("text", "input_text", "output_text")) or message.refusal or ""
    if role == "tool":
        if message.tool_call_id is None:
            raise invalid_error("a tool's answer needs its tool_call_id", "messages")
        return ClientMessage(role, text, tool_call_id=message.tool_call_id)
    calls = [ClientToolCall(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    if calls and role != "assistant":
        raise invalid_error(f"a message of {role} calls no tools", "messages")
    return ClientMessage(role, text, tuple(calls))


def _continues_last_message(request: Request) -> bool:
    """Return True if the request continues its last message instead of opening a new turn.

    Raises:
        RequestError: the request sets contradicting options.
    """
    if request.continue_final_message and request.add_generation_prompt:
        message = "continue_final_message opens no turn: leave out add_generation_prompt, or set it to false"
        raise invalid_error(message, "add_generation_prompt")
    return bool(request.continue_final_message) or request.add_generation_prompt is False


def _convert_tool(tool: ToolDefinition) -> Tool:
    return Tool(tool.function.name, tool.function.description or "", tool.function.parameters or {})


def _build_constraint(request: Request, tools: Sequence[Tool]) -> Constraint | None:
    choice, form, parallel = request.tool_choice, request.response_format, request.parallel_tool_calls is not False
    if isinstance(choice, NamedToolChoice):
        return build_call_constraint(tools, choice.function.name, parallel)
    if choice == "required":
        return build_call_constraint(tools, "", parallel)
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return Constraint("json", allow_parallel_calls=parallel)
    if form.json_schema is None:
        raise invalid_error("response_format: json_schema is missing", "response_format")
    return Constraint("json", schema=form.json_schema.json_schema, allow_parallel_calls=parallel)


def _build_head(action_id: str, metadata: Metadata, kind: str) -> dict[str, object]:
    return {
        "id": f"chatcmpl-{metadata.get('request') or action_id.replace('/', '-')}",
        "object": kind,
        "created": int(time.time()),
        "model": metadata["model"],
    }


def _build_message(reply: Reply) -> dict[str, object]:
    message: dict[str, object] = {
        "role": "assistant",
        "content": get_reply_text(reply) or (None if reply.calls else ""),
        "refusal": None,
    }
    if reply.thought:
        message["reasoning_content"] = reply.thought
    if reply.calls:
        message["tool_calls"] = [_build_call(reply, number, call.arguments) for number, call in enumerate(reply.calls)]
    return message


def _build_call(reply: Reply, number: int, arguments: str) -> dict[str, object]:
    function = {"name": reply.calls[number].name, "arguments": arguments}
    return {"id": build_call_id(reply, number), "type": "function", "function": function}


def _build_usage(replies: Sequence[Reply]) -> dict[str, int]:
    prompt_tokens, sampled = count_usage(replies)
    return {"prompt_tokens": prompt_tokens, "completion_tokens": sampled, "total_tokens": prompt_tokens + sampled}
