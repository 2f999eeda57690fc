"""Sends a run's episodes to a real receiver, MLflow's server, and looks at what arrived.

    python -m venv /tmp/mlflow && /tmp/mlflow/bin/pip install mlflow
    .venv/bin/python tools/tracing/mlflow_server.py runs/demo --mlflow /tmp/mlflow/bin

It starts the server on a free port with a new SQLite file, runs ``marft trace`` twice (what is sent again must not be
there twice), asks MLflow's client for every trace, and compares ids, names, parents, times, attributes and links with
what was sent. Exit status 1 and the differences where there are any.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marft.runs.episode_files import read_episodes
from marft_serve.tracing.episode_spans import Tracer
from marft_serve.tracing.recorded_episodes import Recording
from marft_serve.tracing.team_metadata import TeamMetadata

STARTS_WITHIN = 180  # seconds
ASK = """
import json, sys
import mlflow
mlflow.set_tracking_uri(sys.argv[1])
client, token, traces = mlflow.MlflowClient(), None, []
while True:
    page = client.search_traces(locations=["0"], max_results=100, page_token=token)
    traces += list(page)
    token = page.token
    if not token:
        break
spans = [
    {"trace": trace.info.trace_id.removeprefix("tr-"), "id": span.span_id, "parent": span.parent_id or "",
     "name": span.name, "type": span.span_type, "started": span.start_time_ns, "ended": span.end_time_ns,
     "attributes": dict(span.attributes), "links": sorted(link.span_id for link in span.links)}
    for trace in traces for span in trace.data.spans
]
tokens = [(trace.info.token_usage or {}).get("output_tokens", 0) for trace in traces]
print(json.dumps({"spans": spans, "tokens": tokens}))
"""


@contextmanager
def serving(mlflow: Path, folder: Path) -> Iterator[str]:
    """A server of MLflow's → its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    store = f"sqlite:///{folder / 'mlflow.db'}"
    words = [mlflow / "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--backend-store-uri", store]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen([*map(str, words), "--workers", "1"], stdout=log, stderr=log, start_new_session=True)
        try:
            _wait_for(f"{url}/health", server)
            yield url
        finally:
            server.terminate()
            server.wait(30)


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < until and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise SystemExit(f"MLflow's server did not start within {STARTS_WITHIN} s")


def expected(run: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """What a run's spans are, by their ids."""
    recording = Recording.from_folder(run)
    tracer = Tracer(
        recording.identity, TeamMetadata.from_file(run / "config.toml", run.resolve().name), include_content=True
    )
    return {
        (span.trace, span.id): {
            "parent": span.parent, "name": span.name, "started": span.start_time, "ended": span.end_time,
            "links": sorted(link.span for link in span.links), "attributes": span.attributes,
        }
        for file in recording.files for episode in read_episodes(file) for span in tracer.build_spans(episode)
    }  # fmt: skip


def differences(sent: dict[tuple[str, str], dict[str, Any]], there: list[dict[str, Any]]) -> Iterator[str]:
    """What did not arrive as it was sent."""
    ids = [(one["trace"], one["id"]) for one in there]
    if len(ids) != len(set(ids)):
        yield f"{len(ids) - len(set(ids))} spans are there twice"
    for missing in sorted(set(sent) - set(ids)):
        yield f"missing: {sent[missing]['name']} of trace {missing[0]}"
    for more in sorted(set(ids) - set(sent)):
        yield f"never sent: {more}"
    for one in there:
        span = sent.get((one["trace"], one["id"]))
        if span is None:
            continue
        for key in ("parent", "name", "started", "ended", "links"):
            if one[key] != span[key]:
                yield f"{span['name']}: {key} is {one[key]!r} and was sent as {span[key]!r}"
        for key, value in span["attributes"].items():
            if key.endswith(("messages", "instructions")):
                value = json.loads(value)
            if one["attributes"].get(key) != value:
                yield f"{span['name']}: {key} is {one['attributes'].get(key)!r} and was sent as {value!r}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("run", type=Path)
    arguments.add_argument("--mlflow", type=Path, required=True, help="bin folder of an environment that has MLflow")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving(given.mlflow.absolute(), Path(folder)) as url:
        command = [sys.executable, "-m", "marft", "trace", str(given.run), "--otlp", url, "--include-content"]
        for _ in range(2):
            began = time.perf_counter()
            subprocess.run([*command, "--header", "x-mlflow-experiment-id=0"], check=True)
            print(f"  in {time.perf_counter() - began:.1f} s")
        asked = subprocess.run(
            [given.mlflow / "python", "-W", "ignore", "-c", ASK, url], check=True, capture_output=True, text=True
        )
    found = json.loads(asked.stdout.splitlines()[-1])
    sent = expected(given.run)
    wrong = list(differences(sent, found["spans"]))
    types = sorted({one["type"] or "none" for one in found["spans"]})
    print(f"sent {len(sent)} spans; MLflow has {len(found['spans'])} in {len(found['tokens'])} traces")
    print(f"span types that it made of them: {', '.join(types)}; output tokens that it counts: {sum(found['tokens'])}")
    for line in wrong[:20]:
        print(line)
    if wrong:
        raise SystemExit(f"{len(wrong)} differences")
    print("all ids, names, parents, times, links and attributes are there as they were sent, each once")


if __name__ == "__main__":
    main()
