"""The end of a relayed process that is where the process is, without a cluster around it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marft.common.processes import weight_transfer
from marft.common.processes.launcher import LocalLauncher, ProcessHandle, start_all
from marft.common.version import __version__
from marft.config.sections import open_launcher
from marft_lab.cluster.relay import MAX_BUFFER_BYTES, ProcessOutput, Relay
from tests.helpers import settings

ECHO = """
import socket, sys
end = socket.socket(fileno=int(sys.argv[1]))
while data := end.recv(65536):
    end.sendall(data)
print("good bye", flush=True)
sys.exit(3)
"""
FLOOD = """
import socket, sys
end = socket.socket(fileno=int(sys.argv[1]))
for number in range(int(sys.argv[2])):
    end.sendall(bytes([number % 251]) * 65536)
    print(number, flush=True)
"""


def echo(descriptor: int) -> list[str]:
    return [sys.executable, "-c", ECHO, str(descriptor)]


def flood(descriptor: int) -> list[str]:
    return [sys.executable, "-c", FLOOD, str(descriptor), "160"]


def nowhere(descriptor: int) -> list[str]:
    raise ValueError("engine.python: there is no such Python")


@pytest.fixture
def relay(monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    monkeypatch.setattr("marft_lab.cluster.relay.IDLE_SECONDS", 0.2)
    monkeypatch.setattr(sys, "path", [*sys.path])  # a relay changes it, and the folder, of the process that it is
    monkeypatch.chdir(Path.cwd())
    made = Relay()
    yield made
    if made._child:
        made.end()
        made.wait_or_terminate()


def begun(relay: Relay, command: object) -> Relay:
    relay.begin("worker 0", command, [], str(Path.cwd()))  # type: ignore[arg-type]
    return relay


def whole(relay: Relay) -> ProcessOutput:
    """All that it says until it says nothing more."""
    data, lines, drawn = b"", list[str](), ProcessOutput()
    while not drawn.closed:
        drawn = relay.read_output()
        data += drawn.data
        lines += drawn.lines
    return ProcessOutput(data, tuple(lines), True)


@pytest.mark.slow
class TestRelay:
    def test_bytes_go_through_in_order_in_both_directions_and_the_end_too(self, relay: Relay) -> None:
        begun(relay, echo)
        sent = b"".join(number.to_bytes(4, "big") for number in range(100_000))
        for first in range(0, len(sent), 30_001):
            relay.write_input(sent[first : first + 30_001])
        relay.write_input(b"")
        drawn = whole(relay)
        assert drawn.data == sent
        how, lines = relay.wait_or_terminate()
        assert how == "ended itself (exit status 3)"
        assert [*drawn.lines, *lines] == ["good bye"]

    def test_what_nobody_draws_holds_up_who_says_it(self, relay: Relay) -> None:
        begun(relay, flood)
        time.sleep(1.0)
        said = list(relay._lines)
        assert MAX_BUFFER_BYTES / 65536 <= len(said) < 150  # what the socket's buffers take comes on top
        assert len(relay._data) < MAX_BUFFER_BYTES + 2**18
        drawn = whole(relay)
        assert drawn.data == b"".join(bytes([number % 251]) * 65536 for number in range(160))

    def test_a_draw_comes_back_where_nothing_is_said(self, relay: Relay) -> None:
        assert begun(relay, echo).read_output() == ProcessOutput()

    def test_one_that_is_ended_is_over_and_says_how(self, relay: Relay) -> None:
        begun(relay, echo)
        threading.Timer(0.2, relay.end).start()
        assert whole(relay).closed
        assert relay.wait_or_terminate()[0] == "was killed (SIGTERM)"
        relay.write_input(b"nobody hears this")

    def test_a_command_is_asked_for_where_it_runs(self, relay: Relay) -> None:
        with pytest.raises(ValueError, match=r"engine\.python"):
            begun(relay, nowhere)

    def test_folders_are_carried_in_pieces_and_go_with_it(
        self, relay: Relay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(weight_transfer, "SHARED_MEMORY", tmp_path)
        begun(relay, echo)
        place = Path(relay.folder("7"))
        for piece in (b"one ", b"two", b""):
            relay.write("7", "policies/actor.bin", piece)
        assert (place / "policies" / "actor.bin").read_bytes() == b"one two"
        assert relay.folder("7") == str(place)
        assert not list(place.iterdir())  # carried again, it begins anew
        relay.folder("8")
        relay.drop("7")
        assert not place.exists()
        relay.end()
        relay.wait_or_terminate()
        assert not list(tmp_path.glob(f"{weight_transfer.PREFIX}*"))

    def test_it_says_what_is_there_and_what_is_not(self, relay: Relay, tmp_path: Path) -> None:
        found = relay.node_info([str(tmp_path), "/no/such/folder"])
        assert (found.version, found.missing) == (__version__, ("/no/such/folder",))
        assert sys.version.startswith(found.python)


class TestWithoutAProcess:
    def test_a_command_is_asked_for_with_the_runs_modules_and_in_its_folder_as_far_as_they_are_here(
        self, relay: Relay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found: list[object] = []

        def asked(_: int) -> list[str]:
            found.append((sys.path[-1], str(Path.cwd())))
            raise ValueError("seen")

        monkeypatch.chdir(Path.cwd())
        monkeypatch.setattr(sys, "path", [*sys.path])
        for folder in (str(tmp_path), "/no/such/folder"):
            with pytest.raises(ValueError, match="seen"):
                relay.begin("worker 0", asked, [str(tmp_path), "/no/such/modules"], folder)
        assert found == [(str(tmp_path), str(tmp_path))] * 2
        assert sys.path.count(str(tmp_path)) == 1

    def test_its_last_lines_are_told_with_how_it_ended_and_its_folder_goes(self) -> None:
        relay, did = Relay(), list[str]()

        def wait_or_terminate() -> str:
            relay._add_line("KeyError: 'w'")
            return "ended itself (exit status 1)"

        end = SimpleNamespace(close=lambda: did.append("let go"))
        relay._child = cast(Any, SimpleNamespace(wait_or_terminate=wait_or_terminate, socket=end))
        relay._folder = cast(Any, SimpleNamespace(close=lambda: did.append("taken away")))
        assert relay.wait_or_terminate() == ("ended itself (exit status 1)", ("KeyError: 'w'",))
        assert did == ["let go", "taken away"]


class TestStarting:
    def test_without_a_cluster_processes_are_started_here(self, tmp_path: Path) -> None:
        assert isinstance(open_launcher(settings("tiny", tmp_path), "worker", 2), LocalLauncher)

    @pytest.mark.slow
    def test_all_are_started_or_none(self) -> None:
        made: list[ProcessHandle] = []

        class Starter(LocalLauncher):
            def start(self, name, command, *, quiet=False, slot=0):  # type: ignore[no-untyped-def]
                made.append(super().start(name, nowhere if slot == 1 else command))
                return made[-1]

        with pytest.raises(ValueError, match=r"engine\.python"):
            start_all(Starter(), ["a", "b", "c"], echo)
        assert len(made) == 2
        assert {child.wait_or_terminate() for child in made} <= {"was killed (SIGTERM)", "was killed (SIGKILL)"}

    @pytest.mark.slow
    @pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "nightly", reason="a third of a minute: make nightly")
    def test_ray_is_imported_by_nobody_who_does_not_ask_for_it(self, tmp_path: Path) -> None:
        """It is in the way of whoever tries."""
        (tmp_path / "ray.py").write_text("raise SystemExit('ray was imported')")
        said = subprocess.run(
            [sys.executable, "-m", "marft", "train", "demo", "--training.steps", "2", "--rollout.workers", "1",
             "--rollout.tasks_per_step", "2", "--rollout.samples_per_task", "2",
             "--output", str(tmp_path), "--device", "cpu", "--quiet"],
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
            capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert said.returncode == 0, said.stderr
        assert "ray was imported" not in said.stderr
