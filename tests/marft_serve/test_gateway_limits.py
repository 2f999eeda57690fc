"""What an episode may take is counted before it is taken, a step's address ends with it, and odd requests harm nobody."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="needs the gateway: pip install 'marft[gateway]'")

from marft.common.types import ActionKey, Completion, Prompt, SamplingParams, Task
from marft_serve.gateway.client import Client
from marft_serve.gateway.errors import RequestError
from marft_serve.gateway.program_runner import mask_secrets
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from marft_serve.gateway.protocol.parsing import ClientMessage, ClientToolCall, build_chat_messages
from marft_serve.gateway.session import Budget
from tests.fakes import FakeEngine, ends, goes_on
from tests.gateways import ASK, Response, ask, completions, played, send
from tests.marft_serve.test_gateway import Slow
from tests.marft_serve.test_gateway_requests import head, spoken_to

Clients = Mapping[str, Client]


class TestStepsAndThreads:
    def test_a_thread_left_from_one_step_cannot_act_in_the_next(self) -> None:
        addresses: list[Client] = []
        answers: list[Response] = []

        def solve(task: Task, clients: Clients) -> None:
            addresses.append(clients["a"])
            answers.extend(ask(client) for client in addresses)
            answers.append(send(addresses[0].waiting_url, None))

        episode = played(solve, steps=[goes_on(text="more"), ends()])
        assert [answer.status for answer in answers] == [200, 204, 410, 200, 410]
        assert [action.id for action in episode.actions] == ["0/a/0", "1/a/0"]

    def test_nor_can_a_body_that_ends_in_the_next(self) -> None:
        begun: list[socket.socket] = []
        answers: list[bytes] = []

        def solve(task: Task, clients: Clients) -> None:
            body = json.dumps(ASK).encode()
            if not begun:
                begun.append(spoken_to(clients["a"]))
                begun[0].sendall(head(clients["a"], len(body)) + body[:5])
                ask(clients["a"])  # so that the other's head was read
                return
            with begun[0] as connection:
                connection.sendall(body[5:])
                answers.append(connection.recv(1000))

        episode = played(solve, steps=[goes_on(text="more"), ends()])
        assert (episode.status, answers[0].split()[1]) == ("terminated", b"410")
        assert [action.id for action in episode.actions] == ["0/a/0"]

    def test_no_secret_of_an_earlier_step_stands_in_a_record(self) -> None:
        met: list[str] = []

        def solve(task: Task, clients: Clients) -> None:
            met.append(clients["a"].base_url)
            if len(met) == 2:
                raise ValueError(" ".join(met))

        episode = played(solve, steps=[goes_on(text="more"), ends()])
        assert (episode.status, len(met)) == ("failed", 2)
        assert not any(url.split("/")[4] in repr(episode) for url in met)


class TestBudgets:
    def test_requests_at_once_cannot_spend_the_same_tokens(self) -> None:
        class Full(FakeEngine):
            async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
                await asyncio.sleep(0.01)
                tokens = np.full(sampling.max_new_tokens, 65, np.int32)
                return Completion(tokens, np.zeros(len(tokens), np.float32), "A", "length")

        statuses: list[int] = []

        async def solve(task: Task, clients: Clients) -> None:
            asked = [asyncio.to_thread(ask, clients["a"], str(n), n=8) for n in range(16)]
            statuses.extend(answer.status for answer in await asyncio.gather(*asked))

        episode = played(solve, engine=Full(), max_tokens=10)
        assert sum(len(action.tokens) for action in episode.actions) <= 10
        assert sorted(statuses) == [200, *[429] * 15]

    def test_what_is_left_is_shared_out_and_given_back(self) -> None:
        async def spend() -> list[int]:
            budget = Budget(10)
            first = await budget.reserve(2, 4)
            second = asyncio.ensure_future(budget.reserve(1, 4))
            third = asyncio.ensure_future(budget.reserve(1, 1))  # which fits, and comes after
            await asyncio.sleep(0)
            assert not second.done()
            assert not third.done()
            budget.release(8, 3)
            shares = [first, await second, await third, budget.remaining]
            budget.release(4, 4)
            budget.release(1, 1)
            return [*shares, budget.remaining, await budget.reserve(1, 9)]

        assert asyncio.run(spend()) == [4, 4, 1, 2, 2, 2]

    def test_several_actions_wait_until_there_is_enough_for_all_of_them(self) -> None:
        async def spend() -> list[int]:
            budget = Budget(10)
            await budget.reserve(1, 4)
            both = asyncio.ensure_future(budget.reserve(2, 4))  # of which one alone would fit
            await asyncio.sleep(0)
            assert not both.done()
            budget.release(4, 1)
            return [await both, budget.remaining]

        assert asyncio.run(spend()) == [4, 1]

    def test_of_two_limits_of_an_answer_the_smaller_one_holds(self) -> None:
        body = json.dumps({**ASK, "max_tokens": 9, "max_completion_tokens": 5}).encode()
        assert ChatCompletions().parse_request(body).chat.max_tokens == 5

    def test_each_action_is_a_request_and_what_was_refused_is_none(self) -> None:
        answers: list[Response] = []

        def solve(task: Task, clients: Clients) -> None:
            answers.append(ask(clients["a"], headers={"x-marft-sees": "0/a/9"}))
            answers.extend(ask(clients["a"], n=count) for count in (2, 2, 1, 1))

        assert len(played(solve, max_requests=3).actions) == 3
        assert [answer.status for answer in answers] == [400, 200, 429, 200, 429]


class TestStoredResponses:
    def test_they_are_gone_on_from_by_the_agent_whose_they_are_alone(self) -> None:
        answers: list[Response] = []

        def solve(task: Task, clients: Clients) -> None:
            first = send(f"{clients['a'].base_url}/responses", {"input": "1 + 2?"})
            further = {"input": "and 3?", "previous_response_id": first.table["id"]}
            answers.extend(send(f"{clients[role].base_url}/responses", further) for role in ("b", "a"))

        episode = played(solve, "a", "b")
        assert [answer.status for answer in answers] == [400, 200]
        assert answers[0].table["error"]["code"] == "previous_response_not_found"
        assert [action.agent for action in episode.actions] == ["a", "a"]


def test_a_retry_joins_nothing_that_was_asked_elsewhere_or_of_others() -> None:
    """The words are the same, and the agent, the address or what is declared to be seen is another."""
    engine, answers = Slow(), list[Response]()

    def solve(task: Task, clients: Clients) -> None:
        words, again = {**ASK, "max_tokens": 9}, {"x-stainless-retry-count": "1"}
        with ThreadPoolExecutor(5) as threads:
            sent = [threads.submit(send, completions(clients["a"]), words)]
            assert engine.waiting.acquire(timeout=20)
            sent.append(threads.submit(send, completions(clients["b"]), words, again))
            sent.append(threads.submit(send, f"{clients['a'].base_url}/messages", words, again))
            sent.append(threads.submit(send, completions(clients["a"]), words, {**again, "x-marft-sees": ""}))
            assert all(engine.waiting.acquire(timeout=20) for _ in range(3))
            engine.free.set()
            answers.extend(future.result() for future in sent)

    episode = played(solve, "a", "b", engine=engine)
    assert [answer.status for answer in answers] == [200] * 4
    assert sorted(action.agent for action in episode.actions) == ["a", "a", "a", "b"]


def test_a_prompt_that_several_actions_share_is_read_once() -> None:
    answers: list[Response] = []
    episode = played(lambda _, clients: answers.append(ask(clients["a"], n=3)))
    usage, (first, *others) = answers[0].table["usage"], episode.actions
    assert usage["prompt_tokens"] == len(first.prompt)
    assert usage["completion_tokens"] == sum(len(action.tokens) for action in (first, *others))


def test_an_answer_that_is_cut_calls_nothing() -> None:
    class Cut(FakeEngine):
        async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
            return replace(await super().sample(policy, prompt, sampling, key), finish="length")

    answers: list[Response] = []
    function = {"name": "add", "parameters": {"type": "object"}}

    def solve(task: Task, clients: Clients) -> None:
        answers.append(ask(clients["a"], tools=[{"type": "function", "function": function}]))

    episode = played(solve, engine=Cut(lambda *_: 'CALL{"name": "add", "arguments": {}}'))
    (choice,) = answers[0].table["choices"]
    assert (choice["finish_reason"], choice["message"].get("tool_calls")) == ("length", None)
    assert episode.actions[0].calls == ()


def test_where_no_tool_may_be_called_a_call_is_text() -> None:
    answers: list[Response] = []
    said, function = 'CALL{"name": "add", "arguments": {}}', {"name": "add", "parameters": {"type": "object"}}

    def solve(task: Task, clients: Clients) -> None:
        tools = [{"type": "function", "function": function}]
        answers.extend(ask(clients["a"], tools=tools, tool_choice=choice) for choice in ("none", "auto"))

    played(solve, engine=FakeEngine(lambda *_: said))
    assert answers[0].said == said
    assert [answer.table["choices"][0]["finish_reason"] for answer in answers] == ["stop", "tool_calls"]


@pytest.mark.parametrize("change", [{"description": "Adds."}, {"parameters": {"type": "object", "required": ["a"]}}])
def test_a_tool_that_is_told_otherwise_is_another_one(change: dict[str, object]) -> None:
    answers: list[Response] = []

    def solve(task: Task, clients: Clients) -> None:
        messages: list[dict[str, object]] = [{"role": "user", "content": "?"}]
        nothing: dict[str, object] = {}
        for more in (nothing, nothing, change):
            function = {"name": "add", "description": "", "parameters": {"type": "object"}, **more}
            tools = [{"type": "function", "function": function}]
            answers.append(send(completions(clients["a"]), {"messages": messages, "tools": tools}))
            messages += [answers[-1].table["choices"][0]["message"], {"role": "user", "content": "?"}]

    played(solve)
    assert [answer.table["marft"].get("new_segment", "").partition(":")[0] for answer in answers] == ["", "", "tools"]


class TestWhatClientsGetWrong:
    def test_a_chat_of_very_many_messages_is_refused_at_once(self) -> None:
        codes: list[str] = []

        def solve(task: Task, clients: Clients) -> None:
            for count in (8_000, 100_000):
                answer = send(completions(clients["a"]), {"messages": [{"role": "user", "content": ""}] * count})
                assert answer.status == 400
                codes.append(answer.table["error"]["code"])

        episode = played(solve)
        assert codes == ["context_length_exceeded", "invalid_value"]
        assert not episode.actions

    @pytest.mark.parametrize("host", [b"\x00", b"[", b"a\x00b", b"[::1", b"\xff"])
    def test_a_host_that_is_none_gets_an_answer_and_harms_nobody(self, host: bytes) -> None:
        heads: list[bytes] = []

        def solve(task: Task, clients: Clients) -> str:
            parts = urlsplit(completions(clients["a"]))
            for path in (parts.path, "/nowhere/"):
                with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
                    body = json.dumps(ASK).encode()
                    head = b"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
                    connection.sendall(head % (path.encode(), host, len(body)) + body)
                    heads.append(connection.recv(64).split(b"\r\n")[0])
            return ask(clients["a"]).said

        assert played(solve).status == "terminated"
        assert all(head.split()[1] in (b"200", b"400", b"404") for head in heads), heads

    def test_calls_of_one_id_and_two_answers_to_one_call_are_refused(self) -> None:
        call = ClientToolCall("x", "add", "{}"), ClientToolCall("x", "add", "{}")
        with pytest.raises(RequestError, match="two calls of a turn have the same id"):
            build_chat_messages(
                [
                    ClientMessage("assistant", "", call),
                    ClientMessage("tool", "1", tool_call_id="x"),
                    ClientMessage("tool", "2", tool_call_id="x"),
                ]
            )
        with pytest.raises(RequestError, match="has two answers"):
            build_chat_messages(
                [ClientMessage("assistant", "", call[:1]), *[ClientMessage("tool", "1", tool_call_id="x")] * 2]
            )

    def test_nothing_answers_a_call_of_an_earlier_turn(self) -> None:
        call = (ClientToolCall("x", "add", "{}"),)
        for between in (ClientMessage("user", "?"), ClientMessage("assistant", "")):
            with pytest.raises(RequestError, match="belongs to no call of the assistant's turn before it"):
                build_chat_messages(
                    [ClientMessage("assistant", "", call), between, ClientMessage("tool", "1", tool_call_id="x")]
                )


@pytest.mark.parametrize("secrets", [["0123456789abcdefghij"], ["0123456789abcdefghij", "ABCDEFGHIJKLMNOP"]])
def test_a_secret_is_taken_out_also_where_the_text_was_cut(secrets: list[str]) -> None:
    for secret in secrets:
        for piece in (secret, secret[:9], secret[-9:], secret[3:14]):
            assert mask_secrets(secrets, f"/e/{piece}/a {piece}") == "/e/…/a …"
    assert mask_secrets(secrets, "0123456") == "0123456"
