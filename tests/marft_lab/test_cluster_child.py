"""A process on a cluster as the run sees it, where its actor answers, is lost, or does not answer any more."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from marft.common.errors import RunError

pytest.importorskip("ray")

from ray.exceptions import RayActorError

from marft_lab.cluster import launcher as relayed
from marft_lab.cluster.launcher import RemoteProcess
from marft_lab.cluster.relay import ProcessOutput
from tests.helpers import until
from tests.sources import TESTS


class There:
    """The other end, without a process: it says something, and ends when it is asked to."""

    def __init__(self) -> None:
        self.ended, self.fed = threading.Event(), bytearray()
        self.files: dict[str, bytes] = {}
        self.words = [ProcessOutput(b"hello", ("a line",))]

    def read_output(self) -> ProcessOutput:
        if self.words:
            return self.words.pop(0)
        return ProcessOutput(closed=self.ended.wait(0.01))

    def write_input(self, data: bytes) -> None:
        self.fed += data

    def end(self) -> None:
        self.ended.set()

    def wait_or_terminate(self) -> tuple[str, tuple[str, ...]]:
        self.ended.wait(10)
        return "was killed (SIGTERM)", ("the last line",)

    def folder(self, name: str) -> str:
        return f"there/{name}"

    def write(self, name: str, file: str, piece: bytes) -> None:
        self.files[file] = self.files.get(file, b"") + piece


class Actor:
    """It as an actor, whose calls are futures; each group of calls has a thread."""

    def __init__(self, there: There) -> None:
        self.there, self.killed = there, 0
        self.pools = {group: ThreadPoolExecutor(1) for group in ("", "in", "out", "end")}

    def __getattr__(self, name: str) -> _Method:
        return _Method(self, name)


class _Method:
    def __init__(self, actor: Actor, name: str, group: str = "") -> None:
        self.actor, self.name, self.group = actor, name, group

    def options(self, concurrency_group: str) -> _Method:
        return _Method(self.actor, self.name, concurrency_group)

    def remote(self, *arguments: object) -> Future[Any]:
        def call() -> object:
            if self.actor.killed:
                raise RayActorError
            return getattr(self.actor.there, self.name)(*arguments)

        return self.actor.pools[self.group].submit(call)


def get(what: Future[Any] | list[Future[Any]]) -> Any:
    return [one.result() for one in what] if isinstance(what, list) else what.result()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[There], tuple[RemoteProcess, Actor]]]:
    actors: list[Actor] = []

    def kill(actor: Actor) -> None:
        actor.killed += 1
        actor.there.end()

    def make(there: There) -> tuple[RemoteProcess, Actor]:
        actors.append(Actor(there))
        return RemoteProcess("worker 1", actors[-1], "n1", quiet=True), actors[-1]

    monkeypatch.setattr(sys, "path", [*sys.path])  # a relay changes it, and the folder, of the process that it is
    monkeypatch.chdir(Path.cwd())
    monkeypatch.setattr(relayed.ray, "get", get)
    monkeypatch.setattr(relayed.ray, "kill", kill)
    yield make
    for actor in actors:
        kill(actor)
        for pool in actor.pools.values():
            pool.shutdown()


Make = Callable[[There], tuple[RemoteProcess, Actor]]


def test_what_it_says_and_is_told_goes_through_and_its_actor_ends_with_it(made: Make) -> None:
    child, actor = made(There())
    assert child.socket.recv(5) == b"hello"
    child.socket.sendall(b"and you")
    until(lambda: bytes(actor.there.fed) == b"and you")
    child.end()
    assert child.socket.recv(5) == b""
    assert child.wait_or_terminate() == child.wait_or_terminate() == "was killed (SIGTERM) on node n1"
    assert list(child.output_tail) == ["a line", "the last line"]
    assert actor.killed == 1
    child.close()


def test_one_that_is_lost_with_its_node_is_over_and_says_so(made: Make) -> None:
    child, actor = made(There())
    assert child.socket.recv(5) == b"hello"
    actor.killed = 1
    assert child.socket.recv(5) == b""
    assert child.wait_or_terminate().startswith("was lost with its place on node n1 (The actor ")
    with pytest.raises(RunError, match="weights cannot be carried to node n1"):
        child.share_folder(TESTS / "skill_example")
    child.close()


def test_one_whose_machine_does_not_answer_is_let_go_of(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relayed, "END_SECONDS", 0.05)

    class Deaf(There):
        def end(self) -> None:
            """Nothing hears it."""

    child, actor = made(Deaf())
    child.end()
    assert not actor.killed
    until(lambda: actor.killed)
    assert "was lost with its place" in child.wait_or_terminate()


def test_what_is_carried_is_whole_before_it_is_told_where_it_is(made: Make, tmp_path: Path) -> None:
    class Slow(There):
        def write(self, name: str, file: str, piece: bytes) -> None:
            time.sleep(0.3 if file == "words" else 0.0)
            super().write(name, file, piece)

    (tmp_path / "7" / "in").mkdir(parents=True)
    (tmp_path / "7" / "in" / "adapter").write_bytes(b"weights")
    (tmp_path / "7" / "words").write_bytes(b"")
    child, actor = made(Slow())
    assert child.share_folder(tmp_path / "7") == "there/7"
    assert actor.there.files == {"in/adapter": b"weights", "words": b""}
    child.close()


def test_what_it_prints_as_it_ends_is_heard(made: Make) -> None:
    """Its connection is over before its last lines have come, and the next draw is under way."""
    there = There()
    there.words = [ProcessOutput(closed=True), ProcessOutput(lines=("KeyError: 'w'",), closed=True)]
    there.end()
    child, _ = made(there)
    child.wait_or_terminate()
    assert sorted(child.output_tail) == ["KeyError: 'w'", "the last line"]
    child.close()
