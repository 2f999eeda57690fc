"""``marft serve`` as a process: a run and an export answer as they were evaluated, and it ends when it is told."""

from __future__ import annotations

import io
import json
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console

from tests.nights import BY_NIGHT, NIGHT

pytest.importorskip("prometheus_client", reason="needs a server: pip install 'marft[serve]'")

from marft.cli import show as show_command
from marft.envs.tasks import read_tasks
from marft.evaluation.evaluate import evaluate
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.checkpoints import load_policies
from marft.runs.episode_files import list_serve_recordings, read_episodes
from marft.runs.export.exporter import export_run
from marft.runs.run_folder import RunFolder
from marft_serve.serving.recorder import SESSIONS_PER_FILE
from marft_serve.serving.settings import build_served_table, load_served_team
from tests.gateways import Response, send
from tests.helpers import recipe, until
from tests.servings import command

pytestmark = pytest.mark.slow


def ask(url: str, text: str, model: str = "team", **fields: object) -> Response:
    body = {"model": model, "temperature": 0, "messages": [{"role": "user", "content": text}], **fields}
    return send(f"{url}/v1/chat/completions", body, timeout=120)


@pytest.mark.parametrize("kind", ["run", "export"] if NIGHT else ["export"])
def test_it_answers_as_it_was_evaluated_and_ends_when_told(kind: str, trained: RunFolder, tmp_path: Path) -> None:
    run = trained.settings()
    tasks = read_tasks(run.environment, "test")[:6]
    with LocalRolloutRunner(run) as rollouts:
        load_policies(trained.saved_steps()[-1], rollouts.models, dict.fromkeys(run.trained_policies))
        rollouts.publish(0)
        expected = [episode.actions[-1].text for episode in evaluate(rollouts, "last", "greedy", tasks)[1]]
    path = trained.path if kind == "run" else export_run(trained, "last", tmp_path / "team")
    words = (str(path), "--checkpoint", "last", "--record", str(tmp_path / "asked"))
    with command(*words) as (url, process), ThreadPoolExecutor(6) as crowd:
        answers = list(crowd.map(lambda task: ask(url, task.prompt), tasks))
        assert [answer.said for answer in answers] == expected
        seeded = [ask(url, tasks[0].prompt, temperature=1, seed=seed).said for seed in (7, 7, 8, 9, 10)]
        assert seeded[0] == seeded[1]
        assert len(set(seeded)) > 1
        streamed = ask(url, tasks[0].prompt, temperature=1, seed=7, stream=True).body.decode()
        chunks = [json.loads(line[6:]) for line in streamed.split("\n") if line.startswith("data: {")]
        assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == seeded[0]
        asked = [crowd.submit(ask, url, task.prompt) for task in tasks]
        while "marft_running 0.0" in send(f"{url}/metrics", None, method="GET").body.decode():
            if all(one.done() for one in asked):
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        for one in asked:  # one whose connection was not taken any more was not begun
            if one.exception() is None:
                assert one.result().status == 200
            else:
                assert isinstance(one.exception(), ConnectionError)
        assert process.wait(60) == 0
    recorded = [episode for file in sorted((tmp_path / "asked").iterdir()) for episode in read_episodes(file)]
    assert len(recorded) == 12 + sum(one.exception() is None for one in asked)


@BY_NIGHT
def test_what_was_written_before_a_kill_is_shown(
    trained: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with command(str(trained.path), "--record", str(tmp_path)) as (url, process), ThreadPoolExecutor(16) as crowd:
        answers = list(
            crowd.map(lambda number: ask(url, f"{number} + 1 =", "actor", max_tokens=1), range(SESSIONS_PER_FILE))
        )
        assert {answer.status for answer in answers} == {200}
        until(lambda: list_serve_recordings(tmp_path))
        process.kill()
        process.wait()
    said = io.StringIO()
    monkeypatch.setattr(show_command, "wide_console", lambda: Console(file=said, width=100))
    show_command.show_episodes(tmp_path, None, "", "", (), 1)
    found = re.search(r"1 of (\d+) sessions", said.getvalue())
    assert found
    assert 1 <= int(found[1]) <= SESSIONS_PER_FILE


def test_a_team_with_tools_of_its_environment_is_not_served() -> None:
    table = recipe()
    table["agents"][0]["tools"] = ["environment"]
    with pytest.raises(ValueError, match=r"agents\.reasoner\.tools: those of the environment belong to its sessions"):
        build_served_table(table)


def test_what_is_neither_a_run_nor_an_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run"):
        load_served_team(tmp_path, "best")
