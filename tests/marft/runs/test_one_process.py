"""One process a run: who is refused, and when a lock is free."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marft.config import RunSettings
from marft.runs import lock
from marft.runs.run_folder import RunFolder
from tests.marft.cli.test_cli import run as command
from tests.runs import contents


class TestOneProcess:
    @pytest.mark.slow
    def test_a_second_process_is_refused_and_told_who_is_at_work(
        self, capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder]
    ) -> None:
        _, folder = mine
        before = contents(folder.path)
        with folder.acquire_lock():
            for options in (("--resume",), ("--overwrite",)):
                text = command(capsys, "train", str(folder.path), *options, status=2)
                assert f"is at work: process {os.getpid()} on" in text
            del before["run.lock"]
            assert contents(folder.path).items() >= before.items()
        assert "2 steps were trained" in command(capsys, "train", str(folder.path), "--resume")

    def test_a_lock_dies_with_its_owner_also_where_the_owner_had_children(self, tmp_path: Path) -> None:
        script = f"""
            import os, time
            from pathlib import Path
            from marft.runs.run_folder import RunFolder
            with RunFolder(Path({str(tmp_path / "run")!r})).acquire_lock():
                os.fork()
                print("held\\n", end="", flush=True)  # by the parent; the child has let go of it
                time.sleep(600)
        """
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == ["held\n", "held\n"]
            with (
                pytest.raises(ValueError, match=f"process {process.pid} on"),
                RunFolder(tmp_path / "run").acquire_lock(),
            ):
                pass
            process.send_signal(signal.SIGKILL)
            process.wait()
            with RunFolder(tmp_path / "run").acquire_lock():
                assert json.loads((tmp_path / "run" / "run.lock").read_text())["pid"] == os.getpid()
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # the child, which is in no way at work
        assert not (tmp_path / "run").exists()

    def test_a_lock_file_that_its_owner_removed_is_nobodys(self, tmp_path: Path) -> None:
        with lock.lock_file(tmp_path / "run.lock"):
            (tmp_path / "run.lock").unlink()
            with lock.lock_file(tmp_path / "run.lock"):
                pass

    @pytest.mark.parametrize("replace", [False, True])
    def test_nobody_else_gets_a_run_whose_lock_file_was_deleted_or_replaced(
        self, replace: bool, mine: tuple[RunSettings, RunFolder]
    ) -> None:
        folder = mine[1]
        with folder.acquire_lock():
            (folder.path / "run.lock").unlink()
            if replace:
                (folder.path / "run.lock").write_text("")
            for again in (folder, RunFolder(folder.path)):
                with pytest.raises(ValueError, match="is at work: another process"), again.acquire_lock():
                    pass
        with folder.acquire_lock():
            pass

    @pytest.mark.parametrize(
        ("host", "pid", "free"), [("here", 2**22 + 1, True), ("here", 1, False), ("there", 1, False)]
    )
    def test_without_locks_an_owner_is_gone_when_its_process_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, pid: int, free: bool
    ) -> None:
        def unsupported(*_: Any) -> None:
            raise OSError(lock.errno.ENOLCK, "No locks available")

        monkeypatch.setattr(lock.fcntl, "flock", unsupported)
        monkeypatch.setattr(lock.socket, "gethostname", lambda: "here")
        (tmp_path / "run.lock").write_text(json.dumps({"pid": pid, "host": host, "since": "yesterday"}))
        if free:
            with lock.lock_file(tmp_path / "run.lock"):
                pass
            return
        with (
            pytest.raises(ValueError, match=rf"process {pid} on {host}, since yesterday.*delete"),
            lock.lock_file(tmp_path / "run.lock"),
        ):
            pass

    @pytest.mark.parametrize("make", [lambda path: path.symlink_to(path.with_name("thesis.tex")), os.mkfifo])
    def test_what_is_no_file_of_the_runs_is_not_written_to(self, tmp_path: Path, make: Callable[[Path], Any]) -> None:
        """What a link in the lock's place led to was once emptied."""
        (tmp_path / "thesis.tex").write_text("years of work")
        make(tmp_path / "run.lock")
        with (
            pytest.raises(ValueError, match=r"run.lock is no file of the run's.*move it away"),
            lock.lock_file(tmp_path / "run.lock"),
        ):
            pass
        assert (tmp_path / "thesis.tex").read_text() == "years of work"

    def test_a_folder_that_is_taken_away_meanwhile_hides_no_other_error(self, tmp_path: Path) -> None:
        def lose() -> None:
            shutil.rmtree(tmp_path / "run")
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"), RunFolder(tmp_path / "run").acquire_lock():
            lose()
