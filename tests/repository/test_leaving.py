"""A command ends when it is over, with the status that it has, whatever somebody's packages have left behind."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from tests.sources import ROOT

LEFT = {
    "thread": "threading.Thread(target=time.sleep, args=(600,)).start()",
    "pool": "ThreadPoolExecutor().submit(time.sleep, 600)",
    "process": "multiprocessing.get_context('fork').Process(target=time.sleep, args=(600,)).start()",
    "atexit": "atexit.register(time.sleep, 600)",
}
SCRIPT = """
import atexit, multiprocessing, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from marft.cli import main, shutdown
shutdown.EXIT_SECONDS = 0.2
def run():
    {left}
    print("over")
    sys.exit(3)
main.main = run
main.command()
"""


@pytest.mark.slow
@pytest.mark.parametrize("left", LEFT)
def test_what_is_left_keeps_no_command_from_ending(left: str) -> None:
    script = SCRIPT.format(left=LEFT[left])
    done = subprocess.run(  # which also waits until nobody can write to its pipe any more
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (3, "over\n"), done.stderr


def test_it_is_what_is_installed() -> None:
    scripts = tomllib.loads((ROOT / "packages" / "marft" / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "scripts"
    ]
    assert scripts["marft"] == "marft.cli.main:command"
