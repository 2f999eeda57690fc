"""Commands whose standard output or error is closed, full, or read by nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from marft.cli import streams
from tests.nights import BY_NIGHT

FULL = Path("/dev/full")
TRAIN = (
    "train", "demo", "--models.base.path", "tiny", "--training.steps", "1", "--rollout.tasks_per_step", "1",
    "--rollout.samples_per_task", "2", "--algorithm.critic.warmup_steps", "0", "--evaluation.every", "0", "--name", "a",
)  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_is_lost() -> Iterator[None]:
    streams.STREAM_ERRORS.clear()
    yield
    streams.STREAM_ERRORS.clear()


def marft(words: str, folder: Path, redirected: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell → its status, and what comes on standard error."""
    whole = f"set -o pipefail; {sys.executable} -W ignore -m marft {words} {redirected}"
    env = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", "-c", whole], cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )


def test_what_nobody_reads_is_dropped_and_said_once() -> None:
    reading, writing = os.pipe()
    said = []
    out = streams.open_safe_stream(writing, 1, on_failure=lambda: said.append("lost"))
    out.write("one\n")
    out.flush()
    assert os.read(reading, 100) == b"one\n"
    os.close(reading)
    for _ in range(3):
        out.write("two\n")
        out.flush()
    assert said == ["lost"]
    assert isinstance(streams.STREAM_ERRORS[1], BrokenPipeError)
    os.close(writing)


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
def test_what_does_not_fit_is_dropped_and_later_writers_meet_no_error() -> None:
    descriptor = os.open(FULL, os.O_WRONLY)
    out = streams.open_safe_stream(descriptor, 1)
    out.write("one\n")
    out.flush()
    assert os.write(descriptor, b"by another library") > 0
    os.close(descriptor)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirected", "status", "said"),
    [
        ("> /dev/full", 2, "No space left on device; what it printed is not whole"),
        pytest.param(">&-", 2, "Bad file descriptor; what it printed is not whole", marks=BY_NIGHT),
        ("| head -1", 0, ""),
        ("2>&-", 0, ""),
        pytest.param("<&- > mine.toml", 0, "", marks=BY_NIGHT),
    ],
)
def test_a_command_whose_product_is_what_it_prints_fails_where_that_is_not_whole(
    redirected: str, status: int, said: str, tmp_path: Path
) -> None:
    done = marft("recipes demo", tmp_path, redirected)
    assert (done.returncode, said in done.stderr, bool(done.stderr)) == (status, True, bool(said))
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "redirected",
    [
        "| head -1",
        *(
            pytest.param(one, marks=BY_NIGHT)
            for one in (">&-", ">&- 2>&-", "> /dev/full", "2>/dev/full", "--json > /dev/full")
        ),
    ],
)
def test_a_run_goes_on_to_its_end_and_says_once_what_is_lost(redirected: str, tmp_path: Path) -> None:
    done = marft(" ".join(TRAIN), tmp_path, redirected)
    run = tmp_path / "runs" / "a"
    assert done.returncode == 0
    assert (run / "checkpoints" / "step_000001").is_dir()
    assert (run / "report.html").is_file()
    kept = run / "error.txt"
    said = done.stdout + done.stderr + (kept.read_text() if kept.is_file() else "")
    assert said.count("marft: cannot write to standard output") == ("2>" not in redirected)
    assert "Traceback" not in said
