"""Clients of OpenAI's and Anthropic's APIs are understood and understand: questions, tools, streams, refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs the gateway: pip install 'marft[gateway]'")
pytest.importorskip("openai", reason="needs openai: pip install 'marft[remote]'")

from openai import APIStatusError, AsyncOpenAI, BadRequestError, OpenAI, RateLimitError

from marft.agents.chat import Constraint
from marft.common.types import Episode, Task
from marft_serve.gateway.client import Client
from marft_serve.gateway.errors import RequestError
from marft_serve.gateway.protocol.anthropic import Messages
from marft_serve.gateway.protocol.base import Protocol
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from marft_serve.gateway.protocol.responses import Responses
from tests.fakes import FakeEngine
from tests.gateways import Response, played, send

Clients = Mapping[str, Client]
ADD: Any = {
    "name": "add",
    "description": "Add.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
CALLS = 'Let me add. CALL{"name": "add", "arguments": {"a": 1}} CALL{"name": "add", "arguments": {"a": 2}}'
USER: Any = {"role": "user", "content": "1 + 2?"}


def turns(*texts: str) -> FakeEngine:
    return FakeEngine(lambda key, _: texts[key.call])


def with_client(talk: Callable[[OpenAI, Client], object], *texts: str, **program: Any) -> Episode:
    """An episode whose program talks through OpenAI's own client."""

    def solve(task: Task, clients: Clients) -> None:
        with OpenAI(**clients["a"].keywords, max_retries=0) as client:  # type: ignore[arg-type]
            talk(client, clients["a"])

    return played(solve, engine=turns(*texts), **program)


class TestChatCompletions:
    def test_tools_are_called_and_answered_and_the_turn_goes_on_by_its_ids(self) -> None:
        def talk(client: OpenAI, _: Client) -> None:
            tools: Any = [{"type": "function", "function": ADD}]
            first = client.chat.completions.create(model="m", messages=[USER], tools=tools).choices[0]
            assert first.finish_reason == "tool_calls"
            calls: Any = first.message.tool_calls
            assert [call.function.arguments for call in calls] == ['{"a": 1}', '{"a": 2}']
            assert len({call.id for call in calls}) == 2
            history: Any = [USER, first.message.to_dict()]
            history += [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in calls]
            assert (
                client.chat.completions.create(model="m", messages=history, tools=tools).choices[0].message.content
                == "3."
            )

        episode = with_client(talk, CALLS, "3.")
        assert (episode.status, episode.error) == ("terminated", "")
        assert [len(action.calls) for action in episode.actions] == [2, 0]
        assert episode.actions[1].continues == ("0/a/0",)

    def test_a_stream_of_calls_comes_together(self) -> None:
        def talk(client: OpenAI, _: Client) -> None:
            tools: Any = [{"type": "function", "function": ADD}]
            arguments, finish = dict[int, str](), ""
            for chunk in client.chat.completions.create(model="m", messages=[USER], tools=tools, stream=True):
                for call in chunk.choices[0].delta.tool_calls or ():
                    arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")  # type: ignore[union-attr]
                finish = chunk.choices[0].finish_reason or finish
            assert (arguments, finish) == ({0: '{"a": 1}', 1: '{"a": 2}'}, "tool_calls")

        assert with_client(talk, CALLS).status == "terminated"

    def test_refusals_are_the_errors_that_the_client_knows(self) -> None:
        def talk(client: OpenAI, _: Client) -> None:
            with pytest.raises(BadRequestError, match="maximum context length") as long:
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 7_000_000}])
            assert long.value.code == "context_length_exceeded"
            with pytest.raises(BadRequestError) as forced:
                client.chat.completions.create(model="m", messages=[USER], response_format={"type": "json_object"})
            assert forced.value.code == "unsupported_parameter"
            client.chat.completions.create(model="m", messages=[USER])
            with pytest.raises(RateLimitError) as spent:
                client.chat.completions.create(model="m", messages=[USER])
            assert spent.value.code == "insufficient_quota"

        episode = with_client(talk, "It is 3.", max_requests=1, max_body_bytes=10_000_000)
        assert (episode.status, episode.error) == ("terminated", "")

    def test_an_asynchronous_client_asks_many_at_once(self) -> None:
        async def solve(task: Task, clients: Clients) -> None:
            async with AsyncOpenAI(**clients["a"].keywords) as client:
                asked = [client.chat.completions.create(model="m", messages=[USER]) for _ in range(20)]
                said = [one.choices[0].message.content for one in await asyncio.gather(*asked)]
            assert sorted(said) == sorted(f"a{n}" for n in range(20))  # type: ignore[type-var]

        episode = played(solve, engine=FakeEngine(lambda key, _: f"a{key.call}"))
        assert (episode.status, len(episode.actions)) == ("terminated", 20)


class TestOneCallATurn:
    def test_where_no_parallel_calls_are_wanted_the_first_alone_is_told(self) -> None:
        tools: Any = {"model": "m", "tools": [{"type": "function", "function": ADD}], "parallel_tool_calls": False}

        def talk(client: OpenAI, address: Client) -> None:
            made = client.chat.completions.create(messages=[USER], **tools).choices[0]
            assert [call.function.arguments for call in made.message.tool_calls or ()] == ['{"a": 1}']  # type: ignore[union-attr]
            assert made.finish_reason == "tool_calls"
            items = client.responses.create(
                model="m", input="1 + 2?", tools=TestResponses.TOOLS, parallel_tool_calls=False
            ).output
            assert [item.type for item in items] == ["message", "function_call"]
            choice = {"type": "auto", "disable_parallel_tool_use": True}
            body = {**TestAnthropic.ASK, "tool_choice": choice}
            blocks = send(f"{address.base_url}/messages", body).table["content"]
            assert [block["type"] for block in blocks] == ["text", "tool_use"]

        episode = with_client(talk, CALLS, CALLS, CALLS)
        assert (episode.status, episode.error) == ("terminated", "")
        assert [len(action.calls) for action in episode.actions] == [1, 1, 1]
        assert {action.text for action in episode.actions} == {CALLS}


class TestResponses:
    TOOLS: Any = [{"type": "function", **ADD, "strict": False}]

    def test_what_is_said_and_called_comes_back_as_items_and_goes_on_by_its_ids(self) -> None:
        def talk(client: OpenAI, _: Client) -> None:
            first = client.responses.create(model="m", instructions="Be brief.", input="1 + 2?", tools=self.TOOLS)
            assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
            assert (first.output_text[:11], first.status) == ("Let me add.", "completed")
            history: Any = [USER, *(item.to_dict() for item in first.output)]
            history += [
                {"type": "function_call_output", "call_id": item.call_id, "output": "3"}
                for item in first.output
                if item.type == "function_call"
            ]
            second = client.responses.create(model="m", instructions="Be brief.", input=history, tools=self.TOOLS)
            assert second.output_text == "3."
            assert second.usage
            assert second.usage.output_tokens == 2

        episode = with_client(talk, CALLS, "3.")
        assert (episode.status, episode.error) == ("terminated", "")
        assert episode.actions[1].continues == ("0/a/0",)
        assert episode.actions[1].restarted == ""

    def test_a_stream_comes_together(self) -> None:
        def talk(client: OpenAI, _: Client) -> None:
            with client.responses.stream(model="m", input="1 + 2?", tools=self.TOOLS) as stream:
                kinds = [event.type for event in stream]
                whole = stream.get_final_response()
            assert kinds[0] == "response.created"
            assert kinds[-1] == "response.completed"
            assert "response.output_text.delta" in kinds
            assert [item.type for item in whole.output] == ["message", "function_call", "function_call"]

        episode = with_client(talk, CALLS)
        assert (episode.status, episode.error) == ("terminated", "")

    def test_a_request_goes_on_from_a_response_that_it_names(self) -> None:
        def talk(client: OpenAI, _: Client) -> None:
            first = client.responses.create(model="m", instructions="Be brief.", input="1 + 2?", tools=self.TOOLS)
            new: Any = [
                {"type": "function_call_output", "call_id": item.call_id, "output": "3"}
                for item in first.output
                if item.type == "function_call"
            ]
            more: Any = {"model": "m", "instructions": "Be brief.", "tools": self.TOOLS}
            second = client.responses.create(input=new, previous_response_id=first.id, **more)
            assert second.previous_response_id == first.id
            third = client.responses.create(input="Sure?", previous_response_id=second.id, store=False, **more)
            with pytest.raises(BadRequestError) as unknown:
                client.responses.create(input="Really?", previous_response_id=third.id, **more)
            assert unknown.value.code == "previous_response_not_found"

        episode = with_client(talk, CALLS, "3.", "Yes.")
        assert (episode.status, episode.error) == ("terminated", "")
        assert [action.continues for action in episode.actions] == [(), ("0/a/0",), ("0/a/0", "0/a/1")]
        assert not any(action.restarted for action in episode.actions)

    def test_another_agents_response_is_not_gone_on_from(self) -> None:
        def solve(task: Task, clients: Clients) -> None:
            with OpenAI(**clients["a"].keywords) as one, OpenAI(**clients["b"].keywords) as other:
                first = one.responses.create(model="m", input="1 + 2?")
                with pytest.raises(BadRequestError):
                    other.responses.create(model="m", input="Sure?", previous_response_id=first.id)

        assert played(solve, "a", "b").status == "terminated"

    @pytest.mark.parametrize("fields", [{"conversation": "conv_1"}, {"tools": [{"type": "web_search"}]}])
    def test_what_would_need_more_is_refused(self, fields: Any) -> None:
        def talk(client: OpenAI, _: Client) -> None:
            with pytest.raises(APIStatusError) as refused:
                client.responses.create(model="m", input="1 + 2?", **fields)
            assert refused.value.code == "unsupported_parameter"

        assert with_client(talk).status == "terminated"


class TestAnthropic:
    TOOLS: Any = [{"name": "add", "description": "Add.", "input_schema": ADD["parameters"]}]
    ASK: Any = {"model": "m", "max_tokens": 50, "system": "Be brief.", "messages": [USER], "tools": TOOLS}

    def talked(
        self, *texts: str, change: Callable[[list[Response]], Any], **fields: Any
    ) -> tuple[list[Response], Episode]:
        answers: list[Response] = []

        def solve(task: Task, clients: Clients) -> None:
            url = clients["a"].anthropic["base_url"] + "/v1/messages"
            answers.append(send(url, {**self.ASK, **fields}))
            more = change(answers)
            if more:
                answers.append(send(url, {**self.ASK, "messages": more}))

        return answers, played(solve, engine=turns(*texts))

    def test_what_is_said_and_called_comes_as_blocks_and_goes_on_by_its_ids(self) -> None:
        def go_on(answers: list[Response]) -> Any:
            blocks = answers[0].table["content"]
            results = [
                {"type": "tool_result", "tool_use_id": block["id"], "content": "3"}
                for block in blocks
                if block["type"] == "tool_use"
            ]
            return [USER, {"role": "assistant", "content": blocks}, {"role": "user", "content": results}]

        answers, episode = self.talked(CALLS, "3.", change=go_on)
        first, second = (answer.table for answer in answers)
        assert [block["type"] for block in first["content"]] == ["text", "tool_use", "tool_use"]
        assert [block.get("input") for block in first["content"]] == [None, {"a": 1}, {"a": 2}]
        assert (first["type"], first["role"], first["stop_reason"]) == ("message", "assistant", "tool_use")
        assert (second["content"], second["stop_reason"]) == ([{"type": "text", "text": "3."}], "end_turn")
        assert second["usage"]["output_tokens"] == 2
        assert episode.actions[1].continues == ("0/a/0",)
        assert episode.actions[1].restarted == ""

    def test_a_stream_says_the_same(self) -> None:
        (answer,), _ = self.talked(CALLS, change=lambda _: None, stream=True)
        events = [block.split("\n") for block in answer.body.decode().strip().split("\n\n")]
        said = [json.loads(data.removeprefix("data: ")) for _, data in events]
        assert [event["type"] for event in said] == [name.removeprefix("event: ") for name, _ in events]
        text = "".join(event["delta"].get("text", "") for event in said if event["type"] == "content_block_delta")
        inputs = [event["delta"]["partial_json"] for event in said if "partial_json" in event.get("delta", {})]
        assert (text[:11], inputs) == ("Let me add.", ['{"a": 1}', '{"a": 2}'])
        assert said[-2]["delta"]["stop_reason"] == "tool_use"

    def test_a_refusal_is_theirs(self) -> None:
        (answer,), _ = self.talked(change=lambda _: None, tool_choice={"type": "any"})
        assert answer.status == 400
        assert answer.table["type"] == "error"
        assert answer.table["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("protocol", [ChatCompletions(), Responses(), Messages()])
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 10_000, b'{"messages": [], "input": []}', b'{"x": "\\ud800"}']
)
def test_what_is_no_request_is_refused_by_all(protocol: Protocol, body: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        protocol.parse_request(body)
    assert refused.value.status == 400
    json.dumps(protocol.build_error(refused.value)).encode()


def test_inner_fields_that_nobody_reads_are_named_and_echoes_are_not() -> None:
    tool = {"type": "function", "function": {"name": "add", "strict": True}}
    said = {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "name": "planner"}
    table = {
        "messages": [said, USER],
        "tools": [tool, tool],
        "min_p": None,
        "user": "me",
        "response_format": {"type": "text"},
    }
    assert ChatCompletions().parse_request(json.dumps(table).encode()).ignored == (
        "messages.name", "tools.function.strict",
    )  # fmt: skip
    items = [{"type": "message", "role": "user", "content": "x", "id": "m", "status": "completed"}]
    asked = Responses().parse_request(json.dumps({"input": items, "truncation": "auto", "background": False}).encode())
    assert asked.ignored == ("truncation",)
    result = {"type": "tool_result", "tool_use_id": "t", "content": "no", "is_error": True, "cache_control": {}}
    call = {"type": "tool_use", "id": "t", "name": "add", "input": {}}
    turns = [USER, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    asked = Messages().parse_request(json.dumps({"messages": turns, "max_tokens": 9}).encode())
    assert asked.ignored == ("messages.content.is_error",)


@pytest.mark.parametrize("choice", [None, {"type": "auto", "disable_parallel_tool_use": True}])
def test_anthropics_output_format_is_held_to(choice: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    table = {
        "messages": [USER],
        "max_tokens": 9,
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
    }
    asked = Messages().parse_request(json.dumps(table | ({"tool_choice": choice} if choice else {})).encode())
    assert asked.chat.constraint == Constraint("json", schema=schema, allow_parallel_calls=choice is None)
    assert asked.ignored == ()
