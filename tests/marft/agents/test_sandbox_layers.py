"""Each layer of the jail holds on its own: as the kernel tells it of a process in there, and with others taken away."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from marft.agents.sandbox import memory_monitor, root, runner
from marft.agents.sandbox.runner import JAIL_PATH, SandboxSettings, isolation_problem, run_python

isolated = pytest.mark.skipif(bool(isolation_problem()), reason=f"no isolation here: {isolation_problem()}")
ROOT = os.getuid() == 0
NOBODY = 65534
LIMITS = SandboxSettings(
    timeout_seconds=60,
    cpu_seconds=7,
    memory_mb=300,
    disk_mb=20,
    max_files=100,
    max_open_files=40,
    max_processes=6,
    output_kb=8,
)
WAITING = "import os, time\nprint('up', flush=True)\ntime.sleep(600)"
LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"


class Jail:
    """Code that waits in a jail, and what the kernel tells of it from outside."""

    def __init__(self, process: subprocess.Popen[bytes], settings: SandboxSettings) -> None:
        assert process.stdin
        assert process.stdout
        self.keeper = process.pid
        process.stdin.write(json.dumps(runner._build_order(WAITING, settings, "", {})).encode())
        process.stdin.close()
        assert process.stdout.readline() == b"up\n"
        *_, self.code = memory_monitor.find_descendants(process.pid)

    def file(self, name: str) -> str:
        return Path(f"/proc/{self.code}/{name}").read_text()

    def status(self) -> dict[str, list[str]]:
        return {
            name: value.split() for name, _, value in (line.partition(":") for line in self.file("status").splitlines())
        }


def files_of(process: int) -> dict[str, Path]:
    """What a process holds open: number → where that leads."""
    return {entry.name: entry.readlink() for entry in Path(f"/proc/{process}/fd").iterdir()}


def started(settings: SandboxSettings) -> Iterator[Jail]:
    """In the way of the runner; the keeper is given a secret and an open file, as if the runner had forgotten both;
    the file has a high number too."""
    with (
        Path(__file__).open(encoding="utf-8") as leaked,
        os.fdopen(fcntl.fcntl(leaked, fcntl.F_DUPFD, min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1))) as high,
        subprocess.Popen(
            [sys.executable, "-I", "-S", str(JAIL_PATH), str(os.getpid())], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"SECRET": "hush"}, cwd="/", pass_fds=[leaked.fileno(), high.fileno()], start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            yield Jail(process, settings)
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def jail() -> Iterator[Jail]:
    yield from started(LIMITS)


@pytest.fixture(scope="module")
def limited() -> Iterator[Jail]:
    yield from started(LIMITS.model_copy(update={"isolation": "none"}))


@isolated
class TestTheProcess:
    """What the kernel says of a process in the jail."""

    @pytest.mark.parametrize("kind", ["user", "pid", "net", "ipc", "uts", "mnt"])
    def test_it_has_namespaces_of_its_own(self, jail: Jail, kind: str) -> None:
        assert Path(f"/proc/{jail.code}/ns/{kind}").readlink() != Path(f"/proc/self/ns/{kind}").readlink()

    @pytest.mark.parametrize("kind", ["Inh", "Prm", "Eff", "Bnd", "Amb"])
    def test_it_has_no_capability_and_can_get_none(self, jail: Jail, kind: str) -> None:
        assert int(jail.status()[f"Cap{kind}"][0], 16) == 0

    def test_it_gets_no_new_privileges_and_is_filtered(self, jail: Jail) -> None:
        status = jail.status()
        assert (status["NoNewPrivs"], status["Seccomp"]) == (["1"], ["2"])

    def test_it_is_nobody_or_who_asked(self, jail: Jail) -> None:
        status = jail.status()
        assert status["Uid"] == [str(NOBODY if ROOT else os.getuid())] * 4
        assert status["Gid"] == [str(NOBODY if ROOT else os.getgid())] * 4
        assert not ROOT or status["Groups"] == []

    def test_no_more_users_are_mapped_than_needed(self, jail: Jail) -> None:
        assert jail.file("setgroups") == "deny\n"
        for which, own in (("uid", os.getuid()), ("gid", os.getgid())):
            rows = [[int(number) for number in row.split()] for row in jail.file(f"{which}_map").splitlines()]
            assert rows == [[0, own, 1], *([[1000, NOBODY, 1]] if ROOT else [])]

    def test_each_limit_is_one_that_it_cannot_raise(self, jail: Jail) -> None:
        limits = {line[:26].strip(): line[26:].split()[:2] for line in jail.file("limits").splitlines()}
        expected = {
            "Max cpu time": 7, "Max address space": 300 << 20, "Max file size": 20 << 20, "Max open files": 40,
            "Max core file size": 1, "Max locked memory": 0, "Max msgqueue size": 0, "Max pending signals": 64,
            "Max processes": 6 if ROOT else 8,
        }  # fmt: skip
        assert {name: limits[name] for name in expected} == {name: [str(n)] * 2 for name, n in expected.items()}

    def test_it_has_no_files_but_those_of_its_own(self, jail: Jail) -> None:
        assert set(files_of(jail.code)) == {"0", "1", "2"}

    def test_it_has_an_environment_of_its_own(self, jail: Jail) -> None:
        environment = dict(entry.split("=", 1) for entry in jail.file("environ").split("\0")[:-1])
        assert environment == {
            "PATH": "", "HOME": "/work", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "LD_LIBRARY_PATH": "/lib",
        }  # fmt: skip

    def test_python_reads_no_packages_and_no_variables_and_writes_no_byte_code(self, jail: Jail) -> None:
        assert jail.file("cmdline").split("\0")[1:-1] == ["-I", "-S", "-B", "program.py"]

    def test_signals_reach_it(self, jail: Jail) -> None:
        """Others than these may be ignored by whoever started us."""
        status = jail.status()
        ending = sum(1 << number - 1 for number in (signal.SIGTERM, signal.SIGCHLD))
        assert int(status["SigBlk"][0], 16) == 0
        assert int(status["SigIgn"][0], 16) & ending == 0


@isolated
class TestTheMounts:
    def mounts(self, jail: Jail) -> dict[str, tuple[set[str], list[str]]]:
        """Place → options, and how it is tied to mounts of the machine."""
        rows = [line.split() for line in jail.file("mountinfo").splitlines()]
        return {row[4]: (set(row[5].split(",")), row[6 : row.index("-")]) for row in rows}

    def test_none_gives_rights_or_devices(self, jail: Jail) -> None:
        for place, (options, _) in self.mounts(jail).items():
            assert place in root.DEVICES or {"nosuid", "nodev"} <= options, place

    def test_none_is_written_but_the_three(self, jail: Jail) -> None:
        written = {place for place, (options, _) in self.mounts(jail).items() if "ro" not in options}
        assert written - set(root.DEVICES) == {"/work", "/tmp", "/dev/shm"}

    def test_none_of_the_machines_is_left_and_none_is_tied_to_it(self, jail: Jail) -> None:
        mounts = self.mounts(jail)
        shown = (*runner.find_requirements()["files"], *runner.find_requirements()["folders"], "/lib/")
        others = {place for place in mounts if not place.startswith(shown)}
        assert others == {"/", "/work", "/tmp", "/dev/shm", *root.DEVICES}
        assert [tied for _, tied in mounts.values() if tied] == []


class TestTheKeeper:
    """It gets nothing of the parent that it could pass on."""

    @pytest.mark.parametrize("isolation", [pytest.param("required", marks=isolated), "none"])
    def test_it_has_no_environment_and_no_files_and_no_terminal(
        self, isolation: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SECRET", "hush")
        seen: dict[str, object] = {}

        def look() -> None:
            while not (live := list(runner._running)) or len(memory_monitor.find_descendants(live[0].pid)) < 1:
                time.sleep(0.02)
            keeper = live[0].pid
            seen["environment"] = Path(f"/proc/{keeper}/environ").read_bytes()
            seen["options"] = Path(f"/proc/{keeper}/cmdline").read_text().split("\0")[1:3]
            seen["folder"] = Path(f"/proc/{keeper}/cwd").readlink()
            seen["session"] = os.getsid(keeper) == keeper
            seen["files"] = set(files_of(keeper).values())
            live[0].terminate()

        with Path(__file__).open(encoding="utf-8") as leaked:
            os.set_inheritable(leaked.fileno(), True)
            thread = threading.Thread(target=look)
            thread.start()
            run_python(WAITING, SandboxSettings(timeout_seconds=60, isolation=isolation))
            thread.join()
        assert (seen["environment"], seen["folder"], seen["session"]) == (b"", Path("/"), True)
        assert seen["options"] == ["-I", "-S"]
        assert Path(__file__) not in seen["files"]  # type: ignore[operator]


class TestWithoutNamespaces:
    def test_limits_filter_and_environment_are_the_same(self, limited: Jail) -> None:
        status = limited.status()
        assert (status["NoNewPrivs"], status["Seccomp"]) == (["1"], ["2"])
        assert "hush" not in limited.file("environ")
        assert set(files_of(limited.code)) == {"0", "1", "2"}
        assert "Max cpu time              7                    7 " in limited.file("limits")


@isolated
class TestWithoutTheFilter:
    """What holds should a call be on the list that must not be."""

    @pytest.fixture(autouse=True)
    def no_filter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runner, "build_filter", lambda architecture: b"")

    def told(self, *lines: str) -> str:
        ran = run_python(LIBC + "\n".join(lines))
        assert ran.outcome == "finished", ran
        return ran.output.strip()

    def test_it_is_away(self) -> None:
        assert self.told("import socket", "socket.socket()", "print('made')") == "made"

    def test_no_user_namespace_can_be_made(self) -> None:
        assert self.told("print(libc.unshare(0x10000000), ctypes.get_errno())") == f"-1 {errno.ENOSPC}"

    @pytest.mark.parametrize(
        "call",
        [
            "mount(b'none', b'/tmp', b'tmpfs', 0, None)", "umount2(b'/work', 2)", "chroot(b'/tmp')",
            "unshare(0x40000000)", "sethostname(b'a', 1)", "setgroups(0, None)",
        ],
    )  # fmt: skip
    def test_nothing_that_takes_rights_works(self, call: str) -> None:
        assert self.told(f"print(libc.{call}, ctypes.get_errno())") == f"-1 {errno.EPERM}"

    @pytest.mark.skipif(not ROOT, reason="an ordinary user is itself in there")
    def test_nobody_becomes_nobody_else(self) -> None:
        assert self.told("print([libc.setresuid(n, n, n) for n in (0, 1, 65534)])") == "[-1, -1, -1]"

    @pytest.mark.skipif(ROOT, reason="root's code is nobody, who gets no capabilities anyway")
    def test_the_users_root_has_no_capabilities_and_that_is_locked(self) -> None:
        assert self.told("print(libc.prctl(27), libc.prctl(28, 0))") == "47 -1"  # NOROOT, NO_SETUID_FIXUP; all locked

    def test_there_is_no_network(self) -> None:
        lines = (
            "import socket", "print(socket.if_nameindex())", "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
            "print([s.connect_ex((host, 53)) for host in ('127.0.0.1', '8.8.8.8')])",
        )  # fmt: skip
        names, errors = self.told(*lines).splitlines()
        assert [name for _, name in eval(names) if name not in ("tunl0", "sit0", "ip6tnl0")] == ["lo"]
        assert eval(errors) == [errno.ENETUNREACH] * 2

    def test_no_other_process_is_there(self) -> None:
        lines = ("found = [pid for pid in range(1, 70000) if libc.kill(pid, 0) == 0 or ctypes.get_errno() != 3]",)
        assert self.told(*lines, "print(set(found) - {os.getpid()} <= {1, 2})") == "True"

    def test_the_hosts_shared_memory_is_not_there(self) -> None:
        libc = ctypes.CDLL(None)
        key = 0x4D415246 + os.getpid()
        block = libc.shmget(key, 4096, 0o1666)
        if block < 0:
            pytest.skip("the kernel has no shared memory here")
        try:
            assert self.told(f"print(libc.shmget({key}, 0, 0))") == "-1"
        finally:
            libc.shmctl(block, 0, None)

    @pytest.mark.slow
    def test_the_session_keyring_is_not_the_parents(self) -> None:
        source = f"""
import ctypes, os
from marft.agents.sandbox import runner
from marft.agents.sandbox.kernel import KEYCTL, replace_keyring
runner.build_filter = lambda architecture: b""
libc, keyctl = ctypes.CDLL(None), KEYCTL[os.uname().machine]
replace_keyring()
ours = libc.syscall(keyctl, 0, -3, 0)
told = runner.run_python({LIBC!r} + "print(libc.syscall(%d, 0, -3, 0))" % keyctl)
print(ours, told.output)
"""
        ours, theirs = subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, check=True
        ).stdout.split()
        if int(ours) < 0:
            pytest.skip("the kernel keeps no keys here")
        assert ours != theirs


def test_a_machine_on_which_namespaces_can_be_made_has_isolation() -> None:
    """Where there is none, most tests of the sandbox are left out: a jail that is never built must not look like that."""
    if (unshare := shutil.which("unshare")) is None:
        pytest.skip("unshare is not here")
    made = subprocess.run(
        [unshare, "--user", "--map-root-user", "--pid", "--net", "--ipc", "--uts", "--mount", "--fork", "true"],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("no namespaces can be made here")
    assert isolation_problem() == ""
