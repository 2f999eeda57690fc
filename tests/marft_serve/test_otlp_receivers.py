"""Sending traces: to receivers that take them, and what others can do about it."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceResponse,
)

from marft.common.callbacks import CallbackList
from marft.common.errors import RunError
from marft.config import load_recipe
from marft.runs.episode_files import read_episodes, write_episodes
from marft.runs.run_folder import RunFolder
from marft_serve.cli.traces import run_trace
from marft_serve.tracing.episode_spans import Tracer
from marft_serve.tracing.live_exporter import LiveExporter, TracingCallback
from marft_serve.tracing.receiver import ExportError, Receiver, build_traces_url, parse_headers
from marft_serve.tracing.recorded_episodes import Recording
from marft_serve.tracing.settings import TracingSettings
from tests.otlp import BEGAN, collecting, run_of, team
from tests.runs import contents, finished
from tests.sources import TESTS


def send(run: Path, otlp: str = "", **more: Any) -> None:
    """``marft trace``, with its defaults."""
    words = {"file": None, "headers": (), "timeout": 10.0, "content": False, **more}
    recording = Recording.from_folder(run, words.pop("step", 0), words.pop("task", ""))
    run_trace(recording, otlp, **words)


# to a receiver


def test_a_run_is_sent_whole_and_again_under_the_same_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path, [team(sample=n) for n in range(60)], steps=2)
    with collecting() as collector:
        send(run, collector.url, headers=["x-mlflow-experiment-id=0"])
        once = [(s.trace_id, s.span_id) for s in collector.spans]
        assert len(once) == len(set(once)) == 60 * 11
        assert capsys.readouterr().out.startswith(
            "60 episodes (660 spans) sent"
        )  # without a terminal, no line of a bar
        send(run, collector.url)
        assert {(s.trace_id, s.span_id) for s in collector.spans} == set(once)
    assert collector.headers[0]["x-mlflow-experiment-id"] == "0"


def test_steps_and_tasks_can_be_chosen(tmp_path: Path) -> None:
    run = run_of(tmp_path, [team(task=name, sample=n) for name in ("a", "b") for n in range(2)], steps=2)
    assert len(Recording.from_folder(run, step=2).files) == 1
    send(run, task="a#1", file=tmp_path / "one.jsonl")
    written = (tmp_path / "one.jsonl").read_text(encoding="utf-8").splitlines()
    (line,) = [json.loads(one) for one in written]
    roots = [s for s in line["resourceSpans"][0]["scopeSpans"][0]["spans"] if "parentSpanId" not in s]
    assert len(roots) == 1


def answers(*statuses: int, **headers: str) -> Callable[[int], tuple[int, dict[str, str], bytes]]:
    """One status after the other, the last for good."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda number: (statuses[min(number, len(statuses)) - 1], named if number == 1 else {}, b"")


def test_a_receiver_that_is_busy_is_asked_again_when_it_says() -> None:
    waits: list[float] = []
    with collecting(answer=answers(429, 503, 200, Retry_After="7")) as collector:
        assert Receiver(build_traces_url(collector.url), wait=waits.append).send(b"") == ""
    assert collector.asked == 3
    assert waits[0] == 7.0
    assert 0 < waits[1] < 7


@pytest.mark.parametrize(
    ("settings", "said", "asked"),
    [
        ({"answer": answers(500)}, "answered 500", 1),
        ({"answer": answers(429)}, r"answered 429 \(asked 3 times\)", 3),
        ({"answer": lambda _: (200, {"Content-Type": "text/html"}, b"<html>Welcome")}, "is this the address of one", 1),
        ({"answer": lambda _: (200, {}, b"\xff\xff\xff")}, "is this the address of one", 1),
        (
            {
                "answer": lambda _: (
                    200,
                    {"Content-Type": "application/json"},
                    b'{"partialSuccess":{"rejectedSpans":1e999}}',
                )
            },
            "is this the address of one",
            1,
        ),
        ({"answer": lambda _: (307, {"Location": "http://127.0.0.1:9/"}, b"")}, "answered 307", 1),
        ({"answer": lambda _: (302, {"Location": "http://["}, b"")}, "it cannot be asked: Invalid IPv6", 1),
    ],
    ids=["500", "429", "page", "garbage", "infinite", "redirect", "nowhere"],
)
def test_a_receiver_that_refuses_is_an_error_that_says_so(settings: dict[str, Any], said: str, asked: int) -> None:
    with collecting(**settings) as collector, pytest.raises(ExportError, match=said):
        Receiver(build_traces_url(collector.url), max_attempts=3, wait=lambda _: None).send(b"")
    assert collector.asked == asked


def test_a_receiver_that_hangs_or_is_not_there_is_not_waited_for_long() -> None:
    with collecting(hangs=threading.Event()) as collector, pytest.raises(ExportError, match=r"no answer within 0.05 s"):
        Receiver(build_traces_url(collector.url), timeout=0.05, max_attempts=2, wait=lambda _: None).send(b"")
    with pytest.raises(ExportError, match="refused"):
        Receiver(build_traces_url(collector.url), max_attempts=1).send(b"")


@pytest.mark.parametrize("host", ["a" * 64, "a..b", "b\u0430d"])
def test_a_name_that_no_host_can_have_is_an_error_that_says_so(host: str) -> None:
    with pytest.raises(ExportError, match="it cannot be asked"):
        Receiver(build_traces_url(f"http://{host}"), wait=lambda _: None).send(b"")


def test_a_receiver_with_a_certificate_of_its_own_is_asked_once_and_the_remedy_is_named() -> None:
    context, certificate = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), (TESTS / "self_signed.pem")
    context.load_cert_chain(certificate)

    def accept() -> None:
        with suppress(OSError), server.accept()[0] as peer:
            context.wrap_socket(peer, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        with pytest.raises(ExportError, match=r"not trusted \(self-signed certificate\); SSL_CERT_FILE"):
            Receiver(f"https://127.0.0.1:{server.getsockname()[1]}/v1/traces", timeout=10, max_attempts=3).send(b"")


def test_what_a_server_says_that_speaks_no_http_is_cut_short() -> None:
    def babble() -> None:
        with suppress(OSError), server.accept()[0] as peer:
            peer.recv(10_000)
            peer.sendall(b"x" * 2000 + b"\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=babble, daemon=True).start()
        with pytest.raises(ExportError) as caught:
            Receiver(f"http://127.0.0.1:{server.getsockname()[1]}/v1/traces", timeout=10, max_attempts=1).send(b"")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nA: "], ids=["status", "header"])
def test_a_receiver_that_begins_to_answer_for_ever_is_not_waited_for(head: bytes) -> None:
    over = threading.Event()

    def drip() -> None:
        with suppress(OSError), server.accept()[0] as peer:
            peer.sendall(head)
            while not over.wait(0.02):
                peer.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        with pytest.raises(ExportError, match=r"no answer within 0.1 s"):
            Receiver(f"http://127.0.0.1:{server.getsockname()[1]}/v1/traces", timeout=0.1, max_attempts=1).send(b"")
        over.set()
        thread.join(5)


def test_what_a_receiver_left_out_is_told_and_no_secret_with_it() -> None:
    told = ExportTraceServiceResponse()
    told.partial_success.rejected_spans, told.partial_success.error_message = 3, "too old for key-12345678"
    for kind, body in (
        ("application/x-protobuf", told.SerializeToString()),
        ("application/json", json.dumps(MessageToDict(told)).encode()),
    ):
        with collecting(answer=lambda _, kind=kind, body=body: (200, {"Content-Type": kind}, body)) as collector:
            said = Receiver(build_traces_url(collector.url), {"api-key": "key-12345678"}).send(b"")
        assert said == "3 spans: too old for ***"


def test_an_export_that_ends_early_says_how_far_it_came(tmp_path: Path) -> None:
    run = run_of(tmp_path, [team(sample=n) for n in range(60)], steps=2)
    said = r"30 episodes \(330 spans\) sent, then no more: .* answered 500.* the same command sends them again"
    with collecting(answer=answers(200, 500)) as collector, pytest.raises(RunError, match=said):
        send(run, collector.url)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, "say where to"),
        ({"otlp": "localhost:4318"}, "is no address of a receiver"),
        ({"otlp": "http://h", "headers": ["no equals"]}, "written as name=value"),
        ({"otlp": "http://h", "step": 9}, "recorded no episodes of step 9"),
        ({"file": Path("new.jsonl"), "task": "t-2"}, "did you mean 't-1'"),
    ],
    ids=["nowhere", "address", "header", "step", "task"],
)
def test_what_cannot_be_sent_is_refused(
    words: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=said):
        send(run_of(tmp_path, [team(task="t-1")]), **words)
    assert not list(tmp_path.glob("new.jsonl*"))


def test_sessions_that_were_served_are_sent_too(tmp_path: Path) -> None:
    for number in (1, 2):
        session = replace(team(task=f"request-{number}"), stream="serve", status="paused", transitions=())
        write_episodes(tmp_path / f"sessions-20260101T000000-{number:06d}.parquet", [session])
    send(tmp_path, file=tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out").read_text(encoding="utf-8").splitlines()]
    traces = {s["traceId"] for line in lines for s in line["resourceSpans"][0]["scopeSpans"][0]["spans"]}
    assert len(traces) == 2
    with pytest.raises(ValueError, match="have no steps"):
        send(tmp_path, step=1, file=tmp_path / "other")


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ValueError, match="is there already"):
        send(run_of(tmp_path, [team()]), file=tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "mine"


def test_headers_come_from_the_environment_as_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x=1")
    assert parse_headers(["x=2"]) == {"api-key": "a b", "x": "2"}


def test_a_recording_without_beginnings_is_dated_by_its_file(tmp_path: Path) -> None:
    run = run_of(tmp_path, [replace(team(), start_time=0.0)])
    send(run, file=tmp_path / "out")
    span = json.loads((tmp_path / "out").read_text())["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert abs(int(span["endTimeUnixNano"]) / 1e9 - time.time()) < 600


def test_when_an_episode_began_is_recorded(tmp_path: Path) -> None:
    write_episodes(tmp_path / "e.parquet", [team()])
    assert read_episodes(tmp_path / "e.parquet")[0].start_time == BEGAN


# live


def receiver(url: str, **more: Any) -> TracingSettings:
    return TracingSettings(otlp=url, **more)


def exporting(settings: TracingSettings, recipe: dict[str, Any] | None = None, hint: str = "") -> CallbackList:
    return CallbackList([TracingCallback(settings, "r", recipe or {}, hint)])


def test_episodes_are_sent_while_they_are_played(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as collector:
        with exporting(receiver(collector.url), {"name": "demo"}) as observer:
            for n in range(200):
                observer.on_episode(team(sample=n))
            observer.on_step_end(1, {})
        assert len({s.trace_id for s in collector.spans}) == 200
    assert not caplog.records


@pytest.mark.parametrize("content", [False, True])
def test_what_was_said_is_sent_live_only_where_it_is_asked_for(content: bool) -> None:
    with collecting() as collector:
        with exporting(receiver(collector.url, include_content=content)) as observer:
            observer.on_episode(team("a secret"))
        (request,) = collector.requests
    assert ("a secret" in str(request)) == content


def test_as_many_episodes_wait_for_a_receiver_as_settings_say(caplog: pytest.LogCaptureFixture) -> None:
    live = LiveExporter(Tracer("r"), "http://127.0.0.1:9", queue_size=2)
    live.close()  # nobody takes any more
    for n in range(5):
        live.add_episode(team(sample=n))
    assert (live.dropped, live.problem) == (3, "it does not keep up: 2 episodes wait for it")
    with collecting(hangs=threading.Event()) as collector:
        settings = receiver(collector.url, max_queued_episodes=1, timeout_seconds=0.1)
        with exporting(settings) as observer:
            for n in range(200):
                observer.on_episode(team(sample=n))
            collector.hangs and collector.hangs.set()
    assert any("1 episodes wait for it" in text for text in caplog.messages)


def test_of_what_was_lost_the_first_reason_is_told_and_what_had_been_sent_is_not_counted() -> None:
    with collecting(answer=answers(200, 400)) as collector:
        live = LiveExporter(Tracer("r"), collector.url)
        for n in range(60):  # more than a request holds
            live.add_episode(team(sample=n))
        live.close()
    assert live.sent > 0
    assert live.sent + live.dropped == 60
    assert "it answered 400" in live.problem


def test_a_receiver_that_hangs_holds_nobody_up_and_is_counted() -> None:
    with collecting(hangs=threading.Event()) as collector:
        live = LiveExporter(Tracer("r"), collector.url, timeout=5.0, queue_size=8)
        for n in range(100):
            live.add_episode(team(sample=n))
        live.close(seconds=0.05)
        assert (live.sent, live.dropped) == (0, 100)
        assert live.problem


def test_a_receiver_that_fails_is_said_once_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with exporting(receiver("http://127.0.0.1:9")) as callbacks:
        (tracing,) = callbacks
        assert isinstance(tracing, TracingCallback)
        tracing.exporter.problem = "it answered 500"
        for step in range(3):
            callbacks.on_step_end(step, {})
    assert caplog.messages == ["traces: it answered 500. The run goes on, and this is said once"]


def test_what_was_lost_is_counted_at_the_end_with_how_to_send_it_later(caplog: pytest.LogCaptureFixture) -> None:
    with (
        collecting(answer=answers(500)) as collector,
        exporting(receiver(collector.url), hint=". Later: …") as observer,
    ):
        for n in range(3):
            observer.on_episode(team(sample=n))
    said = f"{collector.url}/v1/traces: it answered 500. Later: …"
    assert caplog.messages[-1] == f"traces: 3 episodes were not sent to {collector.url}: {said}"


@pytest.mark.slow
def test_a_run_learns_the_same_with_a_receiver_and_what_it_sends_is_what_is_recorded(tmp_path: Path) -> None:
    with collecting() as collector:
        sent = finished(tmp_path / "sent", f"--tracing.otlp={collector.url}")[1]
        live = {(s.trace_id.hex(), s.span_id.hex()) for s in collector.spans}
    alone = finished(tmp_path / "alone")[1]
    weights = [contents(folder.saved_steps()[-1] / "policies") for folder in (sent, alone)]
    assert weights[0] == weights[1]
    tracer = Tracer(sent.read_id())
    recorded = [episode for file in sent.recorded_steps() for episode in read_episodes(file)]
    assert live == {(s.trace, s.id) for episode in recorded for s in tracer.build_spans(episode)}
    assert all(abs(episode.start_time - time.time()) < 600 for episode in recorded)


def test_without_a_receiver_nobody_listens(tmp_path: Path) -> None:
    run = load_recipe("demo", changes={"output": str(tmp_path)})
    assert TracingSettings().callbacks(run, RunFolder.create(run)) == ()


def test_a_receiver_in_a_recipe_is_an_address() -> None:
    with pytest.raises(ValueError, match="must look like http://localhost:4318"):
        load_recipe("demo", changes={"tracing.otlp": "localhost"})
    with pytest.raises(ValueError, match="put it into the environment variable OTEL_EXPORTER_OTLP_HEADERS"):
        load_recipe("demo", changes={"tracing.otlp": "http://me:secret@host"})
    with pytest.raises(ValueError, match="did you mean 'otlp'"):
        load_recipe("demo", changes={"tracing.oltp": "http://localhost:4318"})


def test_what_is_missing_to_send_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft_serve.tracing.otlp.find_spec", lambda _: None)
    run = run_of(tmp_path, [team()])
    with pytest.raises(ValueError, match=r"pip install .*marft.*\[otel\]"):
        send(run, "http://127.0.0.1:9")
    send(run, file=tmp_path / "out")
