"""OpenAI Chat Completions API: ``POST …/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from marft.agents.chat import Chat, Constraint, Reply
from marft.agents.live import Begun
from marft.common.types import Tool
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
    MOST_ACTIONS,
    MOST_ALTERNATIVES,
    MOST_MESSAGES,
    MOST_TOOLS,
    CallSaid,
    Content,
    Count,
    Name,
    Said,
    Schema,
    Stops,
    Table,
    chat_of,
    forced_call,
    read,
    stops_of,
    text_of,
    turn_to_continue,
)
from marft_serve.gateway.refusals import RequestError


class CalledFunction(Table):
    """Function name and arguments in a tool call."""

    name: Name
    arguments: str = "{}"


class MadeCall(Table):
    """Tool call in an assistant message."""

    id: Name
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Table):
    """Message of a request."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    tool_calls: list[MadeCall] | None = None
    tool_call_id: Name | None = None
    refusal: str | None = None


class Function(Table):
    """Definition of a function."""

    name: Name
    description: str | None = None
    parameters: Schema | None = None


class OfferedTool(Table):
    """Definition of a tool."""

    type: Literal["function"]
    function: Function


class Named(Table):
    """Name of a function."""

    name: Name


class Forced(Table):
    """Choice of a named function."""

    type: Literal["function"]
    function: Named


class JsonSchema(Table):
    """JSON schema for the response."""

    name: Name
    json_schema: Schema = Field(default_factory=dict, alias="schema")


class ResponseFormat(Table):
    """Format of the response."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(Table):
    """Options of a streamed response."""

    include_usage: bool | None = None


class Request(Sampled):
    """Body of a request."""

    model: str = ""
    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES)]
    tools: Annotated[list[OfferedTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | Forced | None = None
    parallel_tool_calls: bool | None = None
    n: Annotated[int, Field(ge=1, le=MOST_ACTIONS)] | None = None
    stop: Stops = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_ALTERNATIVES)] | None = None
    response_format: ResponseFormat | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None


class ChatCompletions(Protocol):
    """OpenAI Chat Completions API."""

    def read(self, body: bytes, earlier: Mapping[str, tuple[Said, ...]] = NOTHING) -> Asked:  # noqa: ARG002
        request = read(Request, body)
        if request.top_logprobs and not request.logprobs:
            raise RequestError(400, "invalid_value", "top_logprobs needs logprobs", "top_logprobs")
        left = ignored(request)
        said = [_said(message) for message in request.messages]
        begun = turn_to_continue(said) if _continues(request) else None
        tools = tuple(_tool(tool) for tool in request.tools or ())
        chat = Chat(
            messages=chat_of(said if begun is None else said[:-1]),
            tools=tools,
            calls=request.tool_choice != "none",
            max_tokens=min(filter(None, (request.max_completion_tokens, request.max_tokens)), default=None),
            stop=stops_of(request.stop),
            wishes=request.wishes,
            constraint=_constraint(request, tools),
            pieces=bool(request.logprobs),
            alternatives=request.top_logprobs or 0,
            parallel=request.parallel_tool_calls is not False,
            begun=begun or "",
        )
        usage = bool(request.stream_options and request.stream_options.include_usage)
        return Asked(chat, request.n or 1, bool(request.stream), left, {"usage": usage}, model=request.model)

    def response(self, asked: Asked, replies: Sequence[Reply], told: Mapping[str, Any]) -> Mapping[str, Any]:
        choices = [
            {
                "index": index,
                "message": _message(reply),
                "logprobs": {"content": log_probs_of(reply), "refusal": None} if asked.chat.pieces else None,
                "finish_reason": finish_of(reply),
            }
            for index, reply in enumerate(replies)
        ]
        return _head(replies[0].action.id, told, "chat.completion") | {
            "choices": choices, "usage": _usage(replies), "marft": told["marft"],
        }  # fmt: skip

    def stream(self, asked: Asked, begun: Begun, told: Mapping[str, Any]) -> Stream:
        return Chunks(asked, begun, told)

    def error(self, error: RequestError) -> Mapping[str, Any]:
        return {
            "error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code},
        }


class Chunks(Stream):
    """Encoder for a response streamed in chunks."""

    def __init__(self, asked: Asked, begun: Begun, told: Mapping[str, Any]) -> None:
        super().__init__(asked, begun, told)
        self._head = _head(begun.id, told, "chat.completion.chunk")

    def begin(self) -> Iterator[Event]:
        for index in range(self.asked.count):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def say(self, index: int, thought: str, text: str) -> Iterator[Event]:
        for piece in in_pieces(thought):
            yield self._chunk(index, {"reasoning_content": piece})
        for piece in in_pieces(text):
            yield self._chunk(index, {"content": piece})

    def end(self, replies: Sequence[Reply], told: Mapping[str, Any]) -> Iterator[Event]:
        self.told = told
        for index, reply in enumerate(replies):
            if self.asked.chat.pieces:
                log_probs = {"content": log_probs_of(reply), "refusal": None}
                yield self._chunk(index, {"content": ""}, logprobs=log_probs)
            for number, call in enumerate(_message(reply).get("tool_calls", ())):
                begun = {**call, "index": number, "function": {**call["function"], "arguments": ""}}
                yield self._chunk(index, {"tool_calls": [begun]})
                for piece in in_pieces(call["function"]["arguments"]):
                    yield self._chunk(index, {"tool_calls": [{"index": number, "function": {"arguments": piece}}]})
            yield self._chunk(index, {}, finish_of(reply))
        if self.asked.detail and self.asked.detail["usage"]:
            yield "", {**self._head, "marft": told["marft"], "choices": [], "usage": _usage(replies)}
        yield "", "[DONE]"

    def _chunk(self, index: int, delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> Event:
        choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": None, **more}
        return "", {**self._head, "marft": self.told["marft"], "choices": [choice]}


def finish_of(reply: Reply) -> str:
    """Return a reply's finish reason."""
    return "tool_calls" if reply.calls else reply.action.finish


def _said(message: Message) -> Said:
    role = "system" if message.role == "developer" else message.role
    text = text_of(message.content, ("text", "input_text", "output_text")) or message.refusal or ""
    if role == "tool":
        if message.tool_call_id is None:
            raise RequestError(400, "invalid_value", "a tool's answer needs its tool_call_id", "messages")
        return Said(role, text, answers=message.tool_call_id)
    calls = [CallSaid(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    if calls and role != "assistant":
        raise RequestError(400, "invalid_value", f"a message of {role} calls no tools", "messages")
    return Said(role, text, tuple(calls))


def _continues(request: Request) -> bool:
    """Return True if the request continues its last message instead of opening a new turn.

    Raises:
        RequestError: the request sets contradicting options.
    """
    if request.continue_final_message and request.add_generation_prompt:
        message = "continue_final_message opens no turn: leave out add_generation_prompt, or set it to false"
        raise RequestError(400, "invalid_value", message, "add_generation_prompt")
    return bool(request.continue_final_message) or request.add_generation_prompt is False


def _tool(tool: OfferedTool) -> Tool:
    return Tool(tool.function.name, tool.function.description or "", tool.function.parameters or {})


def _constraint(request: Request, tools: Sequence[Tool]) -> Constraint | None:
    choice, form, parallel = request.tool_choice, request.response_format, request.parallel_tool_calls is not False
    if isinstance(choice, Forced):
        return forced_call(tools, choice.function.name, parallel)
    if choice == "required":
        return forced_call(tools, "", parallel)
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return Constraint("json", parallel=parallel)
    if form.json_schema is None:
        raise RequestError(400, "invalid_value", "response_format: json_schema is missing", "response_format")
    return Constraint("json", schema=form.json_schema.json_schema, parallel=parallel)


def _head(name: str, told: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{name.replace('/', '-')}",
        "object": kind,
        "created": int(time.time()),
        "model": told["model"],
    }


def _message(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant", "content": said_by(reply) or (None if reply.calls else ""), "refusal": None,
    }  # fmt: skip
    if reply.thought:
        message["reasoning_content"] = reply.thought
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": call_id(reply, number),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(reply.calls)
        ]
    return message


def _usage(replies: Sequence[Reply]) -> dict[str, int]:
    read_, sampled = usage_of(replies)
    return {"prompt_tokens": read_, "completion_tokens": sampled, "total_tokens": read_ + sampled}
