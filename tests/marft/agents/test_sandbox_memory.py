"""One limit of memory for a whole jail: all its processes, what they share, and its files."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marft.agents.sandbox import group, jail, memory_monitor
from marft.agents.sandbox.runner import SandboxSettings, isolation_problem, run_python

isolated = pytest.mark.skipif(bool(isolation_problem()), reason=f"no isolation here: {isolation_problem()}")
SMALL = SandboxSettings(timeout_seconds=15, memory_mb=160, disk_mb=120, max_processes=16)

HOARDS = {
    "processes": "for _ in range(6):\n    if os.fork() == 0:\n        x = bytearray(60 << 20)\n        time.sleep(9)",
    "shared memory": """
def fill():
    shared = mmap.mmap(-1, 60 << 20)
    for at in range(0, len(shared), 4096):
        shared[at] = 1
    time.sleep(9)
for _ in range(6):
    if os.fork() == 0:
        fill()""",
    "files and a process": "open('big', 'wb').write(bytes(100 << 20))\nx = bytearray(100 << 20)",
    "files that have no name": """
f = open('/dev/shm/big', 'wb')
os.unlink('/dev/shm/big')
for _ in range(100):
    f.write(bytes(1 << 20))
x = bytearray(100 << 20)""",
    "a process whose first thread has ended": """
if os.fork() == 0:
    x = bytearray(100 << 20)
    threading.Thread(target=time.sleep, args=(9,)).start()
    ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
x = bytearray(100 << 20)""",
    "messages that nobody reads": """
for _ in range(14):
    if os.fork() == 0:
        kept = []
        while True:
            try:
                kept.append(socket.socketpair())
            except OSError:
                time.sleep(9)
            for end in kept[-1]:
                end.setblocking(False)
                try:
                    while True:
                        end.send(bytes(30000))
                except BlockingIOError:
                    pass
""",
}


@isolated
class TestTheSum:
    @pytest.fixture(autouse=True)
    def no_group(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(group, "find_parent", lambda: "")

    @pytest.mark.slow
    @pytest.mark.parametrize("what", HOARDS)
    def test_all_that_a_jail_holds_is_limited_together(self, what: str) -> None:
        head = "import ctypes, mmap, os, socket, threading, time\n"
        ran = run_python(head + HOARDS[what] + "\ntime.sleep(9)\nprint('survived')", SMALL)
        assert (ran.outcome, ran.output, ran.status) == ("killed", "", 137)
        assert "MB of memory in use, where 160 MB are allowed" in ran.errors
        assert ran.seconds < 9

    def test_without_namespaces_too(self) -> None:
        code = "import os, time\n" + HOARDS["processes"] + "\ntime.sleep(9)"
        assert run_python(code, SMALL.model_copy(update={"isolation": "none"})).outcome == "killed"

    def test_what_processes_share_is_counted_once(self) -> None:
        """Six times 80 MB would be too much."""
        code = "import os, time\nx = bytearray(80 << 20)\nfor _ in range(6):\n    if os.fork() == 0:\n        break\ntime.sleep(0.5)"
        assert run_python(code + "\nprint(len(x))", SMALL).output.split()[:1] == [str(80 << 20)]

    def test_one_process_may_not_have_more_than_all(self) -> None:
        ran = run_python("x = bytearray(200 << 20)", SMALL)
        assert (ran.outcome, "MemoryError" in ran.errors) == ("failed", True)

    def test_files_share_one_limit_wherever_they_lie(self) -> None:
        code = "for place in ('/work', '/tmp', '/dev/shm'):\n    open(place + '/big', 'wb').write(bytes(50 << 20))"
        assert "No space left on device" in run_python(code, SMALL).errors

    @pytest.mark.parametrize(
        "made", ["open(name, 'w')", "os.mkdir(name)", "os.symlink('a' * 999, name)", "os.mkfifo(name)"]
    )
    def test_the_number_of_files_is_limited(self, made: str) -> None:
        code = f"import os\nfor n in range(1000):\n    name = ('/work/', '/tmp/', '/dev/shm/')[n % 3] + str(n)\n    {made}\n    print(n)"
        ran = run_python(code, SMALL.model_copy(update={"max_files": 200}))
        assert "No space left on device" in ran.errors
        assert 190 < len(ran.output.split()) <= 200


def cgroup_tree(top: Path, own: str, gives: dict[str, str]) -> dict[str, str]:
    """A stand-in for the system's files: mount table, our own group, and what each group gives to its children."""
    for path, controllers in gives.items():
        folder = top / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.subtree_control").write_text(controllers + "\n")
        (folder / "cgroup.procs").write_text("")
    (top / "mounts").write_text(f"proc /proc proc rw 0 0\ncgroup2 {top} cgroup2 rw,relatime 0 0\n")
    (top / "own").write_text(f"0::/{own}\n")
    return {"mount_file": str(top / "mounts"), "group_file": str(top / "own")}


class TestTheGroup:
    def test_the_nearest_that_limits_the_memory_of_its_children_is_taken(self, tmp_path: Path) -> None:
        gives = {"": "cpu memory", "user": "cpu memory pids", "user/app": "memory", "user/app/shell": ""}
        files = cgroup_tree(tmp_path, "user/app/shell", gives)
        assert group.find_parent(**files) == str(tmp_path / "user" / "app")

    def test_it_is_our_own_where_nothing_else_runs_in_it(self, tmp_path: Path) -> None:
        assert group.find_parent(**cgroup_tree(tmp_path, "", {"": "memory"})) == str(tmp_path)

    @pytest.mark.parametrize("gives", [{"": "", "a": ""}, {"": "cpu pids", "a": "cpu"}])
    def test_there_is_none_without_limits_of_memory(self, tmp_path: Path, gives: dict[str, str]) -> None:
        assert group.find_parent(**cgroup_tree(tmp_path, "a", gives)) == ""

    def test_there_is_none_without_the_right_to_write(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files = cgroup_tree(tmp_path, "a", {"": "memory", "a": ""})
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        assert group.find_parent(**files) == ""

    @pytest.mark.parametrize("own", ["/../../elsewhere", "a/gone"])
    def test_a_group_out_of_sight_is_none(self, tmp_path: Path, own: str) -> None:
        files = cgroup_tree(tmp_path, own, {"": "", "a": ""})
        assert group.find_parent(**files) == ""

    def test_there_is_none_on_a_system_of_another_kind(self, tmp_path: Path) -> None:
        (tmp_path / "mounts").write_text("cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n")
        (tmp_path / "own").write_text("4:memory:/a\n0::/\n")
        assert group.find_parent(str(tmp_path / "mounts"), str(tmp_path / "own")) == ""
        assert group.find_parent(str(tmp_path / "none"), str(tmp_path / "none")) == ""

    def test_it_is_limited_before_anything_runs_in_it(self, tmp_path: Path) -> None:
        folder = group.create_group(str(tmp_path), 160)
        assert Path(folder).name == f"marft-jail-{os.getpid()}"
        assert (Path(folder) / "memory.max").read_text() == str(160 << 20)
        assert (Path(folder) / "memory.oom.group").read_text() == "1"
        assert not (Path(folder) / "cgroup.procs").exists()
        assert group.join_group(folder, 4242)
        assert (Path(folder) / "cgroup.procs").read_text() == "4242"

    def test_it_is_removed(self, tmp_path: Path) -> None:
        folder = tmp_path / "marft-jail-1"
        folder.mkdir()
        group.remove(str(folder))
        group.remove(str(folder))
        group.remove("")
        assert not folder.exists()

    def test_it_is_removed_when_the_last_in_there_has_died(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder, remove, busy = tmp_path / "marft-jail-1", os.rmdir, [True] * 5
        folder.mkdir()

        def slowly(path: str) -> None:
            if busy:
                busy.pop()
                raise OSError(errno.EBUSY, "somebody is dying")
            remove(path)

        monkeypatch.setattr(os, "rmdir", slowly)
        group.remove(str(folder))
        assert not folder.exists()

    def test_it_may_not_swap_where_the_kernel_counts_that(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make = os.mkdir

        def with_swap(path: str) -> None:
            make(path)
            (Path(path) / group.SWAP_MAX).write_text("max")

        assert not (Path(group.create_group(str(tmp_path), 160)) / group.SWAP_MAX).exists()
        (tmp_path / "other").mkdir()
        monkeypatch.setattr(os, "mkdir", with_swap)
        assert (Path(group.create_group(str(tmp_path / "other"), 160)) / group.SWAP_MAX).read_text() == "0"

    def test_one_that_cannot_be_limited_is_removed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(folder: str, file: str, text: str) -> None:
            raise PermissionError(errno.EACCES, "no", file)

        monkeypatch.setattr(group, "_write", refuse)
        assert group.create_group(str(tmp_path), 160) == ""
        assert list(tmp_path.iterdir()) == []

    def test_the_keeper_removes_it_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The parent may be gone by then."""
        removed: list[str] = []
        monkeypatch.setattr(jail.group, "create_group", lambda parent, memory_mb: f"{parent}/one")
        monkeypatch.setattr(jail.group, "remove", removed.append)
        monkeypatch.setattr(jail, "enter_namespaces", lambda: None)
        monkeypatch.setattr(jail, "run_init_process", lambda order, own: 0)
        monkeypatch.setattr(jail, "kill_all", lambda: None)
        assert jail.run_isolated({"group": "/here", "limits": {"memory_mb": 160}}) == 0
        assert removed == ["/here/one"]

    def test_where_none_can_be_made_there_is_none(self, tmp_path: Path) -> None:
        assert group.create_group(str(tmp_path / "nowhere"), 160) == ""
        assert not group.join_group("", os.getpid())

    @isolated
    def test_a_jail_is_put_into_its_group_and_the_keeper_is_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(group, "find_parent", lambda: str(tmp_path))
        monkeypatch.setattr(group, "REMOVE_ATTEMPTS", 1)  # files of a stand-in do not go with their folder
        assert run_python("print('here')", SMALL).output == "here\n"
        (folder,) = tmp_path.iterdir()
        keeper = int(folder.name.removeprefix("marft-jail-"))
        assert int((folder / "cgroup.procs").read_text()) not in (keeper, os.getpid())
        assert (folder / "memory.max").read_text() == str(160 << 20)

    @isolated
    def test_a_jail_whose_group_cannot_be_made_is_watched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(group, "find_parent", lambda: "/proc")
        ran = run_python("import os, time\n" + HOARDS["processes"] + "\ntime.sleep(9)", SMALL)
        assert (ran.outcome, "MB of memory in use" in ran.errors) == ("killed", True)

    @isolated
    @pytest.mark.skipif(not group.find_parent(), reason="no control group can be made here")
    def test_the_kernel_kills_a_jail_that_is_too_large(self) -> None:
        parent = Path(group.find_parent())
        ran = run_python("import os, time\n" + HOARDS["processes"] + "\ntime.sleep(9)", SMALL)
        assert (ran.outcome, ran.errors) == ("killed", "")
        assert not list(parent.glob(f"{group.NAME_PREFIX}*"))


class TestTheWatch:
    def test_it_sees_children_of_children_and_their_memory(self) -> None:
        source = "import subprocess, sys; x = bytearray(50 << 20); print('up', flush=True); sys.stdin.read()"
        middle = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {source!r}])"
        with subprocess.Popen([sys.executable, "-c", middle], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout
            assert process.stdout.readline() == b"up\n"
            assert len(memory_monitor.find_descendants(process.pid)) == 1
            assert memory_monitor.memory_over_limit(process.pid, None, 50 << 20) > 50 << 20
            assert memory_monitor.memory_over_limit(process.pid, None, 500 << 20) == 0
            process.communicate()
        assert memory_monitor.memory_over_limit(process.pid, None, 0) == 0

    def test_files_in_memory_count(self) -> None:
        space = os.open("/dev/shm", os.O_RDONLY)
        before = memory_monitor.file_bytes(space)
        path = Path("/dev/shm") / f"marft-{os.getpid()}"
        try:
            path.write_bytes(bytes(5 << 20))
            assert memory_monitor.file_bytes(space) >= before + (4 << 20)
        finally:
            path.unlink()
            os.close(space)

    def test_it_sees_the_children_of_every_thread(self) -> None:
        child = "subprocess.Popen(['sleep', '60'])"
        source = f"import subprocess, sys, threading\nt = threading.Thread(target=lambda: ({child}, print('up', flush=True), sys.stdin.read()))\nt.start()"
        with subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout
            assert process.stdout.readline() == b"up\n"
            below = memory_monitor.find_descendants(process.pid)
            for pid in below:
                os.kill(pid, signal.SIGKILL)
            process.communicate()
        assert len(below) == 1

    def test_what_is_swapped_out_and_page_tables_count(self, tmp_path: Path) -> None:
        (tmp_path / "status").write_text("Name:\tcode\nVmRSS:\t  100 kB\nVmPTE:\t 20 kB\nVmSwap:\t  3 kB\n")
        (tmp_path / "smaps_rollup").write_text("Rss:\t  100 kB\nPss:\t 50 kB\nPss_Anon:\t 40 kB\nSwapPss:\t  3 kB\n")
        assert memory_monitor.sum_fields([str(tmp_path)], "status", memory_monitor.RESIDENT_FIELDS) == 123 << 10
        assert memory_monitor.sum_fields([str(tmp_path)], "smaps_rollup", memory_monitor.SHARED_FIELDS) == 53 << 10

    def test_open_files_of_every_thread_count(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """They need not share them."""
        threads = [tmp_path / "1", tmp_path / "2"]
        for thread in threads:
            (thread / "fd").mkdir(parents=True)
            (thread / "fd" / "0").touch()
        monkeypatch.setattr(memory_monitor, "find_descendants", lambda pid: {7: [str(thread) for thread in threads]})
        assert memory_monitor.memory_over_limit(1, None, 0) == 2 * memory_monitor.BUFFER_BYTES

    def test_files_that_it_may_not_count_are_none_of_a_process_that_lives(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(path: str) -> list[str]:
            raise PermissionError(errno.EACCES, "no", path)

        monkeypatch.setattr(os, "listdir", refuse)
        (tmp_path / "status").write_text("State:\tZ (zombie)\n")
        assert memory_monitor.count_open_files(str(tmp_path)) == 0
        (tmp_path / "status").write_text("VmRSS:\t  100 kB\n")
        with pytest.raises(PermissionError):
            memory_monitor.count_open_files(str(tmp_path))

    def test_it_looks_as_often_as_is_promised(self) -> None:
        assert (
            memory_monitor.INTERVAL_SECONDS == 0.02
        )  # docs/architecture.md: what can be touched in 20 ms is possible for that long

    def test_a_kernel_that_tells_too_little_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os.path, "exists", lambda path: False)
        with pytest.raises(OSError, match="does not tell a process's children"):
            memory_monitor.check_support()


@isolated
def test_the_watch_costs_little() -> None:
    """A jail that sleeps for a second takes little more than what it takes to start it."""
    before = os.times()
    assert run_python("import time\ntime.sleep(1)").outcome == "finished"
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    assert used < 0.6
