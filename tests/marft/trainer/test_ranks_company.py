"""What a run has its ranks do: all load what it loads, and a step that was lost is undone before it is learned again."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from marft.common.errors import RunError, UserError
from marft.common.log import receive_logs
from marft.common.processes.connection import BlockingConnection
from marft.common.processes.locked_folder import LockedFolder
from marft.common.processes.messages import Completed
from marft.common.processes.remote_error import RemoteError, RemoteFaultError
from marft.common.types import Episode, Task
from marft.config.interfaces.schedule import Progress
from marft.runs.state import CheckpointRecord, State
from marft.trainer.learner_backend import RanksLostError
from marft.trainer.ranks import distributed_learner
from marft.trainer.ranks.devices import select_device
from marft.trainer.ranks.distributed_learner import RANKS_LOST, DistributedLearner, SignalWatcher
from marft.trainer.ranks.group import RankGroup
from marft.trainer.ranks.messages import (
    TO_RANK,
    VALUES,
    GatherOptimizer,
    LoadCheckpoint,
    TrainStep,
)
from marft.trainer.run_init import RunInit
from tests.helpers import settings


class Led(DistributedLearner):
    """One whose ranks do as they are told; they are lost as often as is said."""

    def __init__(self, shard: bool = False, losses: int = 0) -> None:
        self.did: list[object] = []
        self.losses = losses
        self._lost_count, self._peers = 0, []
        training = SimpleNamespace(shard=shard, rank_timeout_seconds=0.05)
        self.run: Any = SimpleNamespace(training=training)
        self.models: Any = None
        self._signals = SignalWatcher(lambda: None)
        self._signals.close()
        note = self.did.append
        learner = SimpleNamespace(
            optimizers={"actor": SimpleNamespace(learning_rate=0.5)},
            critic=None,
            state_dict=lambda: {"credit/mean": 1.0},
            load_state_dict=lambda state: note(("parts", state)),
        )
        guard = SimpleNamespace(revert=lambda step: note(("undo", step)), resume=lambda steps: note(("count", *steps)))
        worker = SimpleNamespace(
            learner=learner,
            guard=guard,
            gather=lambda: note("gather"),
            learn=lambda *_: {},
        )
        self._worker: Any = worker

    def _run_on_ranks(self, message: object, mine: Callable[[], Any]) -> Any:
        self.did.append(message)
        if isinstance(message, TrainStep) and self.losses:
            self.losses -= 1
            raise RanksLostError("rank 1 is gone")
        return mine()

    def _restart_peers(self) -> None:
        self.did.append("begin again")


@pytest.mark.parametrize("resume", [True, False])
def test_all_ranks_load_what_a_run_starts_from(resume: bool) -> None:
    led = Led()
    start = SimpleNamespace(
        load=lambda *_: State(step=2),
        record=SimpleNamespace(path=Path("there")),
        resume=resume,
        metrics_before=lambda step: [f"step {step}"],
    )
    assert led.load(cast(RunInit, start)).step == 2
    assert led.did == [("count", "step 2"), LoadCheckpoint("there", resume), "gather"]


def test_nobody_loads_where_there_is_nothing_to_start_from() -> None:
    led = Led()
    start = SimpleNamespace(load=lambda *_: State(), record=None, resume=False, metrics_before=lambda _: [])
    led.load(cast(RunInit, start))
    assert led.did == [("count",)]


def test_all_ranks_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    led = Led()
    monkeypatch.setattr(distributed_learner, "restore", lambda record, *_: led.did.append(record))
    record = cast(CheckpointRecord, SimpleNamespace(path=Path("there")))
    led.restore(record)
    assert led.did == [record, LoadCheckpoint("there", True), "gather"]


def test_a_lost_step_is_undone_with_all_that_it_moved_before_it_is_learned_again() -> None:
    led = Led(losses=1)
    with receive_logs(led.did.append):
        assert led.learn([], Progress(3, 0)) == {RANKS_LOST: 1.0}
    first, said, *undone, again = led.did
    assert isinstance(first, TrainStep)
    assert first is again
    assert first.rates == {"actor": 0.5}
    assert "step 4: rank 1 is gone" in str(said)
    assert undone == [("undo", 3), ("parts", {"credit/mean": 1.0}), "begin again"]
    assert led.learn([], Progress(4, 0)) == {RANKS_LOST: 0.0}


@pytest.mark.parametrize(("shard", "losses"), [(True, 1), (False, 2)])
def test_ranks_that_held_parts_or_are_lost_again_end_the_step(shard: bool, losses: int) -> None:
    led = Led(shard, losses)
    with pytest.raises(RanksLostError) as error:
        led.learn([], Progress(3, 0))
    assert len(led.did) == (1 if shard else 5)
    assert error.value.times == losses, "each of which is counted"


def test_a_rank_that_hangs_is_ended_and_said_to_have_hung_and_what_one_failed_of_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distributed_learner, "EXIT_REPORT_SECONDS", 0.05)
    ended: list[str] = []

    def other(name: str) -> tuple[distributed_learner._Peer, BlockingConnection]:
        ours, theirs = socket.socketpair()
        child = SimpleNamespace(
            socket=ours,
            end=lambda: ended.append(name),
            wait_or_terminate=lambda: "was killed (SIGKILL)",
            close=lambda: None,
        )
        return distributed_learner._Peer(cast(Any, child), 1.0), BlockingConnection(theirs, TO_RANK)

    (hung, _silent), (gone, line) = other("hung"), other("gone")
    line.close()
    led = Led()
    led._peers = [hung, gone]
    assert str(led._explain_error(EOFError())) == "rank 1 hung, and was ended and rank 2 was killed (SIGKILL)"
    assert ended == ["hung"]
    failing, line = other("failing")
    line.send(Completed(1))
    line.send(RemoteError("no such file", "value", ""))
    led._peers = [hung, failing]
    assert isinstance(led._explain_error(EOFError()), ValueError)


WAITING = list[BlockingConnection]()  # of ranks that have not ended


def other(words: Sequence[object], ended: list[str] | None = None) -> distributed_learner._Peer:
    """A rank that has said something, and waits for more where it has failed of nothing."""
    ours, theirs = socket.socketpair()
    line = BlockingConnection(theirs, TO_RANK)
    for word in words:
        line.send(word)
    if any(isinstance(word, RemoteError) for word in words):
        line.close()
    else:
        WAITING.append(line)
    end = (ended if ended is not None else []).append
    child = SimpleNamespace(
        socket=ours,
        end=lambda: end("end"),
        wait_or_terminate=lambda: "ended itself (exit status 0)",
        close=lambda: end("close"),
    )
    return distributed_learner._Peer(cast(Any, child), 1.0)


@pytest.mark.parametrize(
    ("failed", "raised", "said"),
    [
        (RemoteError("there is no checkpoint", "value", ""), UserError, "^there is no checkpoint$"),
        (RemoteError("no answer", "run", ""), RunError, "^no answer$"),
        (
            RemoteError("KeyError: 'w'", "fault", "its traceback"),
            RemoteFaultError,
            "^in rank 2: KeyError: 'w'\nits traceback$",
        ),
        (
            RemoteError("Connection closed", "gone", ""),
            RanksLostError,
            r"^ranks cannot reach each other \(Connection closed\)$",
        ),
    ],
)
def test_what_a_rank_failed_of_is_raised_though_this_one_had_done_its_part(
    failed: RemoteError, raised: type[Exception], said: str
) -> None:
    led = Led()
    led._peers = [other([Completed(1)]), other([failed])]
    with pytest.raises(raised, match=said) as found:
        led._wait_for_peers()
    assert found.type is raised


def test_a_rank_whose_reply_cannot_be_read_is_lost() -> None:
    led, ended = Led(), list[str]()
    led._peers = [other([Completed(1)]), other([Progress(1, 0), Completed(2)], ended)]
    with pytest.raises(RanksLostError, match=r"^rank 2 sent what cannot be read, and was ended$"):
        led._wait_for_peers()
    assert ended == ["end"]


def test_who_has_done_what_it_was_asked_for_did_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed_learner, "EXIT_REPORT_SECONDS", 0.01)
    led, ended, waited, receive = Led(), list[str](), list[float | None](), BlockingConnection.receive
    led._peers = [other([Completed(1)], ended), other([], ended)]

    def noted(self: BlockingConnection, seconds: float | None = None) -> Any:
        waited.append(seconds)
        return receive(self, seconds)

    monkeypatch.setattr(BlockingConnection, "receive", noted)
    with pytest.raises(RanksLostError, match=r"^rank 2 hung, and was ended$"):
        led._wait_for_peers()
    assert ended == ["end"]
    assert waited == [0.05, 0.05, 0.0, 0.01]


def test_who_is_gone_does_not_hide_what_another_failed_of() -> None:
    led = Led()
    led._peers = [
        other([RemoteError("closed by peer", "gone", "")]),
        other([RemoteError("no such node", "value", "")]),
    ]
    with pytest.raises(ValueError, match="no such node"):
        led._wait_for_peers()


def test_ranks_are_there_before_they_are_met_and_all_are_ended_before_one_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits at the meeting for one that could not load its model waits for the whole patience."""
    led, ended = Led(), list[str]()
    led._peers = [other([RemoteError("no room for it", "run", "")], ended), other([Completed(2)], ended)]
    monkeypatch.setattr(Led, "_form_group", lambda _: pytest.fail("nobody comes"))
    with pytest.raises(RunError, match="no room for it"):
        led.set_models(cast(Any, None))
    led._close_peers()
    assert ended == ["end", "end", "close", "close"]


def test_what_a_rank_fails_of_while_models_are_put_in_parts_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    led = Led()
    led._peers = [other([Completed(1), RemoteError("models.base cannot lie in parts", "value", "")])]

    def member(*_: object) -> None:
        raise RuntimeError("gloo: Connection closed by peer")

    monkeypatch.setattr(Led, "_form_group", lambda _: None)
    monkeypatch.setattr(distributed_learner, "RankWorker", member)
    with pytest.raises(ValueError, match="cannot lie in parts"):
        led.set_models(cast(Any, None))


def test_each_meeting_has_a_place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in which ranks have met before says where the dead are."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(distributed_learner, "start_all", lambda *_: [])
    with DistributedLearner(settings("tiny", tmp_path, "--training.ranks", "2")) as made:
        first = made._init_method
        made._start_peers()
        assert made._init_method != first


@pytest.mark.parametrize("losses", [0, 1])
def test_what_was_made_of_actions_is_told_once_though_the_ranks_are_lost_after_it_was(
    losses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    led, told, left = Led(), list[object](), iter([True] * losses + [False])

    def lead(self: Led, message: object, mine: Callable[[], Any]) -> Any:
        found = mine()
        if next(left):
            raise RanksLostError("rank 1 is gone")
        return found

    monkeypatch.setattr(Led, "_run_on_ranks", lead)
    led._own_worker.learn = lambda message, hear, _: hear(["what"]) or {}  # type: ignore[method-assign]
    assert led.learn([], Progress(3, 0), told.extend) == {RANKS_LOST: float(losses)}
    assert told == ["what"]


def test_a_step_that_is_learned_once_more_learns_from_the_same_new_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    led, played, left = Led(), list[list[Episode]](), iter([True, False])
    learned = list[Any]()

    def lead(self: Led, message: object, mine: Callable[[], Any]) -> Any:
        found = mine()
        if next(left):
            raise RanksLostError("rank 1 is gone")
        return found

    def play_again() -> list[Episode]:
        played.append([Episode(Task("t", "o"), f"train/0/repeat-{len(played) + 1}", 0, (), "terminated", ())])
        return played[-1]

    monkeypatch.setattr(Led, "_run_on_ranks", lead)
    led._own_worker.learn = lambda message, hear, again: learned.append([again(), again()]) or {}  # type: ignore[func-returns-value, method-assign]
    led.learn([], Progress(3, 0), play_again=play_again)
    assert len(played) == 2
    assert learned == [played, played]


def test_episodes_travel_without_what_tasks_are_graded_with_and_rates_as_no_schedule_has_changed_them() -> None:
    led = Led()
    task = Task("t", "o", {"grading": lambda: None})
    episode = Episode(task, "train/0", 0, (), "terminated", ())
    led.learn([episode], Progress(0, 0))
    (message,) = (word for word in led.did if isinstance(word, TrainStep))
    ours, theirs = socket.socketpair()
    BlockingConnection(ours, [], VALUES).send(message)
    sent = BlockingConnection(theirs, TO_RANK, VALUES).receive()
    assert [one.task.id for one in sent.episodes] == ["t"]
    assert task.data, "here it is graded still"


@pytest.mark.parametrize("shard", [True, False])
def test_only_moments_in_parts_are_brought_together_by_all(shard: bool) -> None:
    led = Led(shard)
    assert list(led._read_on_all_ranks(lambda: {"policies/actor/w.step": torch.ones(())})) == ["policies/actor/w.step"]
    assert led.did == [GatherOptimizer()] * shard


def test_folders_in_which_ranks_of_a_run_that_is_gone_have_met_are_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(distributed_learner, "start_all", lambda *_: [])
    stale = tmp_path / f"{distributed_learner.PREFIX}7-gone"
    stale.mkdir()
    (stale / "meeting 1").write_text("nobody comes")
    others = LockedFolder(tmp_path, distributed_learner.PREFIX)
    with DistributedLearner(settings("tiny", tmp_path, "--training.ranks", "2")):
        assert not stale.exists()
        assert len(list(tmp_path.glob(f"{distributed_learner.PREFIX}*"))) == 2
    assert list(tmp_path.glob(f"{distributed_learner.PREFIX}*")) == [others.path]
    others.close()


def test_a_rank_is_waited_for_as_long_as_the_patience_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    led, waited = Led(), list[float | None]()

    led._peers = [cast(Any, SimpleNamespace(receive=waited.append))]
    led._wait_for_peers()
    monkeypatch.setattr(Led, "_form_group", lambda _: None)
    monkeypatch.setattr(distributed_learner, "RankWorker", lambda *_: SimpleNamespace(learner=SimpleNamespace()))
    led.set_models(cast(Any, None))
    assert waited == [0.05, distributed_learner.LOADING_SECONDS, 0.05], "a model takes as long as it takes to load"


def test_one_that_answers_too_late_is_said_to_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed_learner, "EXIT_REPORT_SECONDS", 0.01)
    led = Led()
    led._peers = [other([Completed(1)])]
    assert "larger training.rank_timeout_seconds waits longer" in str(led._explain_error(TimeoutError()))


def test_more_ranks_than_a_processor_has_any_use_for_are_refused_before_one_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    run: Any = SimpleNamespace(device="cpu", sections=[], training=SimpleNamespace(ranks=16))
    assert select_device(run, 15) == "cpu"
    run.training.ranks = 17
    with pytest.raises(ValueError, match=r"training.ranks = 17: on a CPU .* there are 2"):
        select_device(run, 16)


def test_ranks_that_are_lost_before_they_meet_again_leave_nothing_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group they were in is closed by then, and was closed once more: an error that nobody foresaw."""
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: False)
    RankGroup.close(cast(Any, None))
