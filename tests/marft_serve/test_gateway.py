"""A team that is a program: what it asks for is done, what goes wrong is its own, and nobody else hears of it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn", reason="needs the gateway: pip install 'marft[gateway]'")

from marft.common.types import ActionKey, Completion, Episode, Observation, Prompt, SamplingParams, Step, Task
from marft_serve.gateway.client import Client
from tests.fakes import FakeEngine, goes_on
from tests.gateways import ASK, Response, ask, completions, game_of, play_game, played, send

Clients = Mapping[str, Client]


class Slow(FakeEngine):
    """Answers once it is let go."""

    def __init__(self) -> None:
        super().__init__(lambda key, _: f"{key.agent}{key.call}")
        self.free, self.waiting = threading.Event(), threading.Semaphore(0)

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        self.waiting.release()
        while not self.free.is_set():
            await asyncio.sleep(0.005)
        return await super().sample(policy, prompt, sampling, key)


class TestPrograms:
    def test_a_function_asks_and_answers(self) -> None:
        def solve(task: Task, clients: Clients) -> str:
            assert (task.prompt, dict(task.data)) == ("begin", {})
            thought = ask(clients["a"], task.prompt).said
            return ask(clients["b"], f"{task.prompt} {thought}").said

        episode = played(solve, "a", "b")
        assert (episode.status, episode.error) == ("terminated", "")
        assert [(action.id, action.sees) for action in episode.actions] == [("0/a/0", ()), ("0/b/0", ("0/a/0",))]

    def test_a_coroutine_does_too(self) -> None:
        async def solve(task: Task, clients: Clients) -> str:
            asked = await asyncio.gather(*(asyncio.to_thread(ask, clients["a"], str(n)) for n in range(3)))
            return asked[0].said

        episode = played(solve)
        assert sorted(action.key.call for action in episode.actions) == [0, 1, 2]

    @pytest.mark.parametrize(
        ("returned", "text"), [("42", "42"), (42, "42"), ({"answer": "42"}, "42"), (None, "a says 0")]
    )
    def test_the_environment_grades_the_answer_whoever_said_it(self, returned: object, text: str) -> None:
        graded: list[str] = []

        def solve(task: Task, clients: Clients) -> object:
            ask(clients["a"])
            return returned

        def step(actions: Any) -> Step:
            graded.append(actions.answer.text)
            return Step(Observation("end"), 1.0, terminated=True)

        episode = played(solve, steps=[step])
        assert graded == [text]
        assert len(episode.actions) == 1

    def test_or_the_program_grades_it_itself_and_is_told_the_data(self) -> None:
        def solve(task: Task, clients: Clients) -> object:
            return {"answer": ask(clients["a"]).said, "reward": 0.25, "success": True, "agent_rewards": {"a": 2}}

        episode = played(solve, graded_by="program")
        (transition,) = episode.transitions
        assert (transition.reward, transition.agent_rewards, episode.success) == (0.25, {"a": 2.0}, True)

    def test_every_step_runs_the_program_on_what_is_observed_then_and_its_conversations_go_on(self) -> None:
        seen: list[str] = []

        def solve(task: Task, clients: Clients) -> None:
            seen.append(task.prompt)
            ask(clients["a"], task.prompt)

        episode = played(
            solve, steps=[goes_on(text="more"), goes_on(text="begin"), lambda _: Step(Observation(""), 1.0, True)]
        )
        assert seen == ["begin", "more", "begin"]
        assert [action.id for action in episode.actions] == ["0/a/0", "1/a/0", "2/a/0"]

    @pytest.mark.parametrize(
        ("solve", "status", "says"),
        [
            (lambda t, c: 1 / 0, "failed", "the program raised ZeroDivisionError: division by zero (test_gateway.py:"),
            (lambda t, c: time.sleep(3), "timed_out", "the program took over 0.5 s"),
            (lambda t, c: {"answr": 1}, "failed", "the program returned a table with 'answr'"),
            (lambda t, c: {"answer": "", "reward": 1.0}, "failed", "the environment does: set graded_by"),
            (lambda t, c: object(), "failed", "the program answered with a object, which is no whole text"),
            (lambda t, c: exec("raise SystemExit(3)"), "failed", "the program raised SystemExit: 3"),
            (lambda t, c: ask(c["a"]).table["error"], "failed", "the program raised KeyError: 'error'"),
            (lambda t, c: exec("raise ValueError(c['a'].base_url)", {"c": c}), "failed", "/e/…/a/v1"),
        ],
    )
    def test_one_that_goes_wrong_loses_its_own_episode_alone(self, solve: Any, status: str, says: str) -> None:
        def sometimes(task: Task, clients: Clients) -> object:
            return solve(task, clients) if task.id == "t0" else ask(clients["a"]).said

        wrong, fine = play_game(game_of(sometimes, timeout_seconds=0.5), 2)
        assert (wrong.status, wrong.transitions) == (status, ())
        assert says in wrong.error
        assert fine.status == "terminated", fine.error

    def test_tasks_that_it_leaves_behind_end_with_it(self) -> None:
        left: list[asyncio.Task[Any]] = []

        async def solve(task: Task, clients: Clients) -> str:
            left.append(asyncio.create_task(asyncio.sleep(60)))
            return "3"

        assert played(solve).status == "terminated"
        assert left[0].cancelled()

    def test_a_request_that_it_does_not_wait_for_is_called_off_and_no_action(self) -> None:
        engine = Slow()

        def solve(task: Task, clients: Clients) -> str:
            threading.Thread(target=ask, args=(clients["a"],), daemon=True).start()
            assert engine.waiting.acquire(timeout=10)
            return "3"

        episode = played(solve, engine=engine)
        assert (episode.status, episode.actions) == ("terminated", ())


class TestAddresses:
    def test_there_is_nothing_at_others(self) -> None:
        answers: list[Response] = []

        def solve(task: Task, clients: Clients) -> None:
            base = clients["a"].base_url
            answers.extend(
                send(url, method=method)
                for url, method in [
                    (f"{base}/chat/completions".replace("/a/v1", "/b/v1"), "POST"),
                    (f"{base}/chat/completions".replace("/e/", "/e/x"), "POST"),
                    (f"{base}/nowhere", "POST"), (f"{base}/chat/completions", "GET"),
                    (base.removesuffix("/v1"), "GET"),
                ]
            )  # fmt: skip

        assert played(solve).status == "terminated"
        assert [answer.status for answer in answers] == [404, 404, 404, 405, 404]
        assert answers[0].table["error"] == {
            "message": "no episode and no agent is reached by this address", "type": "invalid_request_error",
            "param": None, "code": "not_found",
        }  # fmt: skip

    def test_an_episode_that_is_over_answers_that(self) -> None:
        kept: list[Client] = []
        gone = threading.Event()
        answers: list[Response] = []

        def solve(task: Task, clients: Clients) -> str:
            if task.id == "t0":
                kept.append(clients["a"])
                return "3"
            while not answers or answers[-1].status != 410:
                if kept:
                    answers.append(ask(kept[0]))
            gone.set()
            return ask(clients["a"]).said

        assert [episode.status for episode in play_game(game_of(solve), 2)] == ["terminated"] * 2
        assert answers[-1].table["error"]["code"] == "episode_closed"
        assert gone.is_set()

    def test_the_policy_is_the_model(self) -> None:
        listed: list[Any] = []

        def solve(task: Task, clients: Clients) -> None:
            base = clients["a"].base_url
            listed.extend(send(f"{base}/models{rest}", None, method="GET") for rest in ("", "/a", "/b"))

        played(solve)
        assert [answer.status for answer in listed] == [200, 200, 404]
        assert [model["id"] for model in listed[0].table["data"]] == ["a"]
        assert listed[2].table["error"]["code"] == "model_not_found"

    def test_nothing_listens_beyond_this_machine_unless_told(self) -> None:
        hosts: list[str] = []

        def solve(task: Task, clients: Clients) -> None:
            hosts.append(str(urlsplit(clients["a"].base_url).hostname))

        played(solve)
        played(solve, host="0.0.0.0")
        assert hosts == ["127.0.0.1", "0.0.0.0"]

    def test_an_address_that_is_taken_is_named(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            episode = played(lambda t, c: None, port=port)
        assert f"cannot listen on 127.0.0.1 port {port}" in episode.error


class TestAnswers:
    def answer(self, *, engine: FakeEngine | None = None, **fields: Any) -> tuple[Response, Episode]:
        answers: list[Response] = []

        def solve(task: Task, clients: Clients) -> None:
            answers.append(ask(clients["a"], **fields))

        episode = played(solve, engine=engine)
        assert episode.status == "terminated", episode.error
        return answers[0], episode

    def test_it_is_a_completion_that_says_which_action_it_is_and_what_was_only_recorded(self) -> None:
        answer, episode = self.answer(temperature=0.1, seed=7, truncation="auto", user="me")
        table, (action,) = answer.table, episode.actions
        assert (answer.status, table["object"], table["model"]) == (200, "chat.completion", "a")
        assert table["choices"][0] == {
            "index": 0, "finish_reason": "stop", "logprobs": None,
            "message": {"role": "assistant", "content": "a says 0", "refusal": None},
        }  # fmt: skip
        assert table["usage"]["completion_tokens"] == len(action.tokens)
        assert table["usage"]["prompt_tokens"] == len(action.prompt)
        assert answer.headers["x-marft-action"] == "0/a/0"
        assert table["marft"] == {
            "actions": ["0/a/0"], "sees": [], "ignored": ["truncation"],
            "recorded_only": {"temperature": 0.1, "seed": 7},
        }  # fmt: skip
        assert action.wishes == '{"seed": 7, "temperature": 0.1}'

    def test_several_are_several_actions(self) -> None:
        answer, episode = self.answer(engine=FakeEngine(lambda key, _: f"{key.call}!"), n=3)
        assert [choice["message"]["content"] for choice in answer.table["choices"]] == ["0!", "1!", "2!"]
        assert [action.key.call for action in episode.actions] == [0, 1, 2]

    def test_log_probs_are_those_of_the_tokens(self) -> None:
        answer, episode = self.answer(logprobs=True)
        content = answer.table["choices"][0]["logprobs"]["content"]
        assert "".join(token["token"] for token in content) == "a says 0"
        assert [token["logprob"] for token in content] == episode.actions[0].log_probs.tolist()

    @pytest.mark.parametrize("usage", [True, False])
    def test_a_stream_says_the_same(self, usage: bool) -> None:
        answer, _ = self.answer(
            engine=FakeEngine(lambda *_: "ü" * 200), stream=True, stream_options={"include_usage": usage}
        )
        assert answer.headers["content-type"].startswith("text/event-stream")
        import json

        *events, done = [line.removeprefix("data: ") for line in answer.body.decode().split("\n\n") if line]
        assert done == "[DONE]"
        chunks = [json.loads(event) for event in events]
        deltas = [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]
        assert "".join(deltas) == "ü" * 200
        assert len(deltas) > 3
        assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-1] == "stop"
        assert ("usage" in chunks[-1]) is usage

    def test_what_an_action_sees_can_be_declared(self) -> None:
        answers: list[Response] = []

        def solve(task: Task, clients: Clients) -> None:
            ask(clients["a"])
            for declared in ("0/a/0", "", "0/b/7"):
                answers.append(ask(clients["b"], "a says 0", {"x-marft-sees": declared}))
            answers.append(ask(clients["b"], "a says 0"))

        episode = played(solve, "a", "b")
        assert [answer.status for answer in answers] == [200, 200, 400, 200]
        assert [action.sees for action in episode.actions] == [(), ("0/a/0",), (), ("0/a/0",)]

    def test_the_same_conversation_is_gone_on_from(self) -> None:
        def solve(task: Task, clients: Clients) -> None:
            said = ask(clients["a"]).table["choices"][0]["message"]
            send(completions(clients["a"]), {"messages": [*ASK["messages"], said, {"role": "user", "content": "?"}]})

        episode = played(solve)
        assert episode.actions[1].continues == ("0/a/0",)
