"""What agents say, as it happens: episodes that are followed, and samples between the steps."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from marft.cli.terminal import TerminalCallback
from marft.runs import lock
from marft.runs.run_folder import RunFolder
from tests.helpers import settings
from tests.marft.cli.test_cli import run
from tests.marft.cli.test_obeyed import check, hostile_episode, terminal
from tests.marft.cli.test_show import episode, lost, record
from tests.nights import NIGHT


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(settings("tiny", tmp_path))
    record(made, 1, [episode(0, "the first")])
    record(made, 2, [episode(0, "the second"), episode(1, "worse", reward=0.25), lost(2, "boom (env.py:3)")])
    return made


def at_work(folder: RunFolder, process: int) -> None:
    owner = {"pid": process, "host": os.uname().nodename, "since": "now"}
    (folder.path / "run.lock").write_text(json.dumps(owner))


class TestFollowing:
    def test_a_run_that_nobody_trains_shows_its_last_step_and_ends(
        self, capsys: pytest.CaptureFixture[str], folder: RunFolder
    ) -> None:
        text = run(capsys, "show", str(folder.path), "--follow", "--worst", "--count", "1")
        assert "step 2" in text
        assert "worse" in text
        assert "the first" not in text
        assert "the second" not in text
        assert "1 of 3 episodes could not be scored" in text
        assert text.endswith(f"nobody trains {folder.path} now")

    def test_each_step_is_shown_as_it_is_recorded_and_the_end_of_the_run_is_the_end(
        self, capsys: pytest.CaptureFixture[str], folder: RunFolder
    ) -> None:
        at_work(folder, os.getppid())

        def train() -> None:
            time.sleep(0.8)
            record(folder, 3, [episode(0, "the third")])
            record(folder, 4, [episode(0, "the last")])
            (folder.path / "run.lock").write_text("")

        training = threading.Thread(target=train)
        training.start()
        text = run(capsys, "show", str(folder.path), "--follow", "--agent", "actor")
        training.join()
        order = [text.index(said) for said in ("the second", "the third", "the last", "nobody trains")]
        assert order == sorted(order)
        assert "0/reasoner/0 says" not in text

    def test_nobody_goes_by_a_role_that_nobody_has(self, capsys: pytest.CaptureFixture[str], folder: RunFolder) -> None:
        told = run(capsys, "show", str(folder.path), "--follow", "--agent", "actr", status=2)
        assert "nobody called 'actr' acted here; did you mean 'actor'?" in told

    @pytest.mark.slow
    def test_ctrl_c_ends_it(self, folder: RunFolder) -> None:
        at_work(folder, os.getpid())
        words = [sys.executable, "-m", "marft", "show", str(folder.path), "--follow", "--count", "1"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
            assert following.stdout is not None
            while "terminated" not in (line := following.stdout.readline()):
                assert line
            following.send_signal(signal.SIGINT)
            _, errors = following.communicate(timeout=60)
        assert (following.returncode, errors) == (130, "")

    def test_it_takes_no_single_step_or_task(self, capsys: pytest.CaptureFixture[str], folder: RunFolder) -> None:
        for words in (("--step", "1"), ("--task", "sum/1"), ("--worst", "--best")):
            assert "--follow shows every step as it comes" in run(
                capsys, "show", str(folder.path), "--follow", *words, status=2
            )

    def test_to_look_whether_a_run_is_at_work_is_not_in_its_way(self, folder: RunFolder) -> None:
        assert not folder.is_in_use()
        code = (
            "import sys; from pathlib import Path; from marft.runs import lock\n"
            "with lock.lock_file(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
        )
        words = [sys.executable, "-c", code, str(folder.path / "run.lock")]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            other.stdout.readline()
            assert folder.is_in_use()
            other.communicate()
        assert not folder.is_in_use()
        with lock.lock_file(folder.path / "run.lock"):
            assert not folder.is_in_use()  # of this process itself nothing has to be waited for


class TestSamples:
    def test_one_episode_of_every_so_many_steps_scrolls_by(self) -> None:
        watching = TerminalCallback(["reasoner", "actor"], sample_interval=2)
        watching.console = terminal()
        for step in (1, 2, 3):
            watching.on_episode(lost(0, "boom"))
            watching.on_episode(episode(0, f"said in {step}", reward=0.5))
            watching.on_episode(episode(1, "said later"))
            watching.on_step_end(step, {"reward": 0.5})
        written = re.sub(r"\x1b\[[0-9;]*m", "", watching.console.file.getvalue())  # type: ignore[attr-defined]
        assert "sample  What is 1 + 1?" in written
        assert "reasoner  the plan" in written
        assert "actor  said in 2" in written
        assert "reward  0.5 solved" in written
        assert "said in 1" not in written
        assert "said in 3" not in written
        assert "said later" not in written

    def test_why_episodes_were_dropped_stands_below_the_step(self) -> None:
        watching = TerminalCallback(["reasoner"])
        watching.console = terminal()
        for reason in ("boom", "bang", "boom"):
            watching.on_episode(lost(0, reason))
        watching.on_step_end(1, {"reward": 0.5, "episodes_dropped": 3.0})
        first = re.sub(r"\x1b\[[0-9;]*m", "", watching.console.file.getvalue())  # type: ignore[attr-defined]
        assert re.search(r"dropped  2 × .*boom\n.*dropped  1 × .*bang\n", first)
        watching.on_step_end(2, {"reward": 0.5})
        assert watching.console.file.getvalue().count("boom") == 1  # type: ignore[attr-defined]

    def test_nothing_that_agents_write_is_obeyed(self) -> None:
        watching = TerminalCallback(["reasoner"], sample_interval=1)
        watching.console = terminal()
        watching.on_episode(replace(hostile_episode(), status="terminated"))
        watching.on_step_end(1, {"reward": 1.0})
        assert "sample" in watching.console.file.getvalue()  # type: ignore[attr-defined]
        check(watching.console)

    @pytest.mark.slow
    @pytest.mark.skipif(not NIGHT, reason="two runs: make nightly")
    def test_the_command_and_the_recipe_say_how_often(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        (tmp_path / "recipe.toml").write_text(
            "[models.base]\npath = 'tiny'\n[policies.p]\nmodel = 'base'\n[[agents]]\nrole = 'solver'\npolicy = 'p'\n"
            "sampling = { max_new_tokens = 8 }\n[environment]\nname = 'reasoning_gym'\ndataset = 'chain_sum'\n"
            "[rollout]\ntasks_per_step = 1\nsamples_per_task = 2\n[training]\nsteps = 2\n"
            "[algorithm.critic]\nwarmup_steps = 0\n"
        )
        words = ("train", str(tmp_path / "recipe.toml"), "--output", str(tmp_path))
        assert " sample " in run(capsys, *words, "--samples", "1")
        assert " sample " not in run(capsys, *words, "--overwrite")
        assert "show_samples_every = 3" in run(capsys, *words, "--dry-run", "--samples", "3")
        again = run(capsys, "train", str(tmp_path / "recipe"), "--resume")
        assert "all 2 steps were trained before; for more: --training.steps 4" in again
