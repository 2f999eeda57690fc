"""Episodes to export, and a receiver of traces in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)

from marft.common.token_data import TokenSource
from marft.common.types import Episode, Observation, Task, ToolCall, Transition, VersionRange
from marft.config import load_recipe
from marft.runs.episode_files import write_episodes
from marft.runs.run_folder import RunFolder
from marft_serve.tracing.span import Span
from marft_serve.tracing.team_metadata import TeamMetadata
from tests.episodes import make_action

BEGAN = 1_700_000_000.25
CAST = TeamMetadata.from_table(load_recipe("demo").model_dump(mode="json"))


def team(text: str = "It is 5.", sample: int = 0, task: str = "t") -> Episode:
    """A reasoner, then an actor that sees it and uses a tool."""
    plan = replace(make_action("reasoner", text=text, sample=sample, task=task), started=0.1, ended=0.4)
    act = make_action(
        "actor", index=1, sees=(plan.id,), tokens=(1, 2, 3, 4, 5, 6), sample=sample, task=task, text="5",
        marks=(
            TokenSource.SAMPLED, TokenSource.SAMPLED, TokenSource.TOOL, TokenSource.TOOL, TokenSource.SAMPLED,
            TokenSource.SAMPLED,
        ),
    )  # fmt: skip
    call = ToolCall("add", '{"a": 2, "b": 3}', "5", seconds=0.1)
    written = 'I add. <tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    act = replace(
        act, intermediate_texts=(written,), calls=(call,), started=0.5, ended=1.0, versions=VersionRange(2, 3)
    )  # fmt: skip
    step = Transition(Observation("2 + 3 ="), 1.0, {"actor": 0.5}, {"right": 1.5, "short/actor": -0.5})
    return Episode(
        Task(task, "2 + 3 ="), "train/0", sample, (plan, act), "terminated", (step,), True, seconds=1.25,
        start_time=BEGAN
    )  # fmt: skip


def named(spans: Sequence[Span], name: str) -> Span:
    (found,) = [span for span in spans if span.name == name]
    return found


def run_of(folder: Path, recorded: Sequence[Episode], steps: int = 1) -> Path:
    """A run's folder with recorded episodes, the same number at each step."""
    path = RunFolder.create(load_recipe("demo", changes={"output": str(folder)})).path
    size = -(-len(recorded) // steps)
    for step in range(steps):
        write_episodes(path / "episodes" / f"step_{step + 1:06d}.parquet", recorded[step * size : (step + 1) * size])
    return path


@dataclass
class Collector:
    """A receiver in this process, which reads protobuf."""

    url: str = ""
    answer: Callable[[int], tuple[int, dict[str, str], bytes]] = lambda _: (200, {}, b"")
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    asked: int = 0
    hangs: threading.Event | None = None

    @property
    def spans(self) -> list[Any]:
        return [
            s for r in self.requests for whole in r.resource_spans for scope in whole.scope_spans for s in scope.spans
        ]


@contextmanager
def collecting(**settings: Any) -> Iterator[Collector]:
    collector = Collector(**settings)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.asked += 1
            if collector.hangs:
                collector.hangs.wait(5)
            status, headers, answer = collector.answer(collector.asked)
            if status == 200:
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                collector.headers.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(status)
            for name, value in {"Content-Type": "application/x-protobuf", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield collector
    finally:
        if collector.hangs:
            collector.hangs.set()
        server.shutdown()
        server.server_close()
        thread.join()


def spans_in(body: bytes) -> list[Any]:
    request = ExportTraceServiceRequest.FromString(body)
    return [s for whole in request.resource_spans for scope in whole.scope_spans for s in scope.spans]
