"""Distributed learner: the first rank, in the main process, leads the other ranks.

A process in a collective operation does not run Python signal handlers. A separate thread therefore receives the
signals too, and ends the other ranks. The wait then stops, and the handler's exception is raised.
"""

from __future__ import annotations

import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from marft.common.errors import RunError
from marft.common.log import get_logger
from marft.common.processes.connection import BlockingConnection
from marft.common.processes.launcher import ProcessHandle, start_all
from marft.common.processes.locked_folder import LockedFolder
from marft.common.processes.messages import MessageError, Ready
from marft.common.processes.pickling import pickle_value
from marft.common.processes.remote_error import RemoteError
from marft.common.processes.supervisor import RestartPolicy
from marft.common.types import ActionCredit, Episode
from marft.config.interfaces.schedule import Progress
from marft.config.run import RunSettings
from marft.models.policy_registry import PolicyRegistry
from marft.runs.checkpoints import restore
from marft.runs.state import CheckpointRecord, State
from marft.trainer.learner import Learner, StateReader
from marft.trainer.learner_backend import PlayAgain, RanksLostError, refuse_new_episodes
from marft.trainer.learner_metrics import CreditCallback
from marft.trainer.ranks.devices import build_peer_run, open_rank_launcher, select_device
from marft.trainer.ranks.group import RankGroup, open_store
from marft.trainer.ranks.messages import (
    FROM_RANK,
    VALUES,
    GatherOptimizer,
    LoadCheckpoint,
    NewEpisodes,
    StartRank,
    TrainStep,
    is_peer_error,
)
from marft.trainer.ranks.rank_worker import RankWorker, open_group, rank_command
from marft.trainer.run_init import RunInit

logger = get_logger(__name__)
T = TypeVar("T")
EXIT_REPORT_SECONDS = 10.0  # time for a rank to report its failure after another rank noticed a problem
LOADING_SECONDS = 300.0  # minimum timeout for other ranks to load their models after this rank
RANKS_LOST = "ranks_lost"  # name of the metric
PREFIX = "marft-ranks-"  # prefix of the rendezvous folder
GRACE_SECONDS = 1.0  # time for the Python handler to run


class DistributedLearner:
    """Distributed learner: this process, the first rank, leads the other ranks, its child processes.

    A lost rank aborts the training step. If every rank holds the full state, the state before the step is restored. The
    ranks are then started again, and the step is repeated with the same episodes.

    Args:
        run: recipe of the run.
        lost_count: number of losses since the last finished step.

    Raises:
        ValueError: a component of the recipe is unavailable on a rank.
        RunError: a rank ended during its start.
    """

    def __init__(self, run: RunSettings, lost_count: int = 0) -> None:
        self.run, self._lost_count = run, lost_count
        select_device(run, run.training.ranks - 1)  # raises before any process starts
        self._peers: list[_Peer] = []
        self._peer_run = build_peer_run(run)
        self._launcher = open_rank_launcher(run)
        self._folder = LockedFolder(Path(tempfile.gettempdir()), PREFIX)
        self._signals = SignalWatcher(self._end_peers)
        self._start_count = 0
        self._group: RankGroup | None = None
        self._worker: RankWorker | None = None
        try:
            self._start_peers()  # ranks load their models while this process loads its own
        except BaseException:
            self.close()
            raise

    def set_models(self, models: PolicyRegistry) -> None:
        """Set the models to train, and form the process group."""
        self.models = models
        self._wait_for_peers(
            LOADING_SECONDS
        )  # check that all ranks are ready: a rendezvous with a missing rank times out late
        group = self._form_group()
        with self._translate_errors():
            self._worker = RankWorker(self.run, models, group)
        self.learner.read_on_all_ranks = self._read_on_all_ranks
        self._wait_for_peers()

    @property
    def learner(self) -> Learner:
        """Learner of this rank; it has the state of the run, except for shards on other ranks."""
        return self._own_worker.learner

    @property
    def learner_state(self) -> Learner:
        """State for a checkpoint."""
        return self.learner

    def load(self, start: RunInit) -> State:
        """Load a run's start on every rank → run state.

        Raises:
            ValueError: the weights do not fit the models.
        """
        state = start.load(self.models, self.learner)
        self._own_worker.guard.resume(start.metrics_before(state.step))
        if start.record is not None:
            self._run_on_ranks(LoadCheckpoint(str(start.record.path), start.resume), self._own_worker.gather)
        return state

    def restore(self, record: CheckpointRecord) -> None:
        """Restore a checkpoint on every rank."""
        restore(record, self.models, self.learner)
        self._run_on_ranks(LoadCheckpoint(str(record.path), True), self._own_worker.gather)

    def learn(
        self,
        episodes: Sequence[Episode],
        progress: Progress,
        on_credit: CreditCallback = lambda _: None,
        play_again: PlayAgain = refuse_new_episodes,
    ) -> dict[str, float]:
        """Run a training step on every rank → metrics; ``ranks_lost`` counts repetitions.

        Raises:
            RanksLostError: sharded ranks were lost, or ranks were lost twice in the step.
            RunError: a rank cannot continue, for a reason outside MARFT.
        """
        component_state = self.learner.state_dict()
        rates = {name: optimizer.learning_rate for name, optimizer in self.learner.optimizers.items()}
        message = TrainStep([_without_data(episode) for episode in episodes], progress, rates)

        played: list[Sequence[Episode]] = []  # new episodes of the step; a repetition learns from the same

        def play_for_all(numbers: Iterator[int]) -> Sequence[Episode]:
            number = next(numbers)
            if number == len(played):
                played.append(play_again())
            for peer in self._peers:
                peer.connection.send(NewEpisodes([_without_data(episode) for episode in played[number]]))
            return played[number]

        restarts = RestartPolicy(max_starts=1 if self.run.training.shard else 2)
        while True:
            try:
                if restarts.exits:
                    self._restart_peers()
                return self._learn(message, on_credit, partial(play_for_all, count()))
            except RanksLostError as error:
                if restarts.exits:
                    error.times += self._take_lost_count()
                restarts.record_exit(str(error))
                if not restarts.may_start:
                    raise
                retry_note = "the other ranks are started again, and the step is learned once more"
                logger.warning(f"step {progress.step + 1}: {error}; {retry_note}")
            self._own_worker.guard.revert(progress.step)
            self.learner.load_state_dict(component_state)
            self._lost_count += 1

    def _learn(self, message: TrainStep, on_credit: CreditCallback, play_again: PlayAgain) -> dict[str, float]:
        credit_records: list[ActionCredit] = []  # reported once, after all ranks have finished
        metrics = self._run_on_ranks(
            message, lambda: self._own_worker.learn(message, credit_records.extend, play_again)
        )
        if credit_records:
            on_credit(credit_records)
        return metrics | {RANKS_LOST: float(self._take_lost_count())}

    def _take_lost_count(self) -> int:
        count, self._lost_count = self._lost_count, 0
        return count

    def _read_on_all_ranks(self, read: StateReader) -> dict[str, Tensor]:
        """Read the optimizer state; from every rank if it is sharded."""
        return self._run_on_ranks(GatherOptimizer(), read) if self.run.training.shard else read()

    # other ranks

    @property
    def _own_worker(self) -> RankWorker:
        assert self._worker is not None, "nobody learns yet"
        return self._worker

    def _start_peers(self) -> None:
        """Start the other ranks."""
        from transformers.utils import logging

        self._start_count += 1
        self._init_method = str(self._folder.path / f"meeting {self._start_count}")
        if self._launcher.host:
            self._store, self._init_method = open_store(self._launcher.host)
        settings = pickle_value(self._peer_run, "the recipe", "training.ranks", 1)
        names = [f"rank {rank}" for rank in range(1, self.run.training.ranks)]
        for rank, child in enumerate(start_all(self._launcher, names, rank_command), 1):
            peer = _Peer(child, self.run.training.rank_timeout_seconds)
            self._peers.append(peer)
            with suppress(OSError):  # an early exit is detected before the rendezvous
                peer.send(StartRank(settings, self._init_method, rank, logging.get_verbosity()))

    def _form_group(self) -> RankGroup:
        try:
            with self._signals.waiting():
                self._group = open_group(self.run, self._init_method, 0, self.models.device)
        except (RuntimeError, OSError) as error:
            raise self._explain_error(error) from error
        return self._group

    def _restart_peers(self) -> None:
        """Restart the other ranks with this rank's state."""
        self._close_peers()
        self._own_worker.group.close()
        self._start_peers()
        self._wait_for_peers(LOADING_SECONDS)
        self._own_worker.set_ranks(self._form_group())
        self._wait_for_peers()
        state = self._own_worker.state()
        for peer in self._peers:
            peer.send(state)
        self._wait_for_peers()

    def _run_on_ranks(self, message: object, operation: Callable[[], T]) -> T:
        """Run an operation on every rank, this rank included → this rank's result.

        Raises:
            RanksLostError: a rank was lost during the operation.
        """
        with self._translate_errors():
            for peer in self._peers:
                peer.send(message)
            with self._signals.waiting():
                result = operation()
            self._wait_for_peers()
        return result

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate communication errors into their cause."""
        try:
            yield
        except (RuntimeError, OSError) as error:
            if isinstance(error, RunError) or not is_peer_error(error):
                raise
            raise self._explain_error(error) from error

    def _wait_for_peers(self, min_seconds: float = 0.0) -> None:
        """Wait until every rank has finished its operation.

        Args:
            min_seconds: minimum timeout in seconds, even if ``rank_timeout_seconds`` is smaller.

        Raises:
            ValueError: a rank has failed.
            RunError: a rank has failed.
            RemoteFaultError: a rank has failed.
            RanksLostError: a rank was lost.
        """
        timeout_seconds = max(self.run.training.rank_timeout_seconds, min_seconds)
        for peer in self._peers:
            try:
                peer.receive(timeout_seconds)
            except (EOFError, TimeoutError, MessageError) as error:
                raise self._explain_error(error) from error

    def _explain_error(self, error: Exception) -> Exception:
        """Return the exception for a problem on other ranks: a rank's own failure, else a rank loss."""
        ends = [peer.exit_report() for peer in self._peers]
        for rank, (failed, _) in enumerate(ends, 1):
            if failed is not None and failed.kind != "gone":
                return failed.to_error(f"rank {rank}")
        lost_ranks = [f"rank {rank} {outcome}" for rank, (_, outcome) in enumerate(ends, 1) if outcome]
        if not lost_ranks and isinstance(error, TimeoutError):  # the rank answers by now
            timeout_seconds = self.run.training.rank_timeout_seconds
            lost_ranks = [
                f"a rank said nothing for {timeout_seconds:g} s; a larger training.rank_timeout_seconds waits longer"
            ]
        return RanksLostError(" and ".join(lost_ranks) if lost_ranks else f"ranks cannot reach each other ({error})")

    def _close_peers(self) -> None:
        peers, self._peers = self._peers, []
        for peer in peers:
            peer.child.end()
        for peer in peers:
            peer.close()

    def _end_peers(self) -> None:
        for peer in self._peers:
            peer.child.end()

    def close(self) -> None:
        """Stop the other ranks and release resources."""
        self._signals.close()
        self._close_peers()
        if self._group is not None:
            self._group.close()
        self._launcher.close()
        self._folder.close()

    def __enter__(self) -> DistributedLearner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Peer:
    """Connection to another rank."""

    def __init__(self, child: ProcessHandle, timeout_seconds: float) -> None:
        self.child, self.connection = child, BlockingConnection(child.socket, FROM_RANK, VALUES, timeout_seconds)
        self.pid = 0  # process id, after the start
        self._pending = 1  # pending answers: one per message, plus the ready message
        self._failed: RemoteError | None = None
        self._unreadable: MessageError | None = None

    def send(self, message: object) -> None:
        """Send a message to the rank.

        Raises:
            OSError: the rank has ended, or does not read the message.
        """
        self._pending += 1
        self.connection.send(message)

    def receive(self, seconds: float) -> None:
        """Wait for the rank's reply.

        Raises:
            EOFError: the rank has failed or ended.
            TimeoutError: no reply arrived in time.
            MessageError: the reply is not valid; no later one can be read.
        """
        self._read_reply(seconds)
        if self._failed:
            raise EOFError(self._failed.message)

    def _read_reply(self, seconds: float) -> None:
        if self._unreadable:
            raise self._unreadable
        try:
            reply = self.connection.receive(seconds)
        except MessageError as error:
            self._unreadable = error
            raise
        self._pending -= 1
        if isinstance(reply, Ready):
            self.pid = reply.pid
        self._failed = reply if isinstance(reply, RemoteError) else None

    def exit_report(self) -> tuple[RemoteError | None, str]:
        """Return the failure report, if any, and a description for the end of the process.

        The description is empty if the process still runs and owes no reply.
        """
        try:
            while not self._failed:
                self._read_reply(EXIT_REPORT_SECONDS if self._pending else 0.0)
        except EOFError:
            return None, self.child.wait_or_terminate()
        except (TimeoutError, MessageError):
            if not self._pending and not self._unreadable:
                return None, ""
            self.child.end()
            self.child.wait_or_terminate()  # waits for the end
            return None, f"{'sent what cannot be read' if self._unreadable else 'hung'}, and was ended"
        return self._failed, ""

    def close(self) -> None:
        """Close the connection and release the process."""
        self.connection.close()
        self.child.close()


def _without_data(episode: Episode) -> Episode:
    """Return an episode without its task's data, which may not pickle and is not needed for training."""
    return replace(episode, task=replace(episode.task, data={}))


class SignalWatcher:
    """Watcher of signals, active from construction in the main thread; call ``close`` at the end.

    Args:
        on_interrupt: function that ends other ranks. It is called on a separate thread, after a second Ctrl-C or a
            SIGTERM during :meth:`waiting`.
    """

    def __init__(self, on_interrupt: Callable[[], None]) -> None:
        self._on_interrupt, self._is_waiting = on_interrupt, False
        self._is_active = threading.current_thread() is threading.main_thread()
        if self._is_active:
            self._receiver, self._sender = socket.socketpair()
            self._sender.setblocking(False)
            self._previous_fd = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._watch, name="marft-signals", daemon=True).start()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark a wait for other ranks."""
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False

    def _watch(self) -> None:
        interrupt_count = 0
        while numbers := self._receiver.recv(64):
            interrupt_count += numbers.count(signal.SIGINT)
            if interrupt_count > 1 or signal.SIGTERM in numbers:
                time.sleep(GRACE_SECONDS)
                if self._is_waiting:
                    self._on_interrupt()
        self._receiver.close()

    def close(self) -> None:
        """Stop watching; repeated calls have no effect."""
        if self._is_active:
            self._is_active = False
            signal.set_wakeup_fd(self._previous_fd)
            self._sender.close()
