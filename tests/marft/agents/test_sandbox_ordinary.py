"""All that holds of the sandbox holds for an ordinary user too: its tests once more, as nobody."""

from __future__ import annotations

import os
import re
import shlex
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pydantic
import pytest

import marft
from tests.nights import NIGHT
from tests.sources import ROOT

FILES = sorted(Path(__file__).parent.glob("test_sandbox*.py"))
NOBODY = 65534
TOLD = re.compile(r"(\d+) passed")


def needed() -> list[Path]:
    """Folders that the tests read."""
    packages = {Path(pydantic.__file__).parents[1], Path(pytest.__file__).parents[1], Path(marft.__file__).parents[1]}
    python = {Path(sys.prefix), Path(sys.base_prefix), Path(os.path.realpath(sys.executable)).parents[1]}
    return sorted({ROOT, *packages, *python, *map(Path, site.getsitepackages())})


def opened(paths: list[Path], spare: str) -> list[str]:
    """Commands after which everybody can get to some folders that lie in private ones, in mounts of our own."""
    private = {parent for path in paths for parent in path.parents if not parent.stat().st_mode & 1}
    outermost = [folder for folder in private if not any(other in folder.parents for other in private)]
    commands = []
    for number, folder in enumerate(sorted(outermost)):
        inside = [path for path in paths if folder in path.parents]
        inside = [path for path in inside if not any(other in path.parents for other in inside)]
        stage = f"{spare}/stage/{number}"
        commands.append(f"mkdir -p {stage} && mount -t tmpfs -o mode=755 none {stage}")
        for path in inside:
            place = shlex.quote(f"{stage}/{path.relative_to(folder)}")
            commands.append(f"mkdir -p {place} && mount --rbind {shlex.quote(str(path))} {place}")
        commands.append(f"mount --rbind {stage} {shlex.quote(str(folder))}")
    return commands


@pytest.fixture
def spare() -> Iterator[str]:
    """Where the tests' own temporary files go: not over the machine's, for the checkout may lie there."""
    with tempfile.TemporaryDirectory() as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="half a minute: make nightly")
@pytest.mark.skipif(os.getuid() != 0, reason="we are an ordinary user already")
def test_every_test_of_the_sandbox_passes_as_nobody(spare: str) -> None:
    """With supplementary groups that it may not leave, and a folder for temporary files of its own."""
    files = [shlex.quote(str(path)) for path in FILES if path != Path(__file__)]
    commands = [
        f"umask 022 && mount -t tmpfs -o mode=1777 none {spare}",
        *opened(needed(), spare),
        f"cd {shlex.quote(str(ROOT))}",
        f"exec setpriv --reuid={NOBODY} --regid={NOBODY} --groups=27,44 {shlex.quote(sys.executable)} -m pytest "
        f"--noconftest -p no:cacheprovider -p no:xdist {' '.join(files)}",
    ]
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", " && ".join(commands)],
        capture_output=True, text=True, check=False,
        env={
            "HOME": spare, "TMPDIR": spare, "PATH": os.environ["PATH"],
            "HYPOTHESIS_STORAGE_DIRECTORY": f"{spare}/hypothesis",
        },
    )  # fmt: skip
    if "no isolation here" in done.stdout:
        pytest.skip("an ordinary user has no isolation here")
    passed = TOLD.search(done.stdout)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert passed
    assert int(passed[1]) > 150
