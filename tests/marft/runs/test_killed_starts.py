"""A start in a run's own place, with that run's weights, that is killed at any moment: the weights are never lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from marft.config import RunSettings
from marft.runs.checkpoints import CheckpointManager, list_starts
from marft.runs.run_folder import RunFolder
from marft.runs.state import read_record
from marft.trainer.train import train
from tests.helpers import settings
from tests.marft.cli.test_cli import run as command
from tests.nights import BY_NIGHT, some
from tests.runs import finished
from tests.sources import ROOT

WEIGHTS = "policies/actor/adapter_model.safetensors"
MOMENTS = (*some(range(0, 20, 3), of=2), 1000)  # changes to the folder before the one that is not made
KILLED = """
    import os, shutil, signal, sys
    from pathlib import Path
    from marft.runs.run_folder import RunFolder
    from marft.common.callbacks import Callback
    from marft.rollout.local_runner import LocalRolloutRunner
    from marft.trainer.train import train
    from tests.helpers import settings

    LocalRolloutRunner(settings()).close()  # imports what the children would, each for itself

    class Stopping(Callback):
        def wants_stop(self):
            return True

    CHANGES, left = {"os.remove", "os.rename", "os.rmdir"}, [-1]

    def dying(event, arguments):
        if event in CHANGES and left[0] >= 0:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(dying)
    place, source = Path(sys.argv[1]), sys.argv[2]
    for moment in map(int, sys.argv[3:]):
        shutil.copytree(place / "test", place / str(moment) / "test")
        folder = RunFolder(place / str(moment) / "test")
        run = settings("tiny", folder.path.parent)
        child = os.fork()
        if child == 0:
            left[0] = moment
            train(run, folder, overwrite=True, start_from=folder.checkpoints / source, callbacks=[Stopping()])
            os._exit(0)
        os.waitpid(child, 0)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    """The same start, killed at one change to the folder or another; the last one was left alone."""
    place = tmp_path_factory.mktemp("killed")
    finished(place, "--training.steps", "1")
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(place), "step_000001", *map(str, MOMENTS)],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True,
    )  # fmt: skip
    return [RunFolder(place / str(moment) / "test") for moment in MOMENTS]


def settings_of(folder: RunFolder) -> RunSettings:
    return settings("tiny", folder.path.parent)


@pytest.mark.slow
@BY_NIGHT
def test_the_weights_are_whole_at_every_moment(killed: list[RunFolder]) -> None:
    """They once were nowhere but in memory between the old run's removal and the new one's first checkpoint."""
    wanted = (killed[0].checkpoints / "step_000001" / WEIGHTS).read_bytes()
    for folder in killed:
        whole = [path for path in folder.checkpoints.iterdir() if (path / "state.json").exists() and is_whole(path)]
        assert any((path / WEIGHTS).read_bytes() == wanted for path in whole), folder


def is_whole(path: Path) -> bool:
    try:
        return bool(read_record(path))
    except ValueError:
        return False


@pytest.mark.slow
@BY_NIGHT
def test_what_was_cut_short_goes_on_or_says_what_to_do(
    killed: list[RunFolder], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ends, told = [], tmp_path
    for number, original in enumerate(killed):
        folder = RunFolder(tmp_path / str(number) / "test")
        shutil.copytree(original.path, folder.path)
        new = bool(folder.initial_checkpoint())
        try:
            train(settings_of(folder), folder, resume=True)
            ends.append("goes on as the new run" if new else "goes on as the old run")
        except ValueError as error:
            (told,) = list_starts(folder.checkpoints)
            ends.append(
                "is told" if f"start it again, with --init-from {told} --overwrite" in str(error) else str(error)
            )
    assert list(dict.fromkeys(ends)) == ["goes on as the old run", "is told", "goes on as the new run"]
    wanted = (told / WEIGHTS).read_bytes()
    last = RunFolder(told.parents[1])
    options = ("--overwrite", "--init-from", str(told), "--checkpoints.keep_last", "9")
    assert "trained 2 steps" in command(capsys, "train", str(last.path), *options)
    assert (last.checkpoints / "step_000000" / WEIGHTS).read_bytes() == wanted
    assert list_starts(last.checkpoints) == []


@pytest.mark.slow
@BY_NIGHT
def test_a_start_that_could_not_be_written_leaves_the_old_run_whole(
    killed: list[RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(killed[0].path, tmp_path / "test")
    folder = RunFolder(tmp_path / "test")
    files = sorted(folder.path.rglob("*"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        train(settings_of(folder), folder, overwrite=True, start_from=folder.checkpoints / "step_000001")
    monkeypatch.undo()
    assert [path for path in sorted(folder.path.rglob("*")) if path.name != "run.lock"] == [
        path for path in files if path.name != "run.lock"
    ]
    assert CheckpointManager(folder, settings_of(folder).checkpoints).newest()[0] is not None
