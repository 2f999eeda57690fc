"""Distributed learner: the first rank, in the main process, leads the other ranks."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from marft.common.errors import RunError
from marft.common.processes.held import HeldFolder
from marft.common.processes.starting import Started, start_all
from marft.common.types import ActionCredit, Episode
from marft.config.run import RunSettings
from marft.models.pool import Models
from marft.runs.checkpoints import Record, State, restore
from marft.trainer.critic import Critic
from marft.trainer.interfaces import Progress
from marft.trainer.keeping import not_finite
from marft.trainer.learner import Learner
from marft.trainer.ledger import Told
from marft.trainer.optimizers import PolicyOptimizer
from marft.trainer.ranks.devices import device_of, for_others, open_rank_starter
from marft.trainer.ranks.group import Group, open_store
from marft.trainer.ranks.heeding import Heeding
from marft.trainer.ranks.learners import RanksLostError
from marft.trainer.ranks.member import Member, group_of
from marft.trainer.ranks.program import rank_command
from marft.trainer.ranks.words import Begin, Done, Failed, Learn, Line, Load, RankFaultError, Tell, of_company
from marft.trainer.starting import Start

T = TypeVar("T")
LAST_WORDS_SECONDS = 10.0  # time for a rank to report its failure after another rank noticed a problem
LOADING_SECONDS = 300.0  # minimum timeout for other ranks to load their models after this rank
LOST = "ranks_lost"  # name of the metric
PREFIX = "marft-ranks-"  # prefix of the rendezvous folder


class Company:
    """Distributed learner: this process, the first rank, leads the other ranks, its child processes.

    A lost rank aborts the training step. If every rank holds the full state, the state before the step is restored. The
    ranks are then started again, and the step is repeated with the same episodes.

    Args:
        run: recipe of the run.
        lost: number of losses since the last finished step.

    Raises:
        ValueError: a component of the recipe is unavailable on a rank.
        RunError: a rank ended during its start.
    """

    def __init__(self, run: RunSettings, lost: int = 0) -> None:
        self.run, self._lost = run, lost
        device_of(run, run.training.ranks - 1)  # raises before any process starts
        self._others: list[_Other] = []
        self._theirs = for_others(run)
        self._starter = open_rank_starter(run)
        self._folder = HeldFolder(Path(tempfile.gettempdir()), PREFIX)
        self._heeding = Heeding(self._let_go)
        self._started = 0
        self._group: Group | None = None
        self._member: Member | None = None
        try:
            self._begin()  # ranks load their models while this process loads its own
        except BaseException:
            self.close()
            raise

    def join(self, models: Models) -> None:
        """Set the models to train, and form the process group."""
        self.models = models
        self._hear(LOADING_SECONDS)  # check that all ranks are ready: a rendezvous with a missing rank times out late
        group = self._meet()
        with self._reasons():
            self._member = Member(self.run, models, group)
        self._hear()

    @property
    def learner(self) -> Learner:
        """Learner of this rank."""
        return self._mine.learner

    @property
    def kept(self) -> Company:
        """Checkpoint state, collected from every rank."""
        return self

    def load(self, start: Start) -> State:
        """Load a run's start on every rank → run state.

        Raises:
            ValueError: the weights do not fit the models.
        """
        state = start.load(self.models, self)
        if start.record is not None:
            self._lead(Load(str(start.record.path), start.resume), self._mine.gather)
        return state

    def restore(self, record: Record) -> None:
        """Restore a checkpoint on every rank."""
        restore(record, self.models, self)
        self._lead(Load(str(record.path), True), self._mine.gather)

    def noting(self, note: Callable[[str], None]) -> None:
        """Set the callback for warnings, for example about reverted steps."""
        self._note = note
        self._mine.noting(note)

    def learn(self, episodes: Sequence[Episode], progress: Progress, told: Told = lambda _: None) -> dict[str, float]:
        """Run a training step on every rank → metrics; ``ranks_lost`` counts repetitions.

        Raises:
            RanksLostError: sharded ranks were lost, or ranks were lost twice in the step.
            RunError: a rank cannot continue, for a reason outside MARFT.
        """
        parts = self.learner.state_dict()
        rates = {name: optimizer.learning_rate for name, optimizer in self.optimizers.items()}
        progress = progress._replace(advantages=dict(progress.advantages))
        message = Learn([_without_data(episode) for episode in episodes], progress, rates)
        try:
            return self._learned(message, told)
        except RanksLostError as error:
            if self.run.training.shard:
                raise
            again = "the other ranks are started again, and the step is learned once more"
            self._note(f"step {progress.step + 1}: {error}; {again}")
        self._mine.careful.undo(progress.step)
        self.learner.load_state_dict(parts)
        self._lost += 1
        try:
            self._begin_again()
            return self._learned(message, told)
        except RanksLostError as error:
            error.times += self._counted()
            raise

    def _learned(self, message: Learn, told: Told) -> dict[str, float]:
        credits: list[ActionCredit] = []  # reported once, after all ranks have finished
        metrics = self._lead(message, lambda: self._mine.learn(message, credits.extend))
        if credits:
            told(credits)
        return metrics | {LOST: float(self._counted())}

    def _counted(self) -> int:
        lost, self._lost = self._lost, 0
        return lost

    # learner state

    @property
    def optimizers(self) -> Mapping[str, PolicyOptimizer]:
        """Policy optimizers of this rank."""
        return self.learner.optimizers

    @property
    def critic(self) -> Critic | None:
        """Critic of this rank."""
        return self.learner.critic

    def not_finite(self) -> list[str]:
        """Return the names for this rank's parts with a non-finite number."""
        return not_finite(self)

    def state_dict(self) -> dict[str, float]:
        """Return the state of credit and schedule, equal on every rank."""
        return self.learner.state_dict()

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore the state of credit and schedule on this rank."""
        self.learner.load_state_dict(state)

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return the optimizer state from every rank, unsharded."""
        if not self.run.training.shard:
            return self.learner.optimizer_state()
        return self._lead(Tell(), self.learner.optimizer_state)

    def load_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the optimizer state on this rank."""
        self.learner.load_optimizer_state(state)

    # other ranks

    @property
    def _mine(self) -> Member:
        assert self._member is not None, "nobody learns yet"
        return self._member

    def _begin(self) -> None:
        """Start the other ranks."""
        from transformers.utils import logging

        self._started += 1
        self._meeting = str(self._folder.path / f"meeting {self._started}")
        if self._starter.host:
            self._store, self._meeting = open_store(self._starter.host)
        settings = pickle.dumps(self._theirs)
        names = [f"rank {rank}" for rank in range(1, self.run.training.ranks)]
        for rank, child in enumerate(start_all(self._starter, names, rank_command), 1):
            other = _Other(child, self.run.training.rank_patience_seconds)
            self._others.append(other)
            with suppress(OSError):  # an early exit is detected before the rendezvous
                other.ask(Begin(settings, self._meeting, rank, logging.get_verbosity()))

    def _meet(self) -> Group:
        try:
            with self._heeding.waiting():
                self._group = group_of(self.run, self._meeting, 0, self.models.device)
        except (RuntimeError, OSError) as error:
            raise self._reason(error) from error
        return self._group

    def _begin_again(self) -> None:
        """Restart the other ranks with this rank's state."""
        self._end_others()
        self._mine.group.close()
        self._begin()
        self._hear(LOADING_SECONDS)
        self._mine.join(self._meet())
        self._hear()
        state = self._mine.state()
        for other in self._others:
            other.ask(state)
        self._hear()

    def _lead(self, message: object, mine: Callable[[], T]) -> T:
        """Run an operation on every rank, this rank included → this rank's result.

        Raises:
            RanksLostError: a rank was lost during the operation.
        """
        with self._reasons():
            for other in self._others:
                other.ask(message)
            with self._heeding.waiting():
                found = mine()
            self._hear()
        return found

    @contextmanager
    def _reasons(self) -> Iterator[None]:
        """Translate communication errors into their cause."""
        try:
            yield
        except (RuntimeError, OSError) as error:
            if isinstance(error, RunError) or not of_company(error):
                raise
            raise self._reason(error) from error

    def _hear(self, at_least: float = 0.0) -> None:
        """Wait until every rank has finished its operation.

        Args:
            at_least: minimum timeout in seconds, even if ``rank_patience_seconds`` is smaller.

        Raises:
            ValueError: a rank has failed.
            RunError: a rank has failed.
            RankFaultError: a rank has failed.
            RanksLostError: a rank was lost.
        """
        patience = max(self.run.training.rank_patience_seconds, at_least)
        for other in self._others:
            try:
                other.pid = other.hear(patience).pid
            except (EOFError, TimeoutError) as error:
                raise self._reason(error) from error

    def _reason(self, error: Exception) -> Exception:
        """Return the exception for a problem on other ranks: a rank's own failure, else a rank loss."""
        ends = [other.last_words() for other in self._others]
        for rank, (failed, _) in enumerate(ends, 1):
            if failed is not None and failed.kind != "gone":
                return _error_of(failed, rank)
        lost = [f"rank {rank} {outcome}" for rank, (_, outcome) in enumerate(ends, 1) if outcome]
        if not lost and isinstance(error, TimeoutError):  # the rank answers by now
            patience = self.run.training.rank_patience_seconds
            lost = [f"a rank said nothing for {patience:g} s; a larger training.rank_patience_seconds waits longer"]
        return RanksLostError(" and ".join(lost) if lost else f"ranks cannot reach each other ({error})")

    def _end_others(self) -> None:
        others, self._others = self._others, []
        for other in others:
            other.child.end()
        for other in others:
            other.close()

    def _let_go(self) -> None:
        for other in self._others:
            other.child.end()

    def close(self) -> None:
        """Stop the other ranks and release resources."""
        self._heeding.close()
        self._end_others()
        if self._group is not None:
            self._group.close()
        self._starter.close()
        self._folder.close()

    def __enter__(self) -> Company:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Other:
    """Connection to another rank."""

    def __init__(self, child: Started, patience: float) -> None:
        self.child, self.line = child, Line(child.socket, patience)
        self.pid = 0  # process id, after the start
        self._owes = 1  # pending answers: one per message, plus the ready message
        self._failed: Failed | None = None

    def ask(self, message: object) -> None:
        """Send a message to the rank.

        Raises:
            OSError: the rank has ended, or does not read the message.
        """
        self._owes += 1
        self.line.send(message)

    def hear(self, seconds: float) -> Done:
        """Wait for the rank's reply.

        Raises:
            EOFError: the rank has failed or ended.
            TimeoutError: no reply arrived in time.
        """
        answer = self._answer(seconds)
        if self._failed:
            raise EOFError(self._failed.said)
        assert isinstance(answer, Done)
        return answer

    def _answer(self, seconds: float) -> object:
        answer = self.line.receive(seconds)
        self._owes -= 1
        self._failed = answer if isinstance(answer, Failed) else None
        return answer

    def last_words(self) -> tuple[Failed | None, str]:
        """Return the failure report, if any, and a description for the end of the process.

        The description is empty if the process still runs and owes no reply.
        """
        try:
            while not self._failed:
                self._answer(LAST_WORDS_SECONDS if self._owes else 0.0)
        except EOFError:
            return None, self.child.outcome()
        except TimeoutError:
            if not self._owes:
                return None, ""
            self.child.end()
            self.child.outcome()  # waits for the end
            return None, "hung, and was ended"
        return self._failed, ""

    def close(self) -> None:
        """Close the connection and release the process."""
        self.line.close()
        self.child.close()


def _without_data(episode: Episode) -> Episode:
    """Return an episode without its task's data, which may not pickle and is not needed for training."""
    return replace(episode, task=replace(episode.task, data={}))


def _error_of(failed: Failed, rank: int) -> Exception:
    if failed.kind == "value":
        return ValueError(failed.said)
    if failed.kind == "run":
        return RunError(failed.said)
    error = RankFaultError(f"in rank {rank}: {failed.said}")
    error.add_note(failed.trace)
    return error
