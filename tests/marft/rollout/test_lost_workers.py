"""A worker process that is lost loses nothing but what ends it every time; none outlives the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from marft.agents.game import Attempt
from marft.common.errors import RunError
from marft.common.processes.child_process import MAX_LINE_BYTES, ChildProcess
from marft.common.types import Task
from marft.rollout.workers import worker_pool as crews
from marft.rollout.workers.worker_pool import worker_command
from marft.rollout.workers.worker_runner import WorkerRolloutRunner
from tests.crews import crew
from tests.helpers import until
from tests.marft.rollout.test_workers import NOTHING_LOST
from tests.nights import BY_NIGHT, NIGHT
from tests.sources import ROOT


def run_in(folder: Path, *overrides: str, processes: int = 2, **keys: object) -> WorkerRolloutRunner:
    environment = {"name": "tests.crews:Doomed", "folder": str(folder), **keys}
    return WorkerRolloutRunner(
        crew(
            folder,
            environment,
            "--rollout.timeout_seconds",
            "60",
            "--rollout.max_retries",
            "1",
            *overrides,
            processes=processes,
        )
    )


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerRolloutRunner]:
    with pytest.MonkeyPatch.context() as patch, run_in(tmp_path_factory.mktemp("doomed")) as made:
        patch.setattr(crews, "HEARTBEAT_SECONDS", 0.2)
        yield made


def attempts(*reasons: str) -> list[Attempt]:
    return [Attempt(Task(f"{reason}/{number}", "begin"), "train/0") for number, reason in enumerate(reasons)]


def is_there(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
class TestLostWorkers:
    @pytest.mark.parametrize(
        ("reason", "status", "said"),
        [
            ("killed", "failed", "the worker process that played it was killed (SIGKILL)"),
            ("exits", "failed", "the worker process that played it ended itself (exit status 3)"),
            ("garbles", "failed", "the worker process that played it sent what cannot be read, and was ended"),
            ("hangs", "timed_out", "the worker process that played it did not answer for over 6 s, and was ended"),
        ][: None if NIGHT else 1],
    )
    def test_what_ends_it_each_time_is_set_aside_and_what_was_beside_that_is_played_again(
        self, reason: str, status: str, said: str, rollouts: WorkerRolloutRunner, capfd: pytest.CaptureFixture[str]
    ) -> None:
        before = rollouts.usage()
        for link in rollouts._pool.connections:
            link.timeout_seconds = 6.0  # ticks
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rollouts._pool, "timeout_seconds", 6.0)
            poisonous, *others = rollouts.play(attempts(reason, "slow", "slow", "slow"))
        assert poisonous.status == status
        assert [(episode.status, episode.total_reward) for episode in others] == [("terminated", 1.0)] * 3
        ended = "2 worker processes, one after the other, ended with nothing else in it"
        assert poisonous.error == f"its task is set aside for the rest of the run: {ended}; {said}"
        lost = {name: rollouts.usage()[name] - before[name] for name in NOTHING_LOST}
        assert lost == {"workers_lost": 3.0, "episodes_retried": 3.0, "tasks_excluded": 1.0}
        (again,) = rollouts.play(attempts(reason))  # without losing anybody
        assert (again.status, again.error) == ("failed", poisonous.error)
        assert rollouts.usage()["workers_lost"] == before["workers_lost"] + 3
        until(lambda: all(link.ready for link in rollouts._pool.connections))
        if reason == "exits":
            assert "worker 0: " in (err := capfd.readouterr().err)
            assert "good bye" in err
            assert "\x1b" not in err

    @pytest.mark.skipif(not NIGHT, reason="a tenth of a minute: make nightly")
    def test_all_of_them_can_be_lost_at_once(self, rollouts: WorkerRolloutRunner) -> None:
        rollouts.excluded_tasks.clear()
        episodes = rollouts.play(attempts("killed", "killed", "slow", "slow"))
        assert [episode.status for episode in episodes] == ["failed"] * 2 + ["terminated"] * 2
        assert [episode.status for episode in rollouts.play(attempts("fine"))] == ["terminated"]

    def test_errors_in_an_environment_have_their_file_and_line(self, rollouts: WorkerRolloutRunner) -> None:
        broken, fine = rollouts.play(attempts("raises", "fine"))
        assert broken.error.startswith(
            "environment tests.crews:Doomed: step() raised RuntimeError: the world ends (crews.py:"
        )
        assert fine.status == "terminated"

    def test_no_worker_has_imported_torch(self, rollouts: WorkerRolloutRunner) -> None:
        (episode,) = rollouts.play(attempts("fine"))
        assert episode.transitions[0].observation.text == "begin"

    def test_what_cannot_be_sent_is_refused_by_name(self, rollouts: WorkerRolloutRunner) -> None:
        task = Task("odd", "begin", {"lock": threading.Lock()})
        with pytest.raises(ValueError, match=r"task 'odd' cannot be sent to another process .*workers = 0"):
            rollouts.play([Attempt(task, "train/0"), *attempts("fine")])
        assert [episode.status for episode in rollouts.play(attempts("fine"))] == ["terminated"]

    def test_an_error_in_the_engine_ends_the_play_as_it_is(
        self, rollouts: WorkerRolloutRunner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def boom(*_: object) -> None:
            raise RuntimeError("device lost")

        with monkeypatch.context() as patch:
            patch.setattr(rollouts.engine.engines["actor"], "_advance", boom)
            with pytest.raises(RuntimeError, match="device lost"):
                rollouts.play(attempts("fine", "fine"))
        assert [episode.status for episode in rollouts.play(attempts("fine"))] == ["terminated"]


@BY_NIGHT
@pytest.mark.slow
def test_a_worker_that_is_killed_in_the_middle_of_a_step_takes_all_that_it_started_along(tmp_path: Path) -> None:
    found: list[int] = []

    def kill() -> None:
        until(lambda: list(tmp_path.glob("stepping-fine-0-0")))
        found.extend(map(int, (tmp_path / "stepping-fine-0-0").read_text().split()))
        os.kill(found[0], signal.SIGKILL)

    with run_in(tmp_path, seconds=1.0) as rollouts:
        killer = threading.Thread(target=kill)
        killer.start()
        episodes = rollouts.play(attempts("fine", "fine"))
        killer.join()
        assert [episode.status for episode in episodes] == ["terminated"] * 2  # it was played again
        assert rollouts.usage()["episodes_retried"] == 1.0
        until(lambda: not any(map(is_there, found)), 5.0)


@pytest.mark.skipif(not NIGHT, reason="a tenth of a minute: make nightly")
@pytest.mark.slow
def test_all_that_is_called_off_at_a_time_closes_its_sessions_and_what_comes_then_is_played(tmp_path: Path) -> None:
    apart = ("--engine.kind", "process", "--engine.threads", "1")
    with run_in(tmp_path, *apart, seconds=2.0, closing=0.5, processes=1) as rollouts:
        rollouts.publish(0)
        begun = [rollouts.play_in_background([attempt]) for attempt in attempts("fine", "fine", "fine", "fine")]
        until(lambda: len(list(tmp_path.glob("stepping-*-0"))) == 4)
        rollouts.end(begun)
        assert len(list(tmp_path.glob("closed-*"))) == 4
        (again,) = rollouts.play_in_background(attempts("fine")).outcome.result(60.0)
        assert again.status == "terminated"


@pytest.mark.slow
def test_what_a_worker_cannot_have_is_said_as_it_would_be_in_one_process(tmp_path: Path) -> None:
    tools = ("--tools", "{files = {name = 'mcp', command = ['no-such-program']}}", "--agents.actor.tools", "['files']")
    with pytest.raises(ValueError, match=r"^tools.files: there is no program 'no-such-program'$"):
        run_in(tmp_path, *tools, processes=1)


@pytest.mark.slow
def test_workers_that_never_begin_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft.common.processes.child_process.BOOTSTRAP", "import sys; sys.exit(4)")
    with pytest.raises(RunError, match=r"a worker process ended itself \(exit status 4\) before it had begun"):
        run_in(tmp_path)


@BY_NIGHT
@pytest.mark.slow
def test_a_run_that_ends_while_a_worker_is_started_again_ends_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with run_in(tmp_path, processes=1) as rollouts:
        rollouts.play(attempts("killed"))
    assert not caplog.records


def test_what_a_worker_prints_without_end_comes_out_in_pieces(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("marft.common.processes.child_process.BOOTSTRAP", f"print('x' * {2 * MAX_LINE_BYTES + 7})")
    child = ChildProcess("worker 7", worker_command)
    assert child.wait_or_terminate() == "ended itself (exit status 0)"
    said = [line.removeprefix("worker 7: ") for line in capfd.readouterr().err.splitlines()]
    assert [len(piece) for piece in said] == [MAX_LINE_BYTES, MAX_LINE_BYTES, 7]


def test_a_process_whose_keeper_was_stopped_is_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft.common.processes.child_process.BOOTSTRAP", "import time; time.sleep(600)")
    child = ChildProcess("worker 7", worker_command)
    os.kill(child._process.pid, signal.SIGSTOP)
    closing = threading.Thread(target=child.close, daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    assert child._process.poll() is not None


STARTED = """
    import sys
    from pathlib import Path
    from marft.agents.game import Attempt
    from marft.rollout.local_runner import open_rollout_runner
    from marft.common.types import Task
    from tests.crews import crew

    folder = Path(sys.argv[1])
    run = crew(folder, {"name": "tests.crews:Doomed", "folder": str(folder), "seconds": 600.0}, processes=1)
    with open_rollout_runner(run) as rollouts:
        rollouts.play([Attempt(Task(f"fine/{n}", "begin"), "train/0") for n in range(2)])
"""


def started(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A run in the middle of two steps, with the ids of its worker and of what that has started."""
    run = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(STARTED), str(folder)], cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    until(lambda: len(list(folder.glob("stepping-*-0"))) == 2 or run.poll() is not None)
    assert run.poll() is None, run.communicate()[0]
    pids = [int(word) for note in folder.glob("stepping-*-0") for word in note.read_text().split()]
    assert len(set(pids)) == 3
    assert all(map(is_there, pids))
    return run, pids


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="test_processes.py kills one by day: make nightly")
def test_workers_end_with_the_run_even_where_it_is_killed(tmp_path: Path) -> None:
    run, pids = started(tmp_path)
    run.kill()
    run.communicate()
    until(lambda: not any(map(is_there, pids)), 5.0)


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="ten seconds: make nightly")
def test_ctrl_c_closes_sessions_and_ends_workers(tmp_path: Path) -> None:
    run, pids = started(tmp_path)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does
    said, _ = run.communicate(timeout=60.0)
    assert run.returncode
    assert said.strip().endswith("KeyboardInterrupt")
    assert said.count("Traceback") == 1
    assert len(list(tmp_path.glob("closed-*"))) == 2
    assert not any(map(is_there, pids))
