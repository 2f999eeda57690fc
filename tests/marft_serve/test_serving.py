"""A team that is served: what clients are told, what is refused, and that no request is lost."""

from __future__ import annotations

import asyncio
import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from marft.config.interfaces.organization import Organization

pytest.importorskip("prometheus_client", reason="needs a server: pip install 'marft[serve]'")
pytest.importorskip("openai", reason="asks as clients do: pip install 'marft[remote]'")

import openai
from rich.console import Console

from marft.cli import show as show_command
from marft.common.types import Episode, JointAction, Task
from marft.runs.episode_files import read_episodes
from marft_serve.gateway.errors import RequestError
from marft_serve.serving.admission import AdmissionQueue, BusyError
from marft_serve.serving.options import ServeOptions
from marft_serve.serving.recorder import Recorder
from marft_serve.serving.team_handler import build_task_text
from tests.fakes import FakeEngine
from tests.gateways import send
from tests.helpers import until
from tests.servings import Held, bearer, serving


class Raises(Organization):
    async def act(self, observation: object, agents: object) -> JointAction:
        raise RuntimeError("the key is sk-secret")


def events(body: bytes) -> list[Any]:
    """What the data of a stream says."""
    lines = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


class TestAnswers:
    def test_the_team_and_each_role_are_models(self) -> None:
        with serving() as s:
            listed = send(f"{s.url}/v1/models", None, method="GET").table
            assert [one["id"] for one in listed["data"]] == ["demo", "team", "a", "b"]
            assert send(f"{s.url}/v1/models/a", None, method="GET").table["id"] == "a"
            assert s.ask("team").said == s.ask("demo").said == "b says 0"
            assert s.ask("a").said == "a says 0"
            assert [len(episode.actions) for episode in s.episodes] == [2, 2, 1]

    def test_what_the_whole_team_was_asked_is_recorded_with_its_answer(self) -> None:
        with serving() as s:
            s.ask("team")
            s.ask("b")
        assert [episode.answer for episode in s.episodes] == ["0/b/0", ""]

    def test_the_answer_is_the_content_and_usage_is_the_sum_of_the_team(self) -> None:
        with serving() as s:
            table = s.ask().table
        (episode,) = s.episodes
        read, said = sum(len(a.prompt) for a in episode.actions), sum(len(a.tokens) for a in episode.actions)
        assert table["usage"] == {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said}
        assert [one["id"] for one in table["marft"]["actions"]] == ["0/a/0", "0/b/0"]
        assert table["marft"]["actions"][1]["sees"] == ["0/a/0"]
        assert table["id"] == f"chatcmpl-{table['marft']['request']}"

    def test_a_stream_says_who_works_and_then_the_answer(self) -> None:
        with serving() as s:
            client = openai.OpenAI(base_url=f"{s.url}/v1", api_key="x", max_retries=0)
            question: Any = [{"role": "user", "content": "1 + 2?"}]
            chunks = list(client.chat.completions.create(model="team", messages=question, stream=True))
            done = [chunk.to_dict() for chunk in chunks]
        progress = [one["marft"]["progress"] for one in done if "progress" in one["marft"]]
        assert [(one["agent"], one["state"]) for one in progress] == [
            ("a", "asked"), ("a", "acted"), ("b", "asked"), ("b", "acted"),
        ]  # fmt: skip
        deltas = [one["choices"][0]["delta"] for one in done]
        thought = "".join(delta.get("reasoning_content") or "" for delta in deltas)
        assert thought == "a …\na: a says 0\n\nb …\n"
        assert "".join(delta.get("content") or "" for delta in deltas) == "b says 0"
        assert len({one["id"] for one in done}) == 1

    @pytest.mark.parametrize("path", ["responses", "messages"])
    def test_other_protocols_have_progress_in_comments(self, path: str) -> None:
        body: dict[str, object] = {"model": "team", "stream": True}
        body |= (
            {"input": "hi"}
            if path == "responses"
            else {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
        )
        with serving() as s:
            answer = send(f"{s.url}/v1/{path}", body)
            whole = send(f"{s.url}/v1/{path}", {**body, "stream": False}).table
        assert re.findall(r"^: (\w+ \w+)$", answer.body.decode(), re.MULTILINE) == [
            "a asked", "a acted", "b asked", "b acted",
        ]  # fmt: skip
        assert "b says 0" in json.dumps(events(answer.body)[-1] if path == "responses" else events(answer.body))
        assert whole["usage"]["output_tokens"] == sum(len(one.tokens) for one in s.episodes[0].actions)
        assert whole.get("store", False) is False, "no later request can go on from it"

    def test_a_role_has_its_own_instructions_unless_it_is_given_some(self) -> None:
        engine = FakeEngine()
        with serving(engine=engine) as s:
            s.ask("a")
            s.ask("a", messages=[{"role": "system", "content": "Mine."}, {"role": "user", "content": "hi"}])
        (_, first), (_, second) = engine.asked
        assert "'You are a.'" in first
        assert "Mine." in second
        assert "You are a." not in second

    def test_sampling_is_as_the_client_wishes(self) -> None:
        seen: list[Any] = []

        class Seeing(FakeEngine):
            async def sample(self, policy: str, prompt: Any, sampling: Any, key: Any) -> Any:
                seen.append((sampling.temperature, sampling.top_p))
                return await super().sample(policy, prompt, sampling, key)

        with serving("a", engine=Seeing()) as s:
            assert s.ask("team", temperature=0, top_p=0.5).status == 200
            table = s.ask("a", temperature=0.3, seed=7, user="me", stop="!").table
            assert s.ask("a", temperature=-1).table["error"]["param"] == "temperature"
            assert s.ask("a", top_p=0).status == 400
        assert seen == [(0.0, 0.5), (0.3, 1.0)]
        assert "recorded_only" not in table["marft"]

    def test_a_seed_names_the_random_streams_and_the_record_keeps_the_requests_name(self) -> None:
        engine = FakeEngine()
        with serving(engine=engine) as s:
            for seed in (7, 7, 8, None):
                s.ask(**({} if seed is None else {"seed": seed}))
        keys = [key for key, _ in engine.asked]
        assert keys[:2] == keys[2:4]
        assert len({key.task for key in keys}) == 3
        assert len({episode.task.id for episode in s.episodes}) == 4
        for episode in s.episodes:
            assert {action.key.task for action in episode.actions} == {episode.task.id}

    def test_several_answers_of_a_role_are_several_actions(self) -> None:
        with serving("a") as s:
            assert len(s.ask("a", n=3).table["choices"]) == 3
            assert len(s.episodes[0].actions) == 3

    def test_a_conversation_is_the_teams_task_as_a_whole(self) -> None:
        chat = [{"role": role, "content": text} for role, text in (("user", "2?"), ("assistant", "2."), ("user", "3?"))]
        assert build_task_text(chat) == "User:\n2?\n\nAssistant:\n2.\n\nUser:\n3?"


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "status", "says"),
        [
            ({"model": "c"}, 404, "there are: demo, team, a, b"),
            ({"n": 2}, 400, "a team answers once"),
            ({"logprobs": True}, 400, "of one agent"),
            ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "its own"),
            ({"messages": []}, 400, "at least 1 item"),
        ],
    )
    def test_what_a_team_cannot_do_is_said(self, fields: dict[str, Any], status: int, says: str) -> None:
        with serving() as s:
            answer = s.ask(**{"model": "team", **fields})
        assert (answer.status, says in answer.table["error"]["message"]) == (status, True)
        assert s.episodes == []

    def test_a_team_that_fails_says_so_and_not_why(self, caplog: pytest.LogCaptureFixture) -> None:
        with serving(organization=Raises()) as s:
            answer, streamed = s.ask(), s.ask(stream=True)
            assert s.app.metrics.registry.get_sample_value(
                "marft_requests_total", {"model": "team", "status": "500"}
            ) >= 1  # fmt: skip
        assert (answer.status, answer.table["error"]["code"]) == (500, "team_failed")
        assert events(streamed.body)[-1]["error"]["code"] == "team_failed"
        assert b"sk-secret" not in answer.body + streamed.body
        assert "sk-secret" in caplog.text

    def test_an_answer_that_takes_too_long_is_a_timeout(self) -> None:
        with serving("a", engine=Held(), options=ServeOptions(timeout_seconds=0.05)) as s:
            assert s.ask().status == 504
            until(lambda: s.app.admission.running == 0)

    @pytest.mark.parametrize("header", [{}, bearer("other"), {"authorization": "Basic secret"}, bearer("sécret")])
    def test_without_its_token_nothing_is_answered_but_health(self, header: dict[str, str]) -> None:
        raw = {name: value.encode().decode("latin-1") for name, value in header.items()}
        with serving(token="secret") as s:
            for method, path in (("POST", "v1/chat/completions"), ("GET", "v1/models"), ("GET", "metrics")):
                answer = send(f"{s.url}/{path}", None if method == "GET" else {"model": "a"}, raw, method)
                assert answer.status == 401
            assert send(f"{s.url}/healthz", None, raw, "GET").status == 200
            assert s.ask(token="secret").status == 200
            key = {"x-api-key": "secret"}
            assert send(f"{s.url}/v1/models", None, key, "GET").status == 200

    def test_pages_of_other_hosts_are_refused_without_a_token(self) -> None:
        with serving() as s:
            url, question = f"{s.url}/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}
            for page in (
                "https://evil.example",
                "null",
                "http://[",
            ):  # of anybody's frame that is kept apart; of nobody
                assert send(url, question, {"origin": page}).status == 403
            assert send(url, question, {"origin": "http://localhost:3000"}).status == 200

    @pytest.mark.parametrize(
        ("host", "refused"), [("0.0.0.0", True), ("example.org", True), ("127.0.0.1", False), ("::1", False)]
    )
    def test_others_than_this_machine_need_a_token(self, host: str, refused: bool) -> None:
        if refused:
            with pytest.raises(ValueError, match="others than this machine could ask, and no token is set"):
                ServeOptions(host).check()
        else:
            ServeOptions(host).check()
        ServeOptions(host, token="secret").check()
        ServeOptions(host, allow_remote=True).check()


class TestMany:
    def test_every_request_is_answered_or_refused_and_none_is_lost(self) -> None:
        """Two at work, three in the queue, and the rest told when to come again."""
        engine = Held()
        with (
            serving("a", engine=engine, options=ServeOptions(concurrency=2, queue=3)) as s,
            ThreadPoolExecutor(40) as crowd,
        ):
            first = [crowd.submit(s.ask, "a", str(n)) for n in range(5)]
            until(lambda: (s.app.admission.running, s.app.admission.waiting) == (2, 3))
            others = [crowd.submit(s.ask, "a", str(n)) for n in range(35)]
            refused = [one.result() for one in others]
            engine.may.set()
            answered = [one.result() for one in first]
            assert {one.status for one in refused} == {429}
            assert all(int(one.headers["retry-after"]) >= 1 for one in refused)
            assert {one.status for one in answered} == {200}
            assert engine.most == 2
            assert (s.app.admission.running, s.app.admission.waiting) == (0, 0)
            value = s.app.metrics.registry.get_sample_value
            assert value("marft_requests_total", {"model": "a", "status": "429"}) == 35
            assert value("marft_requests_total", {"model": "a", "status": "200"}) == 5

    def test_requests_are_begun_in_the_order_in_which_they_came(self) -> None:
        engine = Held()
        with (
            serving("a", engine=engine, options=ServeOptions(concurrency=1, queue=10)) as s,
            ThreadPoolExecutor(10) as crowd,
        ):
            asked = []
            for number in range(5):
                asked.append(crowd.submit(s.ask, "a", f"question {number}"))
                until(lambda: s.app.admission.running + s.app.admission.waiting == number + 1)  # noqa: B023
            engine.may.set()
            assert {one.result().status for one in asked} == {200}
        assert [re.findall(r"question \d", text) for _, text in engine.asked] == [[f"question {n}"] for n in range(5)]

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("model", ["team", "a"])
    def test_a_client_that_goes_away_makes_room(self, model: str, stream: bool) -> None:
        engine = Held()
        with serving("a", "b", engine=engine, options=ServeOptions(concurrency=1, queue=1)) as s:
            body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": "hi"}]}
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    send(f"{s.url}/v1/chat/completions", body, timeout=0.1)
            until(lambda: (s.app.admission.running, s.app.admission.waiting, engine.waiting) == (0, 0, 0))
            engine.may.set()
            assert s.ask(model).status == 200

    def test_it_ends_when_what_was_begun_is_answered(self) -> None:
        import asyncio

        engine = Held()
        with serving("a", engine=engine) as s, ThreadPoolExecutor(4) as crowd:
            asked = [crowd.submit(s.ask, "a", str(n)) for n in range(3)]
            until(lambda: engine.waiting == 3)
            ending = crowd.submit(asyncio.run, s.listener.finish())
            until(lambda: s.listener._server.should_exit)
            engine.may.set()
            assert {one.result().status for one in asked} == {200}
            ending.result()
            with pytest.raises(ConnectionError):
                s.ask("a")

    def test_models_that_there_are_not_are_one_label(self) -> None:
        with serving() as s:
            assert s.ask("made-up").status == 404
            text = send(f"{s.url}/metrics", None, method="GET").body.decode()
        assert 'marft_requests_total{model="unknown",status="404"} 1.0' in text
        assert "made-up" not in text

    @pytest.mark.parametrize("error", [RuntimeError("the key is sk-secret"), RequestError(504, "timeout", "too long")])
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("model", ["team", "a"])
    def test_a_request_that_fails_is_told_so_and_counted_once(
        self, model: str, stream: bool, error: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:  # fmt: skip
        async def fail(*_: object) -> None:
            raise error

        with serving() as s:
            monkeypatch.setattr(s.app.handler, "answer", fail)
            answer = s.ask(model, stream=stream)
            text = send(f"{s.url}/metrics", None, method="GET").body.decode()
        body = events(answer.body)[-1] if stream and model == "team" else answer.table
        assert body["error"]["message"]
        assert "sk-secret" not in str(body)
        status = getattr(error, "status", 500)
        counted = [line for line in text.splitlines() if line.startswith("marft_requests_total")]
        assert counted == [f'marft_requests_total{{model="{model}",status="{status}"}} 1.0']

    def test_metrics_are_what_prometheus_reads(self) -> None:
        with serving() as s:
            s.ask()
            text = send(f"{s.url}/metrics", None, method="GET").body.decode()
        assert 'marft_requests_total{model="team",status="200"} 1.0' in text
        assert 'marft_request_seconds_count{model="team"} 1.0' in text
        assert 'marft_actions_total{agent="b"} 1.0' in text
        assert "marft_waiting 0.0" in text
        said = sum(len(one.tokens) for one in s.episodes[0].actions)
        assert f'marft_tokens_total{{kind="sampled",model="team"}} {said}.0' in text


class TestRecords:
    def test_sessions_are_written_with_their_ids_and_without_a_grade(self, tmp_path: Path) -> None:
        recorder = Recorder(tmp_path / "asked", lambda _: None)
        with serving() as s:
            s.ask(text="1 + 2?")
            s.ask("a")
            for episode in s.episodes:
                recorder.add_episode(episode)
        recorder.close()
        (file,) = (tmp_path / "asked").iterdir()
        again = read_episodes(file)
        assert [one.task.prompt for one in again] == ["1 + 2?", "1 + 2?"]
        assert [[a.tokens.tolist() for a in one.actions] for one in again] == [
            [a.tokens.tolist() for a in one.actions] for one in s.episodes
        ]
        assert all((one.stream, one.transitions, one.success) == ("serve", (), None) for one in again)
        assert len({one.task.id for one in again}) == 2

    def test_they_are_shown(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        said = io.StringIO()
        monkeypatch.setattr(show_command, "wide_console", lambda: Console(file=said, width=100))
        recorder = Recorder(tmp_path, lambda _: None)
        with serving() as s:
            s.ask(text="1 + 2?")
            recorder.add_episode(s.episodes[0])
        recorder.close()
        show_command.show_episodes(tmp_path, None, "", "", (), 3)
        shown = said.getvalue()
        for words in ("1 of 1 sessions", "1 + 2?", "a says 0", "b says 0", "terminated: not graded"):
            assert words in shown
        with pytest.raises(ValueError, match="no steps and no grade"):
            show_command.show_episodes(tmp_path, None, "", "", ("worst",), 3)

    def test_what_cannot_be_written_is_counted(self, tmp_path: Path) -> None:
        lost: list[int] = []
        recorder = Recorder(tmp_path / "asked", lost.append)
        with serving() as s:
            s.ask()
            (tmp_path / "asked").rmdir()
            (tmp_path / "asked").write_text("a file in its place")
            recorder.add_episode(s.episodes[0])
            recorder.close()
        assert lost == [1]

    def test_so_is_one_whose_task_no_file_can_name(self, tmp_path: Path) -> None:
        lost: list[int] = []
        recorder = Recorder(tmp_path / "asked", lost.append)
        recorder.add_episode(Episode(Task("\ud800", "1 + 2?"), "serve", 0, (), "failed"))
        recorder.close()
        assert lost == [1]


def test_who_leaves_the_queue_makes_room_there() -> None:
    async def queue() -> list[tuple[int, int]]:
        gate = AdmissionQueue(max_running=1, max_waiting=1)
        first, second = gate.enter(), gate.enter()
        await first.acquire()
        counts = [(gate.running, gate.waiting)]
        with pytest.raises(BusyError):
            gate.enter()
        second.release()
        third = gate.enter()
        first.release()
        await third.acquire()
        counts.append((gate.running, gate.waiting))
        third.release()
        return [*counts, (gate.running, gate.waiting)]

    assert asyncio.run(queue()) == [(1, 1), (1, 0), (0, 0)]
