"""What a run has its ranks do: all load what it loads, and a step that was lost is undone before it is learned again."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marft.learning.interfaces import Progress
from marft.ranks import company
from marft.ranks.company import LOST, Company
from marft.ranks.devices import device_of
from marft.ranks.group import Group
from marft.ranks.heeding import Heeding
from marft.ranks.learners import RanksLostError
from marft.ranks.words import Done, Failed, Learn, Line, Load, Meet
from marft.runs.checkpoints import Record
from marft.starting import Start


class Led(Company):
    """One whose ranks do as they are told; they are lost as often as is said."""

    def __init__(self, shard: bool = False, losses: int = 0) -> None:
        self.did: list[object] = []
        self.losses = losses
        self._lost, self._others = 0, []
        training = SimpleNamespace(shard=shard, rank_patience_seconds=0.05)
        self.run: Any = SimpleNamespace(training=training)
        self.models: Any = None
        note, did = self.did.append, self.did
        learner = SimpleNamespace(
            optimizers={"actor": SimpleNamespace(learning_rate=0.5)},
            critic=None,
            state_dict=lambda: {"credit/mean": 1.0},
            load_state_dict=lambda state: note(("parts", state)),
        )
        careful = SimpleNamespace(undo=lambda step: note(("undo", step)))
        member = SimpleNamespace(
            learner=learner, careful=careful, gather=lambda: note("gather"), learn=lambda *_: {}, noting=lambda _: None
        )
        self._member: Any = member
        self.noting(lambda said: did.append(said))

    def _lead(self, message: object, mine: Callable[[], Any]) -> Any:
        self.did.append(message)
        if isinstance(message, Learn) and self.losses:
            self.losses -= 1
            raise RanksLostError("rank 1 is gone")
        return mine()

    def _begin_again(self) -> None:
        self.did.append("begin again")


@pytest.mark.parametrize("resume", [True, False])
def test_all_ranks_load_what_a_run_starts_from(resume: bool) -> None:
    led = Led()
    start = SimpleNamespace(
        load=lambda *_: "where it stands", record=SimpleNamespace(path=Path("there")), resume=resume
    )
    assert cast(Any, led.load(cast(Start, start))) == "where it stands"
    assert led.did == [Load("there", resume), "gather"]


def test_nobody_loads_where_there_is_nothing_to_start_from() -> None:
    led = Led()
    led.load(cast(Start, SimpleNamespace(load=lambda *_: None, record=None, resume=False)))
    assert led.did == []


def test_all_ranks_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    led = Led()
    monkeypatch.setattr(company, "restore", lambda record, *_: led.did.append(record))
    record = cast(Record, SimpleNamespace(path=Path("there")))
    led.restore(record)
    assert led.did == [record, Load("there", True), "gather"]


def test_a_lost_step_is_undone_with_all_that_it_moved_before_it_is_learned_again() -> None:
    led = Led(losses=1)
    assert led.learn([], Progress(3, 0)) == {LOST: 1.0}
    first, said, *undone, again = led.did
    assert isinstance(first, Learn)
    assert first is again
    assert first.rates == {"actor": 0.5}
    assert "step 4: rank 1 is gone" in str(said)
    assert undone == [("undo", 3), ("parts", {"credit/mean": 1.0}), "begin again"]
    assert led.learn([], Progress(4, 0)) == {LOST: 0.0}


@pytest.mark.parametrize(("shard", "losses"), [(True, 1), (False, 2)])
def test_ranks_that_held_parts_or_are_lost_again_end_the_step(shard: bool, losses: int) -> None:
    led = Led(shard, losses)
    with pytest.raises(RanksLostError) as error:
        led.learn([], Progress(3, 0))
    assert len(led.did) == (1 if shard else 6)
    assert error.value.times == losses, "each of which is counted"


def test_a_rank_that_hangs_is_ended_and_said_to_have_hung_and_what_one_failed_of_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(company, "LAST_WORDS_SECONDS", 0.05)
    ended: list[str] = []

    def other(name: str) -> tuple[company._Other, Line]:
        ours, theirs = socket.socketpair()
        child = SimpleNamespace(
            socket=ours, end=lambda: ended.append(name), outcome=lambda: "was killed (SIGKILL)", close=lambda: None
        )
        return company._Other(cast(Any, child), 1.0), Line(theirs)

    (hung, _silent), (gone, line) = other("hung"), other("gone")
    line.close()
    led, hung.busy = Led(), True
    led._others = [hung, gone]
    assert str(led._reason(EOFError())) == "rank 1 hung, and was ended and rank 2 was killed (SIGKILL)"
    assert ended == ["hung"]
    failing, line = other("failing")
    line.send(Done(1))
    line.send(Failed("no such file", "value", ""))
    led._others = [hung, failing]
    assert isinstance(led._reason(EOFError()), ValueError)


def test_what_a_rank_fails_of_is_raised_and_one_that_was_asked_for_nothing_is_not_taken_for_hung() -> None:
    """Once heard, what it had said was forgotten: it had "ended itself"; and another one, idle, was said to have hung."""
    ended: list[str] = []

    def other(name: str) -> tuple[company._Other, Line]:
        ours, theirs = socket.socketpair()
        child = SimpleNamespace(
            socket=ours, end=lambda: ended.append(name), outcome=lambda: "was killed (SIGKILL)", close=lambda: None
        )
        return company._Other(cast(Any, child), 1.0), Line(theirs)

    (failing, line), (idle, _silent), (gone, killed) = other("failing"), other("idle"), other("gone")
    line.send(Failed("there is no checkpoint on node b", "value", ""))
    line.close()
    killed.close()
    led = Led()
    led._others = [failing, idle]
    with pytest.raises(ValueError, match="there is no checkpoint on node b"):
        led._hear()
    led._others = [gone, idle]
    with pytest.raises(OSError, match="Broken pipe"):
        gone.ask(Meet())
    assert str(led._reason(EOFError())) == "rank 1 was killed (SIGKILL)"
    assert ended == []
    led._others = [idle]
    assert "larger training.rank_patience_seconds waits longer" in str(led._reason(TimeoutError()))


def test_a_rank_is_waited_for_as_long_as_the_patience_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    led, waited = Led(), list[float | None]()

    def receive(seconds: float | None = None) -> object:
        waited.append(seconds)
        return Done(7)

    child: Any = SimpleNamespace(socket=socket.socketpair()[0])
    led._others = [company._Other(child, 1.0)]
    monkeypatch.setattr(led._others[0].line, "receive", receive)
    led._hear()
    assert waited == [0.05]
    assert led._others[0].pid == 7


def test_more_ranks_than_a_processor_has_any_use_for_are_refused_before_one_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    run: Any = SimpleNamespace(device="cpu", cluster=None, training=SimpleNamespace(ranks=16))
    assert device_of(run, 15) == "cpu"
    run.training.ranks = 17
    with pytest.raises(ValueError, match=r"training.ranks = 17: on a CPU .* there are 2"):
        device_of(run, 16)


def test_ranks_meet_once_all_have_what_they_learn_with_and_one_that_ends_before_is_heard_of_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever came to the meeting waited there for as long as the patience lasts, deaf to the end of the others."""
    led, met = Led(), list[object]()
    monkeypatch.setattr(company, "group_of", lambda *_: met.append("met"))
    led._meeting, led.models, led._heeding = "", SimpleNamespace(device=None), Heeding(lambda: None)
    ours, theirs = socket.socketpair()
    child = SimpleNamespace(socket=ours, end=lambda: None, outcome=lambda: "was killed (SIGKILL)", close=lambda: None)
    led._others, line = [company._Other(cast(Any, child), 1.0)], Line(theirs)
    line.send(Done(7))
    led._meet()
    assert (met, line.receive(1.0)) == (["met"], Meet())
    line.close()
    with pytest.raises(RanksLostError, match=r"rank 1 was killed \(SIGKILL\)"):
        led._meet()
    led._heeding.close()
    assert met == ["met"]


def test_ranks_that_are_lost_before_they_meet_again_leave_nothing_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group they were in is closed by then, and was closed once more: an error that nobody foresaw."""
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: False)
    Group.close(cast(Any, None))
