"""Folders in which weights are handed to an engine: whose they are, and what happens where there is no room."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from marft.cli.errors import report_errors
from marft.common.processes import weight_transfer


def test_folders_that_nobody_holds_are_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_transfer, "SHARED_MEMORY", tmp_path)
    code = """
        import os, signal
        from pathlib import Path
        from marft.common.processes import weight_transfer
        weight_transfer.SHARED_MEMORY = Path(os.environ["SHARED_AT"])
        print(weight_transfer.SharedFolder().path, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env={**os.environ, "SHARED_AT": str(tmp_path)}, check=False,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    stale = Path(ended.stdout.strip())
    assert stale.is_dir()
    kept = weight_transfer.SharedFolder()
    assert not stale.exists()
    other = weight_transfer.SharedFolder()
    assert kept.path.is_dir()
    for folder in (kept, other, kept):  # closed twice, it closes nothing of anybody else's
        folder.close()
    assert not list(tmp_path.iterdir())


class TestHandover:
    def test_weights_are_written_to_disk_once_there_is_no_room_for_them_in_memory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(weight_transfer, "SHARED_MEMORY", tmp_path / "memory")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "disk"))
        for folder in ("memory", "disk"):
            (tmp_path / folder).mkdir()
        there = weight_transfer.WeightTransfer()

        def save(folder: Path) -> None:
            folder.mkdir()
            (folder / "adapter").write_text("weights", encoding="utf-8")
            if folder.is_relative_to(tmp_path / "memory"):
                raise OSError(errno.ENOSPC, "No space left on device")

        paths = [Path(there.write(name, save)) for name in ("1", "2")]
        assert all(path.is_relative_to(tmp_path / "disk") and (path / "adapter").is_file() for path in paths)
        assert not list(there.folders[0].path.iterdir()), "half of what had no room"
        there.close()
        assert not list((tmp_path / "memory").iterdir()) + list((tmp_path / "disk").iterdir())

    def test_weights_that_find_no_room_in_memory_at_one_time_are_all_written_to_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second is told so when the first has already moved to disk: that is no second failure."""
        monkeypatch.setattr(weight_transfer, "SHARED_MEMORY", tmp_path / "memory")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "disk"))
        for folder in ("memory", "disk"):
            (tmp_path / folder).mkdir()
        there, both = weight_transfer.WeightTransfer(), Barrier(2, timeout=10)

        def save(folder: Path) -> None:
            if folder.is_relative_to(tmp_path / "memory"):
                both.wait()
                raise OSError(errno.ENOSPC, "No space left on device")
            folder.mkdir()

        with ThreadPoolExecutor(2) as threads:
            paths = list(threads.map(lambda name: Path(there.write(name, save)), ("1", "2")))
        assert all(path.is_dir() and path.is_relative_to(tmp_path / "disk") for path in paths)
        assert len(there.folders) == 2
        there.close()

    def test_where_there_is_none_on_disk_either_the_run_ends_with_the_remedy(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It names where there is none: the command once said that the run's folder was full."""
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

        def save(_: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        there = weight_transfer.WeightTransfer()
        with pytest.raises(SystemExit), report_errors():
            there.write("1", save)
        said = capsys.readouterr().err
        assert f"could not be written to {tmp_path}: [Errno 28] No space left on device; make room there, or" in said
        there.close()
