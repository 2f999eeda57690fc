"""The process of a site: what it answers, what it says and where, and when it stops."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import marft_lab.federated.site as site_module
from marft.common.errors import RunError
from marft.models.adapter_files import WEIGHTS_FILE
from marft.runs import lock
from marft_lab.federated.messages import Assignment, TrainFailure, TrainRequest, Update, pack_files, send, unpack_files
from marft_lab.federated.messages import receive as next_message
from marft_lab.federated.site import SiteFolder, SiteTrainer, StopAtStep
from tests.marft_lab.test_federated_sites import GIVEN, asked
from tests.runs import contents


def in_a_fork(do: Callable[[], None]) -> int:
    """A process that does it, and is killed after 20 s."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        with open(2, "w", buffering=1, closefd=False) as sys.stderr:
            do()
        status = 0
    finally:
        with suppress(OSError):
            os.write(2, traceback.format_exc().encode() if status else b"")
        os._exit(status)


def answers_of(folder: Path, *questions: TrainRequest) -> tuple[int, list[Any]]:
    """What the process of a site answers until it is left, or leaves → its exit status, and that."""
    here, there = socket.socketpair()

    def serve() -> None:
        here.close()
        site_module.main(there.detach())

    child, answers = in_a_fork(serve), list[Any]()
    there.close()
    here.settimeout(20)
    own = {"name": "north", "folder": str(folder), "recipe": str(folder / "none.toml"), "changes": {}}
    with here, suppress(OSError, EOFError):
        send(here, Assignment(own, {"id": "0123", "seed": 0, "steps": 4, "clip": 0.0, "noise": 0.0, "counts": False}))
        for question in questions:
            send(here, question)
            answers.append(next_message(here))
    return os.waitpid(child, 0)[1], answers


class TestTheProcessOfASite:
    def test_answers_until_its_coordinator_has_gone(self, tmp_path: Path) -> None:
        folder = tmp_path / "not" / "there"
        status, answers = answers_of(folder, *(TrainRequest(round_, 0, *pack_files(GIVEN)) for round_ in (1, 2)))
        assert status == 0
        assert [(type(one), one.round, unpack_files(one)) for one in answers] == [(Update, 1, {}), (Update, 2, {})]
        assert contents(folder / "given") == GIVEN
        rows = [json.loads(line) for line in (folder / "sent.jsonl").read_text().splitlines()]
        assert [(row["round"], row["file"]) for row in rows] == [(1, "about"), (2, "about")]

    def test_that_cannot_says_why_in_a_log_of_its_own(self, tmp_path: Path) -> None:
        status, answers = answers_of(
            tmp_path, TrainRequest(1, 2, *pack_files({"actor/words": b"1"})), TrainRequest(0, 0, *pack_files({})),
        )  # fmt: skip
        assert status == 0
        assert [(type(one), one.round) for one in answers] == [(TrainFailure, 1), (TrainFailure, 0)]
        said = (tmp_path / "site.log").read_text()
        assert "a file that is no adapter's: 'actor/words'" in said
        assert "none.toml" in said
        assert not (tmp_path / "sent.jsonl").exists()

    def test_begins_without_what_a_crash_left(self, tmp_path: Path) -> None:
        (tmp_path / ".unfinished-0123456789abcdef").mkdir()
        assert answers_of(tmp_path) == (0, [])
        assert not [*tmp_path.glob(".unfinished*")]

    def test_is_the_only_one_of_its_folder(self, tmp_path: Path) -> None:
        with lock.lock_folder(tmp_path / "site.lock"):
            status, answers = answers_of(tmp_path, TrainRequest(1, 0, *pack_files(GIVEN)))
        assert (status != 0, answers) == (True, [])
        assert "or give the site another folder" in (tmp_path / "site.log").read_text()

    def test_adds_all_that_it_says_to_its_log(self, tmp_path: Path) -> None:
        log = tmp_path / "site.log"
        log.write_text("before\n")

        def speak() -> None:
            free = os.dup(0)
            os.close(free)
            site_module._redirect_output(log)
            os.write(1, b"said\n")
            os.write(2, b"complained\n")
            assert os.dup(0) == free  # the log is open as these two alone

        assert os.waitpid(in_a_fork(speak), 0)[1] == 0
        assert log.read_text() == "before\nsaid\ncomplained\n"

    def test_has_a_log_that_nobody_else_may_read(self, tmp_path: Path) -> None:
        assert answers_of(tmp_path)[0] == 0
        assert (tmp_path / "site.log").stat().st_mode & 0o777 == 0o600


def test_a_site_answers_the_federation_that_it_is_in_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = TrainRequest(1, 0, *pack_files(GIVEN))
    answers = [
        site_module._handle_request(Assignment({}, {"id": id_}), question, SiteFolder(tmp_path))
        for id_ in ("0123", "4567")
    ]
    assert [type(one) for one in answers] == [Update, TrainFailure]
    assert [json.loads(line)["file"] for line in SiteFolder(tmp_path).sent_log.read_text().splitlines()] == ["about"]
    assert "is of another federation" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ValueError("a canary"), RunError("a canary"), OSError("a canary")])
def test_why_a_site_cannot_stays_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def learned(*_: Any) -> None:
        raise error

    monkeypatch.setattr(SiteTrainer, "train_round", learned)
    about = Assignment({}, {"id": "0123"})
    assert site_module._handle_request(about, asked(3, {"actor/words": b"1"}), SiteFolder(tmp_path)).round == 3
    assert "a canary" in capsys.readouterr().err


def test_what_leaves_a_site_has_a_line_as_in_the_ledger(tmp_path: Path) -> None:
    """Keys are in the order of their names there; and a line that was cut short takes no other with it."""
    place = SiteFolder(tmp_path)
    place.sent_log.write_text('{"round": 1}\n{"round": 2, "fi')
    site_module._log_sent(place, Update(2, {"norm": 1.0, "models": {}}, *pack_files({f"actor/{WEIGHTS_FILE}": b"123"})))
    assert place.sent_log.read_text().endswith("}\n")
    assert [json.loads(line) for line in place.sent_log.read_text().splitlines()] == [
        {"round": 1},
        {"round": 2, "file": f"actor/{WEIGHTS_FILE}", "bytes": 3, "digest": hashlib.sha256(b"123").hexdigest()},
        {
            "round": 2, "file": "about", "bytes": 27,
            "digest": hashlib.sha256(b'{"models": {}, "norm": 1.0}').hexdigest(),
        },
    ]  # fmt: skip


def test_training_stops_at_the_end_of_a_round_and_says_at_once_how_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(log, encoding="utf-8"))
    until = StopAtStep(1)
    assert not until.wants_stop()
    until.on_train_start(1, 4)
    assert until.wants_stop()
    until = StopAtStep(3)
    until.on_train_start(1, 4)
    until.on_step_end(2, {"reward": 0.25})
    assert not until.wants_stop()
    assert log.getvalue().decode().endswith(" step 2: reward 0.2500\n")
    until.on_step_end(3, {})
    assert until.wants_stop()
    assert log.getvalue().decode().endswith(" step 3: reward nan\n")
