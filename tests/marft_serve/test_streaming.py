"""Streams are told while an action is sampled, and say what the whole would; who stops reading loses nothing else."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="needs the gateway: pip install 'marft[gateway]'")
pytest.importorskip("openai", reason="needs openai: pip install 'marft[remote]'")

from openai import APIError, OpenAI
from starlette.types import Message

from marft.agents.organizations import (
    Chain,
    Debate,
    Graph,
    Hierarchical,
    MixtureOfAgents,
    Orchestrated,
    Parallel,
    Reflective,
)
from marft.common.errors import EpisodeFailedError
from marft.common.types import ActionKey, Completion, Episode, Prompt, SamplingParams, Task
from marft.rollout.local_runner import LocalRolloutRunner
from marft_serve.gateway.client import Client
from marft_serve.gateway.http import EventStream
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from tests.fakes import FakeEngine
from tests.gateways import Response, ask, completions, game_of, play_game, played
from tests.helpers import settings, until

Clients = Mapping[str, Client]
TEXT = "It is 3: ümläut 汉字 🧮, and no more than that."
CALLING = 'Let me add, said the agent. CALL{"name": "add", "arguments": {"a": 1}}'
USER: Any = {"role": "user", "content": "1 + 2?"}
ADD: Any = {"name": "add", "description": "Add.", "parameters": {"type": "object"}}


class Typing(FakeEngine):
    """Tells its tokens one by one: what comes after the first ten of each action once it may.

    Args:
        holds: whose actions wait for that; "" is everybody.
    """

    def __init__(self, *texts: str, fails: bool = False, holds: str = "") -> None:
        super().__init__(lambda key, _: texts[key.call % len(texts)])
        self.may, self.fails, self.holds, self.typing = threading.Event(), fails, holds, 0

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        completion = await super().sample(policy, prompt, sampling, key)
        self.typing += 1
        try:
            for at, token in enumerate(completion.tokens.tolist()):
                if at == 10 and self.holds in ("", key.agent):
                    await self._until_it_may()
                if sampling.on_token:
                    sampling.on_token(token)
        finally:
            self.typing -= 1
        return completion

    async def _until_it_may(self) -> None:
        deadline = time.monotonic() + 60
        while not self.may.is_set():
            assert time.monotonic() < deadline, "nobody has read the beginning"
            await asyncio.sleep(0.005)
        if self.fails:
            raise EpisodeFailedError("failed", "the device is lost")


def streamed(engine: Typing, talk: Callable[[OpenAI], object], **program: Any) -> Episode:
    """An episode whose program reads streams with OpenAI's own client."""

    def solve(task: Task, clients: Clients) -> None:
        with OpenAI(**clients["a"].keywords, max_retries=0) as client:  # type: ignore[arg-type]
            talk(client)

    return played(solve, engine=engine, **program)


@contextmanager
def lines(url: str, body: Any, headers: Mapping[str, str] | None = None) -> Iterator[Iterator[str]]:
    """The lines of a response as they come."""
    parts = urlsplit(url)
    assert parts.hostname
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
    try:
        connection.request("POST", parts.path, json.dumps(body), dict(headers or {}))
        answer = connection.getresponse()
        assert answer.status == 200
        yield (line.decode().rstrip("\n") for line in answer)
    finally:
        connection.close()


class TestGateway:
    @pytest.mark.parametrize("text", [TEXT, CALLING])
    def test_chat_completions_are_told_while_they_are_sampled(self, text: str) -> None:
        engine, told = Typing(text), list[Any]()

        def talk(client: OpenAI) -> None:
            asked: Any = {"model": "m", "messages": [USER], "tools": [{"type": "function", "function": ADD}]}
            options: Any = {"stream": True, "stream_options": {"include_usage": True}}
            for chunk in client.chat.completions.create(**asked, **options):
                told.append(chunk)
                if chunk.choices and chunk.choices[0].delta.content:
                    engine.may.set()

        episode = streamed(engine, talk)
        assert (episode.status, episode.error) == ("terminated", "")
        (action,) = episode.actions
        deltas = [choice.delta for chunk in told for choice in chunk.choices]
        assert "".join(delta.content or "" for delta in deltas) == text
        assert [call.function.arguments for delta in deltas for call in delta.tool_calls or () if not call.id] == [
            call.arguments for call in action.calls
        ]
        assert told[-1].usage.completion_tokens == len(action.tokens) == len(text.encode())
        assert told[-1].usage.prompt_tokens == len(action.prompt)
        assert told[-2].choices[0].finish_reason == ("tool_calls" if action.calls else "stop")
        assert all(chunk.model_extra["marft"]["actions"] == [action.id] for chunk in told)

    @pytest.mark.parametrize("text", [TEXT, CALLING])
    def test_responses_are_told_while_they_are_sampled(self, text: str) -> None:
        engine, kinds = Typing(text), list[str]()

        def talk(client: OpenAI) -> None:
            tools: Any = [{"type": "function", **ADD, "strict": False}]
            with client.responses.stream(model="m", input="1 + 2?", tools=tools) as stream:
                for event in stream:
                    kinds.append(event.type)
                    if event.type == "response.output_text.delta":
                        engine.may.set()
                whole = stream.get_final_response()
            assert whole.output_text == text
            assert [item.type for item in whole.output][1:] == (["function_call"] if "CALL" in text else [])
            assert client.responses.create(model="m", input="Sure?", previous_response_id=whole.id, tools=tools)

        episode = streamed(engine, talk)
        assert (episode.status, episode.error) == ("terminated", "")
        assert kinds[0] == "response.created"
        assert kinds.count("response.output_text.delta") > 1
        assert kinds[-1] == "response.completed"
        assert episode.actions[1].continues == ("0/a/0",)

    @pytest.mark.parametrize("text", [TEXT, CALLING])
    def test_messages_are_told_while_they_are_sampled(self, text: str) -> None:
        engine, events = Typing(text), list[Any]()

        def solve(task: Task, clients: Clients) -> None:
            tools = [{"name": "add", "input_schema": {"type": "object"}}]
            body = {"messages": [USER], "max_tokens": 500, "tools": tools, "stream": True}
            with lines(f"{clients['a'].base_url}/messages", body) as told:
                for line in told:
                    if line.startswith("data: "):
                        events.append(json.loads(line[6:]))
                        if "text" in events[-1].get("delta", {}):
                            engine.may.set()

        episode = played(solve, engine=engine)
        assert (episode.status, episode.error) == ("terminated", "")
        said = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
        assert said == text
        kinds = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
        assert kinds == ["text", "tool_use"][: 1 + bool(episode.actions[0].calls)]
        assert events[0]["message"]["usage"]["input_tokens"] == len(episode.actions[0].prompt)
        assert events[-2]["usage"]["output_tokens"] == len(text.encode())

    @pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
    def test_a_thought_that_is_dropped_is_told_as_one_while_it_is_sampled(self, path: str) -> None:
        thought, events = "<think>Hm, let me see.</think>\n", list[Any]()
        engine = Typing(thought + TEXT)

        def solve(task: Task, clients: Clients) -> None:
            words = {"input": "hi"} if path == "responses" else {"messages": [USER], "max_tokens": 500}
            with lines(f"{clients['a'].base_url}/{path}", {"stream": True, **words}) as told:
                for line in told:
                    if line.startswith("data: {"):
                        events.append(json.loads(line[6:]))
                        if '"<' in line:  # however much of it comes at once
                            engine.may.set()

        g = game_of(solve, engine=engine)
        agents = tuple(replace(agent, thinking="drop") for agent in g.team.agents)
        (episode,) = play_game(replace(g, team=replace(g.team, agents=agents)))
        assert (episode.status, episode.error) == ("terminated", "")
        if path == "chat/completions":
            deltas = [event["choices"][0]["delta"] for event in events]
            told = ["".join(delta.get(key) or "" for delta in deltas) for key in ("reasoning_content", "content")]
        elif path == "responses":
            kinds = ("response.reasoning_summary_text.delta", "response.output_text.delta")
            told = ["".join(event["delta"] for event in events if event["type"] == kind) for kind in kinds]
            done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
            assert done == events[-1]["response"]["output"]
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
        else:
            deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
            told = ["".join(delta.get(key, "") for delta in deltas) for key in ("thinking", "text")]
        assert told == [thought, TEXT]

    def test_several_answers_are_told_at_once(self) -> None:
        engine, texts = Typing("first: " + TEXT, "second: " + TEXT), ["", ""]

        def talk(client: OpenAI) -> None:
            for chunk in client.chat.completions.create(model="m", messages=[USER], n=2, stream=True):
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
                if all(texts):
                    engine.may.set()

        assert streamed(engine, talk).status == "terminated"
        assert texts == ["first: " + TEXT, "second: " + TEXT]

    def test_a_client_that_goes_away_in_the_midst_loses_its_action_alone(self) -> None:
        engine, answers = Typing(TEXT), list[Response]()

        def solve(task: Task, clients: Clients) -> None:
            with lines(completions(clients["a"]), {"messages": [USER], "stream": True}) as told:
                assert "assistant" in next(told)
            engine.may.set()
            until(lambda: not engine.typing)
            answers.append(ask(clients["a"], "And 3?"))

        episode = played(solve, engine=engine)
        assert (episode.status, episode.error) == ("terminated", "")
        assert answers[0].said == TEXT
        assert [action.text for action in episode.actions] == [TEXT, TEXT]

    def test_a_request_that_is_sent_again_in_the_midst_is_told_from_the_beginning(self) -> None:
        engine, texts = Typing(TEXT), list[str]()

        def solve(task: Task, clients: Clients) -> None:
            url, body = completions(clients["a"]), {"messages": [USER], "stream": True}
            with lines(url, body) as first:
                next(first)
                with lines(url, body, {"x-stainless-retry-count": "1"}) as second:
                    next(second)
                    engine.may.set()
                    for told in (first, second):
                        data = [json.loads(line[6:]) for line in told if line[:7] == "data: {"]
                        texts.append("".join(one["choices"][0]["delta"].get("content", "") for one in data))

        episode = played(solve, engine=engine)
        assert (episode.status, len(episode.actions)) == ("terminated", 1)
        assert texts == [TEXT, TEXT]

    def test_what_fails_in_the_midst_ends_the_stream_with_an_error(self) -> None:
        engine, read = Typing(TEXT, fails=True), list[str]()

        def read_all(client: OpenAI) -> None:
            for chunk in client.chat.completions.create(model="m", messages=[USER], stream=True):
                read.append(chunk.choices[0].delta.content or "")
                if "".join(read) == TEXT[:9]:  # of the tenth character one byte has come
                    engine.may.set()

        def talk(client: OpenAI) -> None:
            with pytest.raises(APIError, match="the action failed"):
                read_all(client)

        episode = streamed(engine, talk)
        assert (episode.status, "the device is lost" in episode.error) == ("failed", True)
        assert "".join(read) == TEXT[:9]


class TestServing:
    @pytest.mark.parametrize("model", ["team", "a", "b"])
    @pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
    def test_the_answer_is_told_while_it_is_sampled(self, path: str, model: str) -> None:
        servings = pytest.importorskip("tests.servings")
        engine, told = Typing(TEXT, holds="b" if model == "team" else ""), list[Any]()
        words = {"input": "hi"} if path == "responses" else {"messages": [USER], "max_tokens": 500}
        with servings.serving(engine=engine) as s:
            with lines(f"{s.url}/v1/{path}", {"model": model, "stream": True, **words}) as heard:
                for line in heard:
                    if line.startswith("data: {"):
                        told.append(json.loads(line[6:]))
                        if content(told[-1]):
                            engine.may.set()
            (episode,) = s.episodes
        assert episode.status == "terminated"
        assert [action.text for action in episode.actions] == [TEXT] * (2 if model == "team" else 1)
        assert "".join(map(content, told)) == TEXT
        assert sum(bool(content(table)) for table in told) > 1

    @pytest.mark.parametrize(("organization", "answers"), [
        (Chain(), "c"), (Parallel(), "c"), (Parallel(answer="vote"), ""), (Graph(visible={"c": ("a",)}), "c"),
        (Debate(judge="b"), "b"), (Debate(), ""), (MixtureOfAgents(), "c"),
        (Hierarchical(planner="a", workers=("b",)), "c"), (Hierarchical(planner="c", workers=("b",)), ""),
        (Reflective(actor="a", critic="b", reviser="c"), "c"), (Reflective(actor="c", critic="b", reviser="c"), ""),
        (Reflective(actor="a", critic="b", reviser="c", rounds=2), ""), (Orchestrated(router="a"), ""),
    ])  # fmt: skip
    def test_whose_text_the_answer_is_is_known_where_it_acts_once(self, organization: Any, answers: str) -> None:
        assert organization.answer_only_role(["c"]) == answers

    def test_where_nobody_knows_whose_text_the_answer_is_it_comes_as_a_whole(self) -> None:
        servings = pytest.importorskip("tests.servings")
        engine = Typing(TEXT)
        engine.may.set()
        with (
            servings.serving(engine=engine, organization=Parallel(answer="vote")) as s,
            lines(f"{s.url}/v1/chat/completions", {"stream": True, "messages": [USER]}) as heard,
        ):
            tables = [json.loads(line[6:]) for line in heard if line[:7] == "data: {"]
        assert "".join(map(content, tables)) == TEXT
        progress = [one["marft"]["progress"]["agent"] for one in tables if "progress" in one["marft"]]
        assert sorted(progress) == ["a", "a", "b", "b"]
        assert [content(one) for one in tables if "progress" in one["marft"]] == [""] * 4

    @pytest.mark.parametrize("model", ["team", "b"])
    def test_a_client_that_goes_away_in_the_midst_makes_room(self, model: str) -> None:
        servings = pytest.importorskip("tests.servings")
        engine = Typing(TEXT)
        with servings.serving("b", engine=engine) as s:
            with lines(f"{s.url}/v1/chat/completions", {"model": model, "stream": True, "messages": [USER]}) as heard:
                next(line for line in heard if '"I' in line)
            until(lambda: (s.app.admission.running, engine.typing) == (0, 0))


def content(table: Any) -> str:
    """What an event of any protocol adds to the answer."""
    delta = table.get("delta", "") if "choices" not in table else table["choices"][0]["delta"].get("content")
    return str((delta.get("text") if isinstance(delta, dict) else delta) or "")


def test_an_engine_tells_its_tokens_and_samples_the_same(random_model: Path) -> None:
    heard: dict[int, list[int]] = {}

    async def sample(rollouts: LocalRolloutRunner, listens: bool) -> list[Completion]:
        def one(number: int) -> Any:
            listener = heard.setdefault(number, []).append if listens and number % 2 else None
            sampling = SamplingParams(max_new_tokens=5 + number, on_token=listener)
            key = ActionKey("s", "t", number, 0, "a", 0)
            return rollouts.engine.sample("actor", Prompt(np.array([5, 6, 7 + number], np.int32)), sampling, key)

        return list(await asyncio.gather(*map(one, range(6))))

    with LocalRolloutRunner(settings(random_model)) as rollouts:
        plain = rollouts.wait_for(sample(rollouts, listens=False))
        listened = rollouts.wait_for(sample(rollouts, listens=True))
    for one, other in zip(plain, listened, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.log_probs.tobytes() == other.log_probs.tobytes()
    assert heard == {number: listened[number].tokens.tolist() for number in (1, 3, 5)}


class TestEventStreams:
    @pytest.mark.parametrize("started", [True, False])
    def test_what_was_begun_ends_as_soon_as_the_client_has_gone(self, started: bool) -> None:
        """The client leaves while a text is sent, when no generator runs, or before the first one."""
        ends = list[str]()

        async def texts() -> AsyncGenerator[str]:
            try:
                for number in range(9):
                    yield str(number)
            finally:
                ends.append("texts")

        async def answer() -> list[str]:
            leaves = asyncio.Event()

            async def receive() -> Message:
                await leaves.wait()
                return {"type": "http.disconnect"}

            async def send(message: Message) -> None:
                if started == bool(message.get("body")):
                    leaves.set()
                    await asyncio.sleep(60)

            stream = EventStream(ChatCompletions(), texts(), {}, on_end=lambda: ends.append("ended"))
            await asyncio.wait_for(stream({"type": "http"}, receive, send), 20)
            return [*ends]  # while the stream holds its generators: none is garbage

        assert asyncio.run(answer()) == (["ended", "texts"] if started else ["ended"])
