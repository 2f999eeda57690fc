"""What form an answer must have, as each API asks for it; and what a form asks of the sampler."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs the gateway: pip install 'marft[gateway]'")

from marft.agents.chat import Chat, Constraint
from marft.common.token_data import Grammar
from marft.common.types import SamplingParams
from marft_serve.gateway.errors import RequestError
from marft_serve.gateway.protocol.anthropic import Messages
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from marft_serve.gateway.protocol.responses import Responses

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
USER = {"role": "user", "content": "1 + 2?"}
NAMES = ("add", "seek")


def of_chat(**fields: Any) -> Chat:
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]
    return ChatCompletions().parse_request(json.dumps({"messages": [USER], "tools": tools, **fields}).encode()).chat


def of_responses(**fields: Any) -> Chat:
    tools = [{"type": "function", "name": name, "parameters": SCHEMA} for name in NAMES]
    return Responses().parse_request(json.dumps({"input": "1 + 2?", "tools": tools, **fields}).encode()).chat


def of_anthropic(**fields: Any) -> Chat:
    tools = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
    asked = {"max_tokens": 9, "messages": [USER], "tools": tools, **fields}
    return Messages().parse_request(json.dumps(asked).encode()).chat


CHAT_NAMED = {"type": "function", "function": {"name": "seek"}}
RESPONSES_NAMED = {"type": "function", "name": "seek"}
CHAT_FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
RESPONSES_FORM = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
ONE = {"parallel_tool_calls": False}


@pytest.mark.parametrize(
    ("chat", "expected"),
    [
        (of_chat(tool_choice="required"), Constraint("call")),
        (of_chat(tool_choice=CHAT_NAMED), Constraint("call", "seek")),
        (of_chat(tool_choice="required", **ONE), Constraint("call", allow_parallel_calls=False)),
        (of_chat(tool_choice=CHAT_NAMED, **ONE), Constraint("call", "seek", allow_parallel_calls=False)),
        (of_chat(response_format=CHAT_FORM), Constraint("json", schema=SCHEMA)),
        (of_chat(response_format=CHAT_FORM, **ONE), Constraint("json", schema=SCHEMA, allow_parallel_calls=False)),
        (of_chat(response_format={"type": "json_object"}), Constraint("json")),
        (of_chat(response_format={"type": "text"}, tool_choice="auto"), None),
        (of_responses(tool_choice="required"), Constraint("call")),
        (of_responses(tool_choice=RESPONSES_NAMED), Constraint("call", "seek")),
        (of_responses(tool_choice="required", **ONE), Constraint("call", allow_parallel_calls=False)),
        (of_responses(tool_choice=RESPONSES_NAMED, **ONE), Constraint("call", "seek", allow_parallel_calls=False)),
        (of_responses(text=RESPONSES_FORM), Constraint("json", schema=SCHEMA)),
        (of_responses(text=RESPONSES_FORM, **ONE), Constraint("json", schema=SCHEMA, allow_parallel_calls=False)),
        (of_responses(text={"format": {"type": "json_object"}}), Constraint("json")),
        (of_responses(text={"format": {"type": "text"}}, tool_choice="auto"), None),
        (of_anthropic(tool_choice={"type": "any"}), Constraint("call")),
        (of_anthropic(tool_choice={"type": "tool", "name": "seek"}), Constraint("call", "seek")),
        (
            of_anthropic(tool_choice={"type": "any", "disable_parallel_tool_use": True}),
            Constraint("call", allow_parallel_calls=False),
        ),
        (of_anthropic(tool_choice={"type": "auto"}), None),
        (of_anthropic(), None),
    ],
)
def test_the_form_is_what_was_asked_for(chat: Chat, expected: Constraint | None) -> None:
    assert chat.constraint == expected


@pytest.mark.parametrize(
    ("read", "fields", "says"),
    [
        (of_chat, {"tool_choice": {"type": "function", "function": {"name": "sub"}}}, "names no tool that is offered"),
        (of_chat, {"tool_choice": "required", "tools": []}, "names no tool that is offered"),
        (of_chat, {"response_format": {"type": "json_schema"}}, "json_schema is missing"),
        (of_responses, {"tool_choice": {"type": "function", "name": "sub"}}, "names no tool that is offered"),
        (of_responses, {"text": {"format": {"type": "json_schema", "name": "x"}}}, "schema is missing"),
        (of_anthropic, {"tool_choice": {"type": "tool", "name": "sub"}}, "names no tool that is offered"),
        (of_anthropic, {"tool_choice": {"type": "any"}, "tools": []}, "names no tool that is offered"),
        (of_anthropic, {"tool_choice": {"type": "tool"}}, "name is missing"),
    ],
)
def test_a_form_that_means_nothing_is_refused(read: Any, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        read(**fields)


def test_a_clients_form_holds_before_the_recipes_which_holds_where_it_asks_for_none() -> None:
    own, asked = Grammar("regex", "yes|no"), Grammar("json", "{}")
    recipe = SamplingParams(max_new_tokens=9, grammar=own)
    chat = Chat((USER,))
    assert chat.resolve_sampling(recipe, 100).grammar == own
    assert chat.resolve_sampling(recipe, 100, asked).grammar == asked
    assert chat.resolve_sampling(SamplingParams(max_new_tokens=9), 100).grammar is None
