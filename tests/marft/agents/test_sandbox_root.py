"""What a jail shows of the machine: what Python needs, wherever that lies, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pydantic
import pytest

import marft
from marft.agents.sandbox import runner
from marft.agents.sandbox.runner import SandboxSettings, find_requirements, isolation_problem, run_python

pytestmark = pytest.mark.skipif(bool(isolation_problem()), reason=f"no isolation here: {isolation_problem()}")
am_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may")
PACKAGES = [str(Path(marft.__file__).parents[1]), str(Path(pydantic.__file__).parents[1])]
LEFT_OUT = shutil.ignore_patterns("site-packages", "test", "tests", "idlelib", "ensurepip", "config-*")

STANDARD_LIBRARY = {
    "threads": "from concurrent.futures import ThreadPoolExecutor as P\nprint(sum(P(4).map(lambda n: n * n, range(9))))",
    "processes": """
import multiprocessing
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(sum(pool.map(abs, [-100, -104])))""",
    "a Python in Python": """
import subprocess, sys
print(subprocess.run([sys.executable, "-c", "print(204)"], capture_output=True, text=True, env={}).stdout.strip())""",
    "an event loop": """
import asyncio, sys
async def main():
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(204)", stdout=-1)
    return (await asyncio.gather(child.communicate(), asyncio.sleep(0.01)))[0][0].decode().strip()
print(asyncio.run(main()))""",
    "files": """
import glob, os, pathlib, shutil, tempfile
with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile() as other:
    path = pathlib.Path(folder, "a")
    path.write_text("204")
    shutil.copy2(path, path.with_name("b"))
    shutil.copytree(folder, "copy")
    os.rename("copy", "moved")
    os.chmod("moved/b", 0o600)
    shutil.make_archive("packed", "xztar", "moved")
    print(open(glob.glob("moved/b")[0]).read())""",
    "a data base": """
import sqlite3
data = sqlite3.connect("file.db")
data.executescript("create table t (n); insert into t values (200), (4);")
print(data.execute("select sum(n) from t").fetchone()[0])""",
    "time and chance": """
import datetime, random, secrets, signal, time, uuid, zoneinfo
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.05)
signal.pause()
random.seed(1), secrets.token_hex(), uuid.uuid4(), time.process_time(), datetime.datetime.now().astimezone()
print(204)""",
    "shared memory": """
import mmap
from multiprocessing import Value, shared_memory
block = shared_memory.SharedMemory(create=True, size=100)
same = shared_memory.SharedMemory(block.name)
block.buf[0] = 204
print(same.buf[0])
same.close(), block.close(), block.unlink(), Value("i", 3), mmap.mmap(-1, 4096)""",
    "compiled modules": """
import bz2, ctypes, curses, decimal, hashlib, lzma, readline, resource, socket, ssl, unicodedata, zlib
print(len(bz2.compress(lzma.compress(zlib.compress(b"x" * 99)))) and 204)""",
    "locks and pipes": """
import fcntl, os, selectors, termios
r, w = os.pipe()
fcntl.lockf(open("a", "w"), fcntl.LOCK_EX), fcntl.fcntl(r, fcntl.F_SETFL, os.O_NONBLOCK)
selectors.DefaultSelector().register(r, 1)
os.mkfifo("b"), os.isatty(0), os.sched_getaffinity(0), os.statvfs("."), os.getloadavg, os.cpu_count(), os.nice(1)
print(204)""",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", STANDARD_LIBRARY)
def test_the_standard_library_works(what: str) -> None:
    ran = run_python(STANDARD_LIBRARY[what])
    assert (ran.outcome, ran.output, ran.errors) == ("finished", "204\n", "")


def test_nothing_is_shown_but_the_interpreter_its_libraries_and_its_standard_library() -> None:
    code = "import json, os\nprint(json.dumps([os.path.join(f, n) for f, _, ns in os.walk('/') for n in ns]))"
    shown = json.loads(run_python(code, SandboxSettings(output_kb=4096, timeout_seconds=30)).output)
    python = find_requirements()
    folders = tuple(f"{folder}/" for folder in python["folders"])
    others = {path for path in shown if not path.startswith(folders)}
    libraries = {f"/lib/{name}" for name in python["libraries"]}
    devices = {"/dev/null", "/dev/zero", "/dev/urandom"}
    assert others - {f"/lib64/{name}" for name in python["libraries"]} <= {
        *python["files"], *libraries, *devices, "/work/program.py",
    }  # fmt: skip
    assert not [path for path in shown if "-packages/" in path]
    assert len(python["folders"]) <= 4


@pytest.mark.parametrize("name", ["bin/sh", "usr/bin/env", "usr/share/doc", "proc", "sys", "etc", "home", "old", "new"])
def test_folders_of_the_machine_are_not_there(name: str) -> None:
    assert run_python(f"import os\nprint(os.path.lexists('/{name}'))").output == "False\n"


def test_nothing_that_is_shown_can_be_changed() -> None:
    places = [
        *find_requirements()["folders"],
        *find_requirements()["files"],
        "/lib/libc.so.6",
        "/lib",
        "/",
        "/dev",
        "/dev/null",
    ]
    code = f"""
import os
for place in {places!r}:
    for change in (lambda: open(place + "/new", "w"), lambda: os.chmod(place, 0o777), lambda: os.unlink(place),
                   lambda: os.rename(place, "/tmp/gone"), lambda: open(place, "r+b").truncate(0) if place != "/dev/null" else 1 / 0):
        try:
            change()
            print("changed", place)
        except (OSError, ZeroDivisionError):
            pass
"""
    assert run_python(code).output == ""


def test_the_mounts_cannot_be_undone() -> None:
    code = "import ctypes\nlibc = ctypes.CDLL(None)\nprint([libc.umount2(p, 2) for p in (b'/lib', b'/work', b'/')])"
    assert run_python(code).output == "[-1, -1, -1]\n"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python in a folder like ``~/.local``, among other people's files."""
    prefix = tmp_path_factory.mktemp("local")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = prefix / "lib" / version
    for folder in find_requirements()["folders"]:
        if Path(folder, "os.py").exists():
            shutil.copytree(folder, library, ignore=LEFT_OUT)
    for name, path in find_requirements()["libraries"].items():
        if name.startswith("libpython"):
            shutil.copy(path, prefix / "lib" / name)
    (prefix / "bin").mkdir()
    shutil.copy(find_requirements()["python"], prefix / "bin" / version)
    packages = [library / kind / "hushed" / "key" for kind in ("site-packages", "dist-packages")]
    for private in (prefix / "hushed", *packages, prefix / "lib" / "hushed.so"):
        private.parent.mkdir(parents=True, exist_ok=True)
        private.write_text("hush")
    for folder in [prefix, *prefix.parents][:3]:
        folder.chmod(0o755)
    return prefix / "bin" / version


class TestAnInterpreterElsewhere:
    """Its folders are shown, what lies beside them is not."""

    def told_by(self, python: str | Path, *before: str) -> Any:
        """What code in the jail of another interpreter sees."""
        code = "import os, sys, ssl, sqlite3\nprint([os.path.join(f, n) for f, _, ns in os.walk('/') for n in ns])\nprint(sys.executable)"
        source = f"from marft.agents.sandbox.runner import SandboxSettings, run_python\nprint(run_python({code!r}, SandboxSettings(output_kb=4096), files={{'a': b''}}))"
        done = subprocess.run(
            [*before, str(python), "-c", source], env={"PYTHONPATH": ":".join(PACKAGES), "PATH": os.environ["PATH"]},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "outcome='finished'" in done.stdout, done
        assert "'/work/a'" in done.stdout
        return done.stdout

    @pytest.mark.slow
    def test_one_in_a_temporary_folder_works_and_shows_no_neighbours(self, elsewhere: Path) -> None:
        told = self.told_by(elsewhere)
        assert str(elsewhere) in told
        assert "hushed" not in told

    @pytest.mark.slow
    @pytest.mark.parametrize("how", ["--symlinks", "--copies"])
    def test_one_of_a_virtual_environment_works(self, how: str, tmp_path: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", how, str(tmp_path / "venv")], check=True)
        (tmp_path / "venv" / "hushed").write_text("hush")
        told = self.told_by(tmp_path / "venv" / "bin" / "python")
        assert "hushed" not in told
        assert str(tmp_path) not in told

    @pytest.mark.slow
    @am_root
    def test_one_in_a_mounted_folder_works(self, elsewhere: Path, tmp_path: Path) -> None:
        prefix = elsewhere.parents[1]
        script = f'mount -t tmpfs none {tmp_path} && cp -a {prefix}/. {tmp_path} && exec "$@"'
        before = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
        told = self.told_by(tmp_path / "bin" / elsewhere.name, *before)
        assert str(tmp_path / "bin" / elsewhere.name) in told
        assert "hushed" not in told

    def test_the_working_folder_makes_room_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        other = {"files": {"/work/bin/python": ""}, "folders": {"/work/lib": ""}}
        monkeypatch.setattr(runner, "find_requirements", lambda: other)
        assert runner._build_order("", SandboxSettings(), "", {})["folder"] == "/_work"

    def test_one_among_everything_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runner, "find_requirements", lambda: {**find_requirements(), "folders": {"/usr": "/usr"}})
        ran = run_python("print(1)")
        assert (ran.outcome, ran.errors) == (
            "failed", "/usr: Python must not live there, for all of it would be shown\n",
        )  # fmt: skip

    def test_one_that_cannot_be_started_is_no_isolation(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "_base_executable", "/nowhere/python")
        with pytest.raises(ValueError, match="/nowhere/python does not say what it needs"):
            runner.find_requirements.__wrapped__()


class TestGroups:
    @am_root
    def test_code_is_in_no_supplementary_group(self) -> None:
        source = "from marft.agents.sandbox.runner import run_python\nprint(run_python('import os; print(os.getgroups())').output)"
        done = subprocess.run(
            [sys.executable, "-c", source], extra_groups=[27, 44], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "[]"

    @pytest.mark.skipif(os.getuid() == 0, reason="root may leave its groups")
    def test_what_an_ordinary_user_cannot_leave_has_no_name_inside(self) -> None:
        assert set(eval(run_python("import os; print(os.getgroups())").output)) <= {65534}
