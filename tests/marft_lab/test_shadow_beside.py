"""A shadow beside a server stands still while requests are answered, and whatever becomes of it the server goes on."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

pytest.importorskip("prometheus_client", reason="needs a server: pip install 'marft[serve]'")

from marft.envs.tasks import read_tasks
from marft.runs.run_folder import RunFolder
from marft_lab.cli import shadow
from marft_lab.shadow import supervisor
from marft_lab.shadow.settings import ShadowSettings
from marft_lab.shadow.setup import ShadowRequest, run_shadow
from marft_lab.shadow.supervisor import ShadowSupervisor
from marft_serve.serving.admission import AdmissionQueue
from tests.gateways import send
from tests.helpers import until
from tests.nights import BY_NIGHT
from tests.servings import command

pytestmark = pytest.mark.slow


def asked_for(team: str, folder: Path) -> ShadowRequest:
    return ShadowRequest(Path(team), "last", [], False, folder, folder)


def size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


@contextmanager
def beside_a_server(team: str, folder: Path, **fields: object) -> Iterator[ShadowSupervisor]:
    one = ShadowSupervisor(
        asked_for(team, folder), ShadowSettings.model_validate({"resume_after_idle_seconds": 0.05, **fields})
    )
    try:
        yield one
    finally:
        one.close()


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "PROCESS_MODULE", "tests.shadow_program")
    monkeypatch.setattr(supervisor, "RESTART_SECONDS", 0.05)


def grows(file: Path, seconds: float = 0.3) -> bool:
    before = size(file)
    time.sleep(seconds)
    return size(file) > before


def stopped(file: Path) -> bool:
    """Whether it stands still: a signal takes a moment."""
    time.sleep(0.1)
    return not grows(file)


class TestPauses:
    def test_it_stands_still_while_there_is_a_request_and_goes_on_when_there_is_none(self, tmp_path: Path) -> None:
        count = tmp_path / "count"

        async def serve(gate: AdmissionQueue) -> None:
            place = gate.enter()
            await place.acquire()
            assert stopped(count), "it is stopped in the middle of what it does"
            second = gate.enter()
            place.release()
            await asyncio.sleep(0.2)
            assert stopped(count), "another request is there"
            second.release()
            await asyncio.sleep(0.2)
            assert grows(count)

        with beside_a_server("counts", tmp_path) as one:
            until(lambda: size(count) > 0, 30)
            asyncio.run(serve(AdmissionQueue(2, 2, one.set_active_requests)))

    def test_one_that_begins_while_requests_are_answered_waits(self, tmp_path: Path) -> None:
        with beside_a_server("counts", tmp_path) as one:
            one.set_active_requests(1)
            time.sleep(1.0)
            assert stopped(tmp_path / "count")

    def test_it_goes_on_beside_requests_where_it_is_told_to(self, tmp_path: Path) -> None:
        with beside_a_server("counts", tmp_path, pause=False) as one:
            until(lambda: size(tmp_path / "count") > 0, 30)
            one.set_active_requests(1)
            assert grows(tmp_path / "count")


class TestEnds:
    def test_one_that_is_killed_starts_again_and_is_given_up_where_it_gets_nowhere(self, tmp_path: Path) -> None:
        with beside_a_server("dies", tmp_path) as one:
            one._thread.join(60)
            assert not one._thread.is_alive()
        assert size(tmp_path / "begun") == supervisor.MAX_RESTARTS

    def test_one_that_cannot_be_is_not_started_again(self, tmp_path: Path) -> None:
        with beside_a_server("refuses", tmp_path) as one:
            one._thread.join(60)
        assert size(tmp_path / "begun") == 1

    def test_it_ends_with_its_server_also_while_it_stands_still(self, tmp_path: Path) -> None:
        with beside_a_server("counts", tmp_path) as one:
            until(lambda: size(tmp_path / "count") > 0, 30)
            one.set_active_requests(1)
        assert not grows(tmp_path / "count")


def ask_all(url: str, run: RunFolder, count: int) -> None:
    for task in read_tasks(run.settings().environment, "test")[:count]:
        body = {"model": "team", "messages": [{"role": "user", "content": task.prompt}]}
        assert send(f"{url}/v1/chat/completions", body, timeout=120).status == 200


@pytest.fixture(scope="module")
def recorded(trained: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight sessions of a served team, with another one beside it."""
    folder = tmp_path_factory.mktemp("asked")
    words = (str(trained.path), "--checkpoint", "last", "--record", str(folder), "--shadow", str(trained.path))
    with command(*words, "--shadow.share", "0.5") as (url, process):
        ask_all(url, trained, 8)
        body = {"model": "actor", "messages": [{"role": "user", "content": "1 + 2 ="}]}
        assert send(f"{url}/v1/chat/completions", body, timeout=120).status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    return folder


@BY_NIGHT
def test_a_run_is_shadowed_by_another_and_goes_on_where_it_was_stopped(
    recorded: Path, trained: RunFolder, tmp_path: Path
) -> None:
    words = ["--shadow.min_sessions", "5", "--shadow.false_promotions", "0.0001", "--shadow.false_stops", "0.0001"]
    asked = ShadowRequest(trained.path, "last", words, False, recorded, tmp_path / "whole")
    whole = run_shadow(asked)
    assert (whole.verdict.sessions, whole.skipped.no_answer) == (8, 1)
    seen: list[object] = []

    def enough() -> bool:
        return len(seen) >= 3

    again = replace(asked, output=tmp_path / "cut")
    run_shadow(again, on_session=lambda *_: seen.append(1), stopped=enough)
    state = run_shadow(again)
    assert state.verdict == whole.verdict
    worth: Callable[[Path], list[object]] = lambda folder: [  # noqa: E731
        {**json.loads(line), "seconds": 0} for line in (folder / "sessions.jsonl").read_text().splitlines()
    ]
    assert worth(tmp_path / "cut") == worth(tmp_path / "whole")
    reports = [json.loads((tmp_path / name / "report.json").read_text()) for name in ("cut", "whole")]
    assert {**reports[0], "passed": 0} == {**reports[1], "passed": 0}
    assert (tmp_path / "cut" / "report.svg").read_text().startswith("<svg")


@BY_NIGHT
def test_the_command_says_what_it_found(
    recorded: Path, trained: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(file=io.StringIO(), width=160)
    monkeypatch.setattr("marft.cli.output.wide_console", lambda: console)
    words = ["--shadow.score", "agreement", "--shadow.margin", "0.5", "--shadow.share", "0.9"]
    asked = ShadowRequest(trained.path, "last", words, False, recorded, tmp_path)
    assert shadow.shadow(asked, "") in (True, False)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "hold" in said
    assert "is promoted in 5.0% of cases at most" in said
    with pytest.raises(ValueError, match="share"):
        shadow.shadow(replace(asked, overrides=[*words[:-1], "0.2"]), "")
