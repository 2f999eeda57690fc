"""What is said of an error, case by case: whose it is, where, once, and what to do."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marft.cli import errors
from marft.cli.terminal import TerminalCallback
from marft.common.error_origin import error_location
from marft.common.errors import UserError
from marft.common.types import Task
from marft.config.interfaces.environment import Environment
from marft.config.plugins import Plugin, find_plugin
from marft.envs.tasks import read_tasks
from marft.runs.run_folder import parse_step

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def said(capsys: pytest.CaptureFixture[str], error: BaseException, run: Path | None = None) -> tuple[int, str]:
    """Exit status and sentence of a command that ends with an error."""

    def work() -> None:
        if run is not None:
            errors.set_run_folder(run)
        raise error

    with pytest.raises(SystemExit) as ended, errors.report_errors():
        work()
    return int(ended.value.code or 0), capsys.readouterr().err


def caused(error: Exception, by: Exception) -> Exception:
    error.__cause__ = by
    return error


class TestFiles:
    @pytest.mark.parametrize(
        ("number", "told"), [(errno.EDQUOT, "have the quota raised"), (errno.EFBIG, "larger files")]
    )
    def test_a_quota_is_a_full_disk_too(self, number: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
        status, text = said(capsys, OSError(number, "no", "somewhere"))
        assert status == 2
        assert f"{told} and go on (train and sft: --resume)" in text

    def test_a_full_disk_behind_another_error_is_what_is_said(self, capsys: pytest.CaptureFixture[str]) -> None:
        full = OSError(errno.ENOSPC, "full", "somewhere")
        for error in (RuntimeError("x"), ValueError("cannot read it")):
            status, text = said(capsys, caused(error, full))
            assert status == 2
            assert text.startswith("marft: cannot write: No space left on device (somewhere)")

    def test_a_disk_that_does_not_count_files_lacks_none(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_files=0, f_favail=0))
        assert "inodes" not in said(capsys, OSError(errno.ENOSPC, "full", "somewhere"))[1]
        monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_files=9, f_favail=0))
        assert "inodes" in said(capsys, OSError(errno.ENOSPC, "full", "somewhere"))[1]

    def test_a_file_that_a_users_part_may_not_open_is_its_fault(self, capsys: pytest.CaptureFixture[str]) -> None:
        status, text = said(capsys, PermissionError(errno.EACCES, "no", "theirs"))  # raised here, which is not ours
        assert status == 1
        assert "(test_sentences.py:" in text


class TestWhatIsKept:
    def test_a_run_with_checkpoints_goes_on_from_there(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        assert "--resume" not in said(capsys, KeyError("x"), tmp_path)[1]
        (tmp_path / "checkpoints" / "step_000001").mkdir(parents=True)
        assert (
            "Everything saved before is whole; --resume goes on from there." in said(capsys, KeyError("x"), tmp_path)[1]
        )

    def test_the_traceback_can_be_written_whatever_it_says(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["marft", "a word", "\ud83d"])
        said(capsys, RuntimeError("half \ud83d"))
        kept = Path("marft-error.txt").read_text(encoding="utf-8")
        assert "'a word' '\\ud83d'" in kept
        assert "half ?" in kept

    def test_the_part_that_is_named_is_the_innermost(self, capsys: pytest.CaptureFixture[str]) -> None:
        class Inner(Plugin):
            def work(self) -> None:
                raise KeyError("x")

        class Outer(Plugin):
            def work(self) -> None:
                Inner().work()

        with pytest.raises(SystemExit), errors.report_errors():
            Outer().work()
        assert "Inner" in (text := capsys.readouterr().err)
        assert "Outer" not in text


class TestThreads:
    def test_what_ends_a_thread_and_comes_back_is_said_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        error = OSError(errno.ENOSPC, "full", "somewhere")

        def work() -> None:
            raise error

        def wait() -> None:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            raise error

        with pytest.raises(SystemExit), errors.report_errors():
            wait()
        assert capsys.readouterr().err.count("No space left") == 1

    def test_threads_are_told_of_as_before_once_the_command_is_over(self) -> None:
        before = threading.excepthook
        with errors.report_errors():
            assert threading.excepthook is not before
        assert threading.excepthook is before


class TestPlaces:
    def test_the_line_is_the_last_one_of_the_users_own(self) -> None:
        def inner() -> None:
            raise KeyError("x")

        def outer() -> None:
            inner()

        with pytest.raises(KeyError) as caught:
            outer()
        assert error_location(caught.value) == f"test_sentences.py:{inner.__code__.co_firstlineno + 1}"

    def test_in_the_standard_library_it_is_the_line_that_called_it(self) -> None:
        with pytest.raises(ValueError, match="Expecting") as caught:
            json.loads("{")
        assert error_location(caught.value).startswith("test_sentences.py:")

    def test_of_an_installed_package_it_is_the_line_that_was_called(self, tmp_path: Path) -> None:
        package = tmp_path / "site-packages" / "theirs.py"
        code = compile("def call():\n    inside()\n\ndef inside():\n    raise KeyError('x')\n", str(package), "exec")
        held: dict[str, Any] = {}
        exec(code, held)
        with pytest.raises(KeyError) as caught:
            held["call"]()
        assert caught.value.__traceback__
        error = caught.value.with_traceback(caught.value.__traceback__.tb_next)  # as if MARFT had called
        assert error_location(error) == "theirs.py:2"

    def test_of_what_cannot_be_read_as_python_it_is_the_line_that_cannot(self) -> None:
        with pytest.raises(SyntaxError) as caught:
            compile("x = 1\ny = (\n", "/home/them/theirs.py", "exec")
        assert error_location(caught.value) == "theirs.py:2"

    def test_of_a_stop_that_no_coroutine_can_raise_it_is_where_that_was(self) -> None:
        with pytest.raises(StopIteration) as caught:
            next(iter(()))
        error = RuntimeError("coroutine raised StopIteration")
        error.__cause__ = caught.value
        assert error_location(error) == error_location(caught.value) != ""

    def test_a_users_own_refusal_of_its_tasks_says_where_it_was(self) -> None:
        class Choosy(Environment):
            def tasks(self, split: str) -> Any:
                raise ValueError(f"no {split} here")

            def start(self, task: Task, seed: int) -> Any:
                raise NotImplementedError

        with pytest.raises(ValueError, match=r"tasks\('train'\) raised ValueError: no train here \(test_sentences.py:"):
            read_tasks(Choosy(), "train")


STANDALONE = (  # programs that run without MARFT's modules: in a jail, or on another Python
    "inference/subprocess_engine/messages.py", "inference/subprocess_engine/server.py",
    "inference/subprocess_engine/vllm_server.py", "models/template_worker.py", "agents/sandbox/call_filter.py",
    "code/plain_values.py", "env_process/worker/",
)  # fmt: skip


class TestUserErrors:
    """What MARFT raises itself is the user's mistake; all else is a fault."""

    def test_marft_raises_no_bare_value_error(self) -> None:
        """Only a ``UserError`` is printed as it is: a ``ValueError`` counts as a fault."""
        sources = [path for path in ROOT.glob("packages/*/src/**/*.py") if "ValueError(" in path.read_text("utf-8")]
        bare = re.compile(r"^\s*(raise|return) ValueError\(", re.MULTILINE)
        assert [
            str(path)
            for path in sources
            if bare.search(path.read_text("utf-8")) and not any(part in str(path) for part in STANDALONE)
        ] == []

    def test_what_marft_raises_itself_is_one(self) -> None:
        with pytest.raises(UserError):
            find_plugin("environments", "nowhere")

    def test_what_comes_of_something_that_marft_calls_is_not(self) -> None:
        with pytest.raises(ValueError, match="none") as caught:
            parse_step(Path("step_none"))
        assert not isinstance(caught.value, UserError)


def test_a_second_ctrl_c_stops_at_once_and_the_handler_goes_with_the_terminal() -> None:
    before = signal.getsignal(signal.SIGINT)
    with TerminalCallback(["a"]) as terminal:
        signal.raise_signal(signal.SIGINT)
        assert terminal.wants_stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
