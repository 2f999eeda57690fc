"""Every field of every protocol: honoured, ignored because it changes no answer, or refused by its name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs the gateway: pip install 'marft[gateway]'")

from marft.common.types import Task
from marft_serve.gateway.client import Client
from marft_serve.gateway.errors import RequestError
from marft_serve.gateway.protocol import fields
from marft_serve.gateway.protocol.anthropic import Messages
from marft_serve.gateway.protocol.base import ParsedRequest, Protocol
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from marft_serve.gateway.protocol.responses import Responses
from tests.gateways import Response, ask, played, send
from tests.sources import ROOT

USER = {"role": "user", "content": "x"}
PLAIN: dict[Protocol, dict[str, Any]] = {
    ChatCompletions(): {"messages": [USER]},
    Responses(): {"input": "x"},
    Messages(): {"messages": [USER], "max_tokens": 9},
}
CHAT = next(iter(PLAIN))
ALL = pytest.mark.parametrize("protocol", list(PLAIN), ids=lambda one: type(one).__name__)
CHANGES: dict[str, Any] = {
    "guided_json": {"type": "object"}, "guided_regex": "a", "guided_choice": ["a"], "guided_grammar": "root ::= 'a'",
    "structured_outputs": {"json": {}}, "stop_token_ids": [5], "best_of": 3, "min_p": 0.1, "repetition_penalty": 1.1,
    "frequency_penalty": 1, "presence_penalty": -1, "logit_bias": {"5": -100}, "min_tokens": 4, "ignore_eos": True,
    "use_beam_search": True, "length_penalty": 0.5, "bad_words": ["x"], "allowed_token_ids": [5],
    "skip_special_tokens": False, "include_stop_str_in_output": True, "echo": True, "documents": [{"a": "b"}],
    "chat_template": "{{ x }}", "chat_template_kwargs": {"a": 1}, "reasoning_effort": "high", "verbosity": "low",
    "reasoning": {"effort": "high"}, "thinking": {"type": "enabled", "budget_tokens": 1024}, "functions": [{}],
    "modalities": ["audio"], "prediction": {"type": "content", "content": "x"}, "web_search_options": {},
    "conversation": "c", "background": True, "prompt": {"id": "p"}, "mcp_servers": [{}], "truncate_prompt_tokens": 5,
    "typical_p": 0.5, "a_field_of_tomorrow": 1, "Temperature": 0.5, "max_output_token": 3,
}  # fmt: skip


def read(protocol: Protocol, **more: Any) -> ParsedRequest:
    return protocol.parse_request(json.dumps(PLAIN[protocol] | more).encode())


def refusal(protocol: Protocol, **more: Any) -> RequestError:
    with pytest.raises(RequestError) as refused:
        read(protocol, **more)
    return refused.value


@ALL
@pytest.mark.parametrize("name", CHANGES)
def test_a_field_that_could_change_the_answer_is_refused_by_its_name(protocol: Protocol, name: str) -> None:
    error = refusal(protocol, **{name: CHANGES[name]})
    assert (error.status, error.param) == (400, name)
    assert name in error.message
    assert read(protocol, **{name: None}).ignored == ()


@pytest.mark.parametrize(
    ("protocol", "name", "value"),
    [
        (Responses(), "stop", "x"), (Responses(), "n", 2), (Responses(), "logprobs", True), (Responses(), "max_tokens", 3),
        (Messages(), "stop", "x"), (Messages(), "n", 2), (Messages(), "logprobs", True), (Messages(), "max_output_tokens", 3),
        (Messages(), "response_format", {"type": "json_object"}), (ChatCompletions(), "stop_sequences", ["x"]),
        (ChatCompletions(), "max_output_tokens", 3), (ChatCompletions(), "instructions", "x"),
    ],
)  # fmt: skip
def test_so_is_a_field_of_another_protocol(protocol: Protocol, name: str, value: Any) -> None:
    (plain,) = [table for one, table in PLAIN.items() if type(one) is type(protocol)]
    with pytest.raises(RequestError) as refused:
        protocol.parse_request(json.dumps(plain | {name: value}).encode())
    assert refused.value.param == name


@ALL
@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"tools": [{"type": "function", "name": "f", "function": {"name": "f"}, "input_schema": {}, "x": 1}]}, "tools.x"),
        ({"text": {"verbosity": "low"}}, "text"), ({"output_config": {"effort": "low"}}, "output_config"),
        ({"tool_choice": {"type": "function", "name": "f", "function": {"name": "f"}, "x": 1}}, "tool_choice"),
    ],
)  # fmt: skip
def test_so_is_an_unknown_option_of_an_inner_table(protocol: Protocol, options: dict[str, Any], name: str) -> None:
    if isinstance(protocol, Messages):
        options = json.loads(json.dumps(options).replace('"function"', '"custom"'))
    error = refusal(protocol, **options)
    assert error.status == 400
    assert (error.param or "").startswith(name.partition(".")[0])


@ALL
def test_sampling_is_wished_for_in_the_same_words_everywhere(protocol: Protocol) -> None:
    wishes = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 7}
    assert read(protocol, **wishes).chat.recorded_options == wishes


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("function_call", {"name": "f", "arguments": "{}"}, "tool_calls"), ("audio", {"id": "x"}, "text alone"),
        ("prefix", True, "continue_final_message"), ("partial", True, "continue_final_message"),
    ],
)  # fmt: skip
def test_so_is_what_a_message_says_beside_its_text_that_nobody_would_read(name: str, value: Any, remedy: str) -> None:
    def said(told: object) -> list[dict[str, Any]]:
        return [USER, {"role": "assistant", "content": "3", name: told}, USER]

    error = refusal(CHAT, messages=said(value))
    assert (error.status, error.param) == (400, f"messages.{name}")
    assert remedy in error.message
    assert read(CHAT, messages=said(None)).ignored == ()


def test_what_an_assistant_refused_in_is_what_it_said() -> None:
    said = [USER, {"role": "assistant", "content": None, "refusal": "I will not."}, USER]
    assert read(CHAT, messages=said).chat.messages[1] == {"role": "assistant", "content": "I will not."}


HOSTILE: list[Any] = [
    10**30, -(10**30), 2**63, 2**31, 10**4000, -1, -5, 1e308, -1e308, True, "1", [], {}, [1], 5e-324, 0.5, -0.5,
]  # fmt: skip
NUMBERS = (
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n",
    "top_logprobs",
)


@ALL
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_beyond_its_bounds_is_refused_and_what_is_left_can_be_computed_with(
    protocol: Protocol, name: str
) -> None:
    refusals = list[tuple[int, str]]()
    for value in HOSTILE:
        try:
            asked = read(protocol, **{name: value})
        except RequestError as error:
            refusals.append((error.status, error.param or name))
            continue
        wishes = asked.chat.recorded_options
        assert 0 <= wishes.get("temperature", 1) <= 1e6
        assert 0 < wishes.get("top_p", 1) <= 1
        assert -1 <= wishes.get("top_k", 0) < 2**31
        assert -(2**63) <= wishes.get("seed", 0) < 2**63
        assert 0 < (asked.chat.max_tokens or 1) < 2**31
        assert 0 < asked.count <= 64
        assert 0 <= asked.chat.alternatives <= 20
        assert not isinstance(wishes.get(name), bool)
    assert set(refusals) == {(400, name)}


@ALL
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("name", NUMBERS)
def test_so_is_what_is_no_number(protocol: Protocol, name: str, number: str) -> None:
    body = json.dumps(PLAIN[protocol] | {name: "?"}).replace('"?"', number).encode()
    with pytest.raises(RequestError) as refused:
        protocol.parse_request(body)
    assert refused.value.status == 400


@ALL
def test_too_many_messages_parts_or_tools_are_refused(protocol: Protocol) -> None:
    many = [USER] * 60_000
    parts = [{"role": "user", "content": [{"type": "text", "text": "x"}] * 60_000}]
    tools = [{"type": "function", "name": "f", "function": {"name": "f"}, "input_schema": {}}] * 1000
    key = "input" if isinstance(protocol, Responses) else "messages"
    for options in ({key: many}, {key: parts}, {"tools": tools}):
        assert refusal(protocol, **options).status == 400


def answers(*requests: tuple[str, Any, str]) -> list[Response]:
    """What an agent's address answers to requests: a path below it, a body, a method."""
    found: list[Response] = []

    def solve(_: Task, clients: Mapping[str, Client]) -> None:
        at = clients["a"].base_url
        found.extend(send(f"{at}/{path}", body, method=method) for path, body, method in requests)
        assert ask(clients["a"]).status == 200

    assert len(played(solve).actions) == 1
    return found


@pytest.mark.parametrize(
    "path", ["embeddings", "completions", "audio/speech", "../chat/completions", "messages/batches"]
)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_an_agents_address_says_what_is_not_served_there(path: str, method: str) -> None:
    (answer,) = answers((path, {"input": "x"} if method == "POST" else None, method))
    error = answer.table["error"]
    assert answer.status == 404
    assert "served are v1/chat/completions, v1/responses, v1/messages" in error["message"]
    assert (answer.table.get("type") == "error") is path.startswith("messages"), "in the words of its protocol"


def test_so_does_its_bare_address_and_one_with_a_slash_too_many() -> None:
    told: list[Response] = []

    def solve(_: Task, clients: Mapping[str, Client]) -> None:
        agent = clients["a"].base_url.removesuffix("/v1")
        told.extend(send(f"{agent}{path}", {}) for path in ("", "/", "/v1", "/v1/embeddings/"))
        told.append(send(f"{agent.rpartition('/')[0]}/nobody/v1/embeddings", {}))
        told.append(send(f"{agent.rpartition('/')[0]}/waiting", None, method="GET"))
        assert ask(clients["a"]).status == 200

    played(solve)
    *ours, other, waiting = told
    assert [answer.status for answer in told] == [404, 404, 404, 404, 404, 405]
    assert all("served are v1/chat/completions" in answer.table["error"]["message"] for answer in ours)
    assert "embed none" in ours[-1].table["error"]["message"]
    assert "no agent is reached by this address" in other.table["error"]["message"]
    assert "Not Allowed" in waiting.table["error"]["message"]


def test_tokens_of_a_chat_are_counted_as_they_would_be_read() -> None:
    body = {"model": "a", "messages": [USER], "system": "Be brief."}
    counted, read, wrong = answers(
        ("messages/count_tokens", body, "POST"), ("messages/count_tokens", {**body, "tools": []}, "POST"),
        ("messages/count_tokens", {"messages": []}, "POST"),
    )  # fmt: skip
    assert counted.table == read.table
    assert counted.table["input_tokens"] > 0
    assert (wrong.status, wrong.table["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("path", ["messages/count_tokens", "models"])
def test_a_fault_of_ours_is_said_in_words_and_logged(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("inside")

    monkeypatch.setattr("marft_serve.gateway.session.Session.count_tokens", fails)
    monkeypatch.setattr("marft_serve.gateway.session.Session.get_policy", fails)
    counts = path != "models"
    (answer,) = answers((path, {"model": "a", "messages": [USER]} if counts else None, "POST" if counts else "GET"))
    assert (answer.status, answer.table.get("type", "")) == (500, "error" if counts else "")
    assert answer.table["error"]["message"] == "the server could not answer this request; its log says why"
    assert "inside" in caplog.text


def test_what_a_client_begins_an_answer_with_is_counted_too() -> None:
    said = [USER, {"role": "assistant", "content": "It is"}]
    plain, begun = answers(
        ("messages/count_tokens", {"messages": [USER]}, "POST"), ("messages/count_tokens", {"messages": said}, "POST")
    )
    assert begun.table["input_tokens"] == plain.table["input_tokens"] + len("It is")  # one token a letter


def test_the_page_names_every_field_that_is_ignored() -> None:
    page = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`([\w.]+)`", page))
    assert told >= fields.SERVER_FIELDS | fields.REPORTED_FIELDS
    assert set(fields.NO_EFFECT_VALUES) <= told
