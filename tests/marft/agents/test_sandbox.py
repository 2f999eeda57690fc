"""The sandbox: whatever model-written code tries, it harms nothing, and is reported."""

from __future__ import annotations

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from marft.agents.sandbox import runner
from marft.agents.sandbox.runner import SandboxSettings, isolation_problem, run_python

SHORT = SandboxSettings(timeout_seconds=8, cpu_seconds=1, max_processes=8, memory_mb=256)
isolated = pytest.mark.skipif(bool(isolation_problem()), reason=f"no isolation here: {isolation_problem()}")


class TestOrdinaryCode:
    @isolated
    def test_output_errors_and_status_come_back(self) -> None:
        ran = run_python("import sys\nprint('π ≈', 3)\nprint('hm', file=sys.stderr)\nsys.exit(3)")
        assert (ran.outcome, ran.output, ran.errors, ran.status) == ("failed", "π ≈ 3\n", "hm\n", 3)
        assert run_python("print(sum(range(10)))").output == "45\n"

    @isolated
    def test_it_reads_what_it_is_given_and_writes_in_its_folder(self) -> None:
        code = "open('note', 'w').write(input() * 2)\nprint(open('note').read())"
        assert run_python(code, stdin="ab\n").output == "abab\n"
        assert run_python("import os\nprint(os.listdir('.'))").output == "['program.py']\n"  # nothing of the run before

    @isolated
    def test_a_long_program_and_the_standard_library_work(self) -> None:
        code = "import json, math, re, random, itertools, decimal\n" + "x = 1\n" * 50_000 + "print(math.comb(10, 3))"
        assert run_python(code).output == "120\n"

    @pytest.mark.slow
    @isolated
    @given(code=st.text(max_size=60))
    @examples(max_examples=15, deadline=None)
    def test_anything_may_be_handed_in(self, code: str) -> None:
        clean = code.encode("utf-8", "ignore").decode()
        assert run_python(clean, SHORT).outcome in ("finished", "failed", "killed")


@isolated
class TestWhatIsOutOfReach:
    @pytest.mark.parametrize(
        "path", ["/etc/passwd", "/proc/1/environ", "/proc/self/status", "/root", "/home", __file__]
    )
    def test_files_of_the_machine(self, path: str) -> None:
        code = f"import os\nprint(os.listdir({path!r}) if os.path.isdir({path!r}) else open({path!r}).read())"
        ran = run_python(code)
        assert ran.outcome == "failed" or ran.output.strip() in ("[]", "") or ran.output.count("'") == 2
        assert "root:" not in ran.output

    def test_the_parents_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SECRET_TOKEN", "hush")
        assert "hush" not in run_python("import os\nprint(dict(os.environ))").output

    @pytest.mark.parametrize("path", ["/usr/evil", "/evil", "/dev/evil", "/bin/evil"])
    def test_writes_outside_its_folder(self, path: str) -> None:
        assert run_python(f"open({path!r}, 'w').write('x')").outcome == "failed"
        assert not Path(path).exists()

    @pytest.mark.parametrize("address", ["('127.0.0.1', 22)", "('8.8.8.8', 53)"])
    def test_the_network(self, address: str) -> None:
        code = f"import socket\ns = socket.socket()\ns.settimeout(3)\ns.connect({address})"
        assert run_python(code).outcome == "failed"

    def test_the_hosts_sockets_by_file(self) -> None:
        code = "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('/var/run/docker.sock')"
        assert run_python(code).outcome == "failed"

    def test_other_processes(self) -> None:
        code = (
            "import os, signal\nfor pid in range(1, 400):\n    if pid == os.getpid(): continue\n    try:\n"
            "        os.kill(pid, signal.SIGKILL)\n        print('killed', pid)\n    except OSError:\n        pass"
        )
        ran = run_python(code)
        assert ran.outcome == "finished"
        assert ran.output in ("", "killed 1\n")  # the first process is deaf to all that its own user may send

    def test_links_that_lead_out(self) -> None:
        code = "import os\nos.symlink('/etc/passwd', 'a')\nos.symlink('../../../../etc', 'b')\nprint(open('a').read())"
        assert run_python(code).outcome == "failed"
        assert run_python(code.replace("open('a')", "open('b/passwd')")).outcome == "failed"

    def test_rights(self) -> None:
        code = (
            "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
            "print(libc.unshare(0x10000000), libc.mount(b'none', b'/tmp', b'tmpfs', 0, None), libc.chroot(b'/tmp'))\n"
            "try:\n    os.setuid(0)\n    print('root')\nexcept OSError:\n    print('nobody')"
        )  # fmt: skip
        assert run_python(code).output.split() == ["-1", "-1", "-1", "nobody"]


@isolated
class TestBombs:
    @pytest.mark.slow
    def test_endless_loops_run_out_of_time(self) -> None:
        assert run_python("while True: pass", SHORT).outcome == "killed"  # of CPU
        ran = run_python("import time\ntime.sleep(60)", SHORT.model_copy(update={"timeout_seconds": 1.0}))
        assert ran.outcome == "timed_out"
        assert ran.seconds < 5

    def test_memory(self) -> None:
        ran = run_python("x = bytearray(1 << 30)", SHORT)
        assert (ran.outcome, "MemoryError" in ran.errors) == ("failed", True)

    def test_forks(self) -> None:
        ran = run_python("import os\nwhile True:\n    os.fork()", SHORT)
        assert ran.outcome != "finished"
        assert ran.seconds < 10

    def test_endless_output(self) -> None:
        ran = run_python("while True: print('x' * 999)", SHORT)
        assert ran.outcome == "too_much_output"
        assert len(ran.output) == SHORT.output_kb * 1024

    def test_a_disk_that_is_filled(self) -> None:
        code = "f = open('big', 'wb')\nfor _ in range(200): f.write(b'x' * (1 << 20))"
        assert run_python(code, SHORT).outcome in ("failed", "killed")

    def test_open_files(self) -> None:
        ran = run_python("fs = [open('program.py') for _ in range(1000)]", SHORT)
        assert "Too many open files" in ran.errors

    def test_nothing_stays_behind(self) -> None:
        name = f"left-{secrets.token_hex(4)}"
        code = (
            f"import ctypes, os, time\nctypes.CDLL(None).prctl(15, b'{name}')\nif os.fork() == 0:\n    os.setsid()\n"
            "    if os.fork() == 0:\n        time.sleep(1000)\n    os._exit(0)\ntime.sleep(0.2)\n"
            "print('gone', open('/proc/self/comm').read() if os.path.exists('/proc') else '')"
        )
        assert run_python(code, SHORT).output.strip() == "gone"
        time.sleep(0.2)
        assert name not in names_of_processes()

    def test_a_process_that_stays_would_be_seen(self) -> None:
        """The check above can fail."""
        assert any("python" in name or "pytest" in name for name in names_of_processes())


def names_of_processes() -> list[str]:
    """Of every process on the machine."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            found.append((folder / "comm").read_text().strip())
    return found


@pytest.mark.slow
@isolated
def test_many_run_at_once() -> None:
    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda n: run_python(f"print({n} * {n})").output, range(24)))
    assert outputs == [f"{n * n}\n" for n in range(24)]


def test_without_isolation_it_refuses_and_says_how_to_allow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "isolation_problem", lambda: "namespaces: Operation not permitted")
    with pytest.raises(ValueError, match=r"cannot be run safely here: namespaces.*isolation = 'none'"):
        run_python("print(1)")
    ran = run_python("print(1)", SandboxSettings(isolation="none"))
    assert ran.output == "1\n"
