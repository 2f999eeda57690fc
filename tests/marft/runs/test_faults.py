"""What a command says when something goes wrong: one sentence, a file with the traceback, and no harm to what is saved."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marft.cli import errors
from marft.cli.main import main
from marft.config import to_toml
from marft.runs.checkpoints import CheckpointManager
from marft.runs.run_folder import RunFolder
from marft.runs.state import verify
from tests.helpers import settings
from tests.nights import some
from tests.sources import ROOT

PROMISED = "Everything saved before is whole; make room and go on (train and sft: --resume)"
OVERRIDE, SEARCH = 1 << 1, 1 << 2  # of capabilities(7): CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


def marft(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run ``marft`` in this process → exit status and what it said on stderr."""
    before, sys.argv = sys.argv, ["marft", *arguments]
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    return int(ended.value.code or 0), capsys.readouterr().err


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(tmp_path)


def recipe_in(folder: Path, *overrides: str) -> Path:
    path = Path("recipe.toml")
    path.write_text(to_toml(settings("tiny", folder, *overrides)))
    return path


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Any]:
    """Makes small disks: ``disk("size=1m")`` → its folder."""
    mounted: list[Path] = []

    def make(options: str) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
        if done.returncode:
            pytest.skip("only root may mount a small disk")
        mounted.append(folder)
        return folder

    if os.geteuid() or sys.platform != "linux":
        pytest.skip("only root may mount a small disk")
    yield make
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class TestFullDisks:
    @pytest.mark.slow
    @pytest.mark.parametrize(("options", "free"), some([("size=2m", 160), ("size=2m", 4), ("size=2m", 500)]))
    def test_a_disk_that_fills_up_is_one_sentence_and_the_run_goes_on_once_there_is_room(
        self, disk: Any, options: str, free: int, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = disk(options)
        filler = folder / "filler"
        filler.write_bytes(bytes(2**21 - free * 1024))
        recipe = recipe_in(folder)
        status, said = marft(capsys, "train", str(recipe))
        assert status == 2
        assert said.startswith("marft: cannot write: No space left on device")
        assert PROMISED in said
        assert said.count("\n") == 1, said
        for checkpoint in CheckpointManager(RunFolder(folder / "test"), settings().checkpoints).steps():
            verify(checkpoint)
        filler.unlink()
        begun = (folder / "test").exists()  # where there was no room for as much as a recipe, nothing is left
        status, said = marft(capsys, "train", *([str(folder / "test"), "--resume"] if begun else [str(recipe)]))
        assert status == 0, said
        assert [row["step"] for row in RunFolder(folder / "test").read_metrics()] == [1, 2]

    @pytest.mark.parametrize("inodes", [5, 9])
    def test_a_disk_without_inodes_says_so(self, disk: Any, inodes: int, capsys: pytest.CaptureFixture[str]) -> None:
        status, said = marft(capsys, "train", str(recipe_in(disk(f"size=50m,nr_inodes={inodes}"))))
        assert status == 2
        assert "No space left on device" in said
        assert "No inodes are left: it holds too many files. Everything saved before is whole" in said
        assert said.count("\n") == 1, said

    @pytest.mark.slow
    @pytest.mark.parametrize("call", [1, 3, 9])
    def test_whichever_write_fails_the_sentence_is_the_same(
        self, call: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Simulated where no disk can be mounted: the n-th time that something is synced, there is no room."""
        calls, sync = [0], os.fsync

        def fsync(descriptor: int) -> None:
            calls[0] += 1
            if calls[0] == call:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)
        status, said = marft(capsys, "train", str(recipe_in(tmp_path)))
        assert status == 2
        assert said.startswith("marft: cannot write: No space left on device")
        assert PROMISED in said
        assert not [path for path in tmp_path.rglob(".unfinished-*") if path.parent.name != "checkpoints"]


@pytest.fixture
def held_to_permissions() -> Iterator[None]:
    """Root that may write and read no more than permissions say, like anybody else."""
    if os.geteuid():
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root cannot give its rights up here")
    library, header, data = (
        ctypes.CDLL(None, use_errno=True),
        (ctypes.c_uint32 * 2)(0x20080522, 0),
        (ctypes.c_uint32 * 6)(),
    )
    library.capget(header, data)
    before = data[0]
    data[0] = before & ~OVERRIDE & ~SEARCH
    assert library.capset(header, data) == 0
    yield
    data[0] = before
    assert library.capset(header, data) == 0


def _typer_says(path: str) -> str:
    usage = "Usage: marft train [OPTIONS] {recipe}\nTry 'marft train --help' for help.\n\n"
    return f"{usage}Error: Invalid value for 'recipe': path '{path}' is not readable.\n"


class TestFoldersThatTakeNothing:
    def test_no_permission_to_write(
        self, held_to_permissions: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        closed = tmp_path / "closed"
        closed.mkdir()
        recipe = recipe_in(closed / "runs")
        closed.chmod(0o555)
        status, said = marft(capsys, "train", str(recipe))
        assert status == 2
        assert said.startswith("marft: cannot write: Permission denied")
        assert "choose another place (--output)" in said
        assert said.count("\n") == 1

    def test_a_recipe_that_may_not_be_read(
        self, held_to_permissions: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        recipe = recipe_in(tmp_path)
        recipe.chmod(0)
        status, said = marft(capsys, "train", str(recipe))
        assert status == 2
        assert said in ("marft: cannot read: Permission denied (recipe.toml)\n", _typer_says("recipe.toml"))

    def test_a_disk_that_can_only_be_read(self, disk: Any, capsys: pytest.CaptureFixture[str]) -> None:
        folder = disk("size=1m,ro")
        status, said = marft(capsys, "train", str(recipe_in(folder)))
        assert status == 2
        assert said.startswith("marft: cannot write: Read-only file system")
        assert "choose another place (--output)" in said

    def test_a_file_where_a_folder_should_be(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "taken").write_text("")
        for output in (tmp_path / "taken", tmp_path / "taken" / "below"):
            status, said = marft(capsys, "train", str(recipe_in(output)))
            assert status == 2
            assert "a file is where a folder should be" in said
            assert str(tmp_path / "taken") in said


THEIRS = """\
from marft.config.interfaces.credit import Credit
from marft.config.interfaces.environment import Environment


class Careless(Credit):
    def assign(self, inputs):
        return 1 / 0


class Chatty(Environment):
    def tasks(self, split):
        raise RuntimeError("[bold]no \\x1b[2J tasks[/bold]")

    def start(self, task, seed):
        return None


def reward(episode):
    return episode.nothing
"""


class TestFaults:
    @pytest.fixture(autouse=True)
    def _theirs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        (tmp_path / "their_parts.py").write_text(THEIRS)
        monkeypatch.syspath_prepend(str(tmp_path))
        yield
        sys.modules.pop("their_parts", None)

    def test_a_fault_in_a_users_part_names_part_file_and_line_and_leaves_its_traceback_beside_the_run(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        recipe = recipe_in(
            tmp_path, "--algorithm.credit", "{ name = 'their_parts:Careless' }", "--algorithm.critic.kind", "none"
        )
        status, said = marft(capsys, "train", str(recipe))
        assert status == 1
        assert said == (
            "marft: Careless.assign raised ZeroDivisionError: division by zero (their_parts.py:7). "
            f"The traceback is in {tmp_path / 'test' / 'error.txt'}; --debug prints it.\n"
        )
        kept = (tmp_path / "test" / "error.txt").read_text()
        assert "Traceback (most recent call last)" in kept
        assert "return 1 / 0" in kept

    @pytest.mark.parametrize("folder", ["", "run"])
    def test_a_traceback_may_hold_a_secret_and_is_its_owners_alone(
        self, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(name: str) -> None:
            if folder:
                errors.set_run_folder(tmp_path / folder)
            raise AssertionError(name)

        (tmp_path / "run").mkdir()
        monkeypatch.setattr("marft.cli.listings.list_algorithms", broken)
        assert marft(capsys, "algorithms")[0] == 1
        kept = tmp_path / "run" / "error.txt" if folder else Path("marft-error.txt")
        assert kept.stat().st_mode & 0o777 == 0o600

    def test_debug_prints_the_traceback_wherever_it_stands(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        given = ["train", str(recipe_in(tmp_path)), "--dry-run", "--environment", "{ name = 'their_parts:Chatty' }"]
        for words in (["--debug", *given], [*given, "--debug"]):
            status, said = marft(capsys, *words)
            assert status == 2
            assert "Traceback (most recent call last)" in said
        assert "Traceback" not in marft(capsys, *given)[1]

    def test_what_others_write_never_reaches_the_terminal_raw(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ("--dry-run", "--environment", "{ name = 'their_parts:Chatty' }")
        said = marft(capsys, "train", str(recipe_in(tmp_path)), *words)[1]
        assert "[bold]no �[2J tasks[/bold]" in said
        assert "\x1b" not in said
        assert "environment 'their_parts:Chatty'" in said
        assert "(their_parts.py:12)" in said

    def test_a_reward_function_that_raises_names_itself_and_its_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        rewards = "[{ name = 'function', call = 'their_parts:reward' }]"
        said = marft(capsys, "train", str(recipe_in(tmp_path)), "--rewards", rewards)[1]
        assert "reward term 'function' raised AttributeError: 'Episode' object has no attribute 'nothing'" in said
        assert "(their_parts.py:19)" in said

    def test_a_kept_traceback_holds_no_secret_that_was_typed(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(name: str) -> None:
            monkeypatch.setattr(sys, "argv", ["marft", "algorithms", "--x.options.api_key", "sk-123456789"])
            raise AssertionError("sk-123456789 is refused")

        monkeypatch.setattr("marft.cli.listings.list_algorithms", broken)
        marft(capsys, "algorithms")
        assert "'***'" in (kept := Path("marft-error.txt").read_text())
        assert "sk-123" not in kept

    def test_without_a_run_the_traceback_goes_to_the_current_folder(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(name: str) -> None:
            raise AssertionError("no such invariant")

        monkeypatch.setattr("marft.cli.listings.list_algorithms", broken)
        status, said = marft(capsys, "algorithms")
        assert status == 1
        assert said == (
            f"marft: {broken.__qualname__.replace('<locals>.', '')} raised AssertionError: no such invariant "
            f"(test_faults.py:{broken.__code__.co_firstlineno + 1}). The traceback is in marft-error.txt; "
            "--debug prints it.\n"
        )
        assert "no such invariant" in Path("marft-error.txt").read_text()

    def test_an_error_in_marft_alone_is_unforeseen_and_names_no_part(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("marft.cli.listings.list_algorithms", {}.__getitem__)  # raises without a line of its own
        status, said = marft(capsys, "algorithms")
        assert status == 1
        assert said == ("marft: unforeseen: KeyError: ''. The traceback is in marft-error.txt; --debug prints it.\n")

    def test_a_traceback_replaces_a_link_and_does_not_follow_it(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the link led to was once overwritten; in a folder for all, anybody can make one."""
        monkeypatch.setattr("marft.cli.listings.list_algorithms", lambda name: {}[name])
        Path("thesis.tex").write_text("years of work")
        Path("marft-error.txt").symlink_to("thesis.tex")
        assert marft(capsys, "algorithms")[0] == 1
        assert Path("thesis.tex").read_text() == "years of work"
        assert "KeyError" in Path("marft-error.txt").read_text()

    def test_where_nothing_can_be_kept_the_sentence_still_comes(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EACCES, "no")

        monkeypatch.setattr(errors, "write_file", refuse)
        with pytest.raises(SystemExit), errors.report_errors():
            raise KeyError("gone")
        assert " raised KeyError: 'gone'" in (said := capsys.readouterr().err)
        assert "--debug prints the traceback" in said

    def test_a_value_error_of_a_library_is_a_fault_and_not_the_users_mistake(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended, errors.report_errors():
            int("no number")
        assert ended.value.code == 1
        assert " raised ValueError: invalid literal for int()" in capsys.readouterr().err

    def test_where_no_folder_for_temporary_files_takes_any_it_is_said_and_not_a_second_error(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """One disk that is full has all of them. Torch asks for one as it is imported; the traceback of what nobody
        foresaw was to go there too."""

        def no_folder() -> str:
            raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/var/tmp']")

        monkeypatch.setattr(tempfile, "gettempdir", no_folder)
        with pytest.raises(SystemExit) as ended, errors.report_errors():
            tempfile.gettempdir()
        assert ended.value.code == 2
        assert "found in ['/tmp', '/var/tmp']: make room in one of them, or set TMPDIR" in capsys.readouterr().err
        monkeypatch.setattr(errors, "ERROR_FILE", tmp_path / "nowhere" / "there" / "error.txt")
        (tmp_path / "nowhere").write_text("")
        with pytest.raises(SystemExit), errors.report_errors():
            raise KeyError("odd")
        assert " raised KeyError: 'odd'" in capsys.readouterr().err

    def test_causes_that_go_in_a_circle_are_followed_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        """What asyncio passes on from a thread can be its own cause's context: the command once never ended."""
        first, second = KeyError("first"), KeyError("second")
        first.__cause__, second.__context__ = second, first
        with pytest.raises(SystemExit), errors.report_errors():
            raise first
        assert " raised KeyError: 'first'" in capsys.readouterr().err

    def test_a_very_long_message_is_cut(self, capsys: pytest.CaptureFixture[str]) -> None:
        error = OSError(errno.ENOSPC, "full", "x" * 10_000_000)
        with pytest.raises(SystemExit), errors.report_errors():
            raise error
        said = capsys.readouterr().err
        assert len(said) < 5000
        assert "more characters" in said

    def test_of_two_files_the_one_that_is_written_is_named(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit), errors.report_errors():
            raise OSError(errno.ENOSPC, "full", "from", None, "to")
        assert capsys.readouterr().err.startswith("marft: cannot write: No space left on device (to)")

    def test_a_thread_that_ends_is_a_sentence_too(self, capsys: pytest.CaptureFixture[str]) -> None:
        def work() -> None:
            raise OSError(errno.ENOSPC, "full", "somewhere")

        with errors.report_errors():
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        said = capsys.readouterr().err
        assert said.startswith("marft: cannot write: No space left on device (somewhere)")
        assert "Traceback" not in said

    def test_ctrl_c_is_nobodys_fault(self, capsys: pytest.CaptureFixture[str]) -> None:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it may be ignored
        try:
            with pytest.raises(KeyboardInterrupt), errors.report_errors():
                signal.raise_signal(signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, before)
        assert capsys.readouterr().err == ""
        assert not Path("marft-error.txt").exists()
