"""The run's side of ranks that learn together: it is the first of them, and leads the others."""

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
LAST_WORDS_SECONDS = 10.0  # for a rank to say why it has given up, once another one has heard that something is wrong
LOADING_SECONDS = 300.0  # that another rank may take to load its models when this one has, whatever the patience
LOST = "ranks_lost"  # the metric
PREFIX = "marft-ranks-"  # of the folder in which ranks meet


class Company:
    """All ranks of a run, of which this process is the first: it leads the others, which are processes of its own.

    A rank that is lost takes the step with it. Where each rank holds all that learns, everything is put back to what it
    was before that step, the ranks are started again, and the step is learned once more from the same episodes.

    Args:
        lost: how often ranks were lost since the last step that was made.

    Raises:
        ValueError: a rank cannot have what the recipe names.
        RunError: a rank ended before it had begun.
    """

    def __init__(self, run: RunSettings, lost: int = 0) -> None:
        self.run, self._lost = run, lost
        device_of(run, run.training.ranks - 1)  # refused before anything starts
        self._others: list[_Other] = []
        self._theirs = for_others(run)
        self._starter = open_rank_starter(run)
        self._folder = HeldFolder(Path(tempfile.gettempdir()), PREFIX)
        self._heeding = Heeding(self._let_go)
        self._started = 0
        self._group: Group | None = None
        self._member: Member | None = None
        try:
            self._begin()  # they import what they need, and load their models, while models are loaded here
        except BaseException:
            self.close()
            raise

    def join(self, models: Models) -> None:
        """Learn with these models from here on."""
        self.models = models
        self._hear(LOADING_SECONDS)  # they are there: who waits for one that is not at the meeting waits long
        group = self._meet()
        with self._reasons():
            self._member = Member(self.run, models, group)
        self._hear()

    @property
    def learner(self) -> Learner:
        """This rank's."""
        return self._mine.learner

    @property
    def kept(self) -> Company:
        """What a checkpoint holds: it takes all ranks to bring it together."""
        return self

    def load(self, start: Start) -> State:
        """Have all ranks begin with what a run starts from → where the run stands.

        Raises:
            ValueError: it does not fit.
        """
        state = start.load(self.models, self)
        if start.record is not None:
            self._lead(Load(str(start.record.path), start.resume), self._mine.gather)
        return state

    def restore(self, record: Record) -> None:
        """Have all ranks go back to a checkpoint of the run."""
        restore(record, self.models, self)
        self._lead(Load(str(record.path), True), self._mine.gather)

    def noting(self, note: Callable[[str], None]) -> None:
        """Have somebody told of steps that are undone, from here on."""
        self._note = note
        self._mine.noting(note)

    def learn(self, episodes: Sequence[Episode], progress: Progress, told: Told = lambda _: None) -> dict[str, float]:
        """One training step, made by all ranks → its metrics; ``ranks_lost`` counts the times that it was begun anew.

        Raises:
            RanksLostError: ranks were lost that held parts of what learns, or again in the same step.
            RunError: a rank cannot go on, for a reason outside MARFT.
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
        credits: list[ActionCredit] = []  # told once, when no rank can be lost any more
        metrics = self._lead(message, lambda: self._mine.learn(message, credits.extend))
        if credits:
            told(credits)
        return metrics | {LOST: float(self._counted())}

    def _counted(self) -> int:
        lost, self._lost = self._lost, 0
        return lost

    # all that is kept of a learner

    @property
    def optimizers(self) -> Mapping[str, PolicyOptimizer]:
        """This rank's."""
        return self.learner.optimizers

    @property
    def critic(self) -> Critic | None:
        """This rank's."""
        return self.learner.critic

    def not_finite(self) -> list[str]:
        """Return the parts that hold a number that is not finite, by name: of this rank."""
        return not_finite(self)

    def state_dict(self) -> dict[str, float]:
        """The same on every rank."""
        return self.learner.state_dict()

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """On this rank."""
        self.learner.load_state_dict(state)

    def optimizer_state(self) -> dict[str, Tensor]:
        """What the optimizers of all ranks remember, whole."""
        if not self.run.training.shard:
            return self.learner.optimizer_state()
        return self._lead(Tell(), self.learner.optimizer_state)

    def load_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        """On this rank."""
        self.learner.load_optimizer_state(state)

    # the others

    @property
    def _mine(self) -> Member:
        assert self._member is not None, "nobody learns yet"
        return self._member

    def _begin(self) -> None:
        """Start all other ranks."""
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
            with suppress(OSError):  # it has ended already, which is heard before ranks meet
                other.ask(Begin(settings, self._meeting, rank, logging.get_verbosity()))

    def _meet(self) -> Group:
        try:
            with self._heeding.waiting():
                self._group = group_of(self.run, self._meeting, 0, self.models.device)
        except (RuntimeError, OSError) as error:
            raise self._reason(error) from error
        return self._group

    def _begin_again(self) -> None:
        """Start all other ranks anew, with what this one has."""
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
        """Have every rank do something, this one too → what came of it here.

        Raises:
            RanksLostError: a rank was lost on the way.
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
        """Raise the reason where others cannot be reached in what all do together."""
        try:
            yield
        except (RuntimeError, OSError) as error:
            if isinstance(error, RunError) or not of_company(error):
                raise
            raise self._reason(error) from error

    def _hear(self, at_least: float = 0.0) -> None:
        """Until every rank has done what it was asked for.

        Args:
            at_least: seconds that it may take, however short the patience is.

        Raises:
            ValueError, RunError, RankFaultError: one has failed.
        """
        patience = max(self.run.training.rank_patience_seconds, at_least)
        for other in self._others:
            try:
                other.pid = other.hear(patience).pid
            except (EOFError, TimeoutError) as error:
                raise self._reason(error) from error

    def _reason(self, error: Exception) -> Exception:
        """What to raise once something is wrong with other ranks: what one of them failed of by itself, else that they
        are lost."""
        ends = [other.last_words() for other in self._others]
        for rank, (failed, _) in enumerate(ends, 1):
            if failed is not None and failed.kind != "gone":
                return _error_of(failed, rank)
        lost = [f"rank {rank} {outcome}" for rank, (_, outcome) in enumerate(ends, 1) if outcome]
        if not lost and isinstance(error, TimeoutError):  # one that answers by now
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
        """End the other ranks."""
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
    """Another rank, from here."""

    def __init__(self, child: Started, patience: float) -> None:
        self.child, self.line = child, Line(child.socket, patience)
        self.pid = 0  # of its process, once it has begun
        self._owes = 1  # answers: one more than it has been asked for, for it says that it is there
        self._failed: Failed | None = None

    def ask(self, message: object) -> None:
        """
        Raises:
            OSError: it has gone, or takes nothing.
        """
        self._owes += 1
        self.line.send(message)

    def hear(self, seconds: float) -> Done:
        """That it has done what it was asked for.

        Raises:
            EOFError: it has ended, or is about to: it has failed.
            TimeoutError: it did not say so in time.
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
        """What it failed of, if it says so; and how it ended, if it has or does not answer what it was asked."""
        try:
            while not self._failed:
                self._answer(LAST_WORDS_SECONDS if self._owes else 0.0)
        except EOFError:
            return None, self.child.outcome()
        except TimeoutError:
            if not self._owes:
                return None, ""
            self.child.end()
            self.child.outcome()  # once it has ended
            return None, "hung, and was ended"
        return self._failed, ""

    def close(self) -> None:
        self.line.close()
        self.child.close()


def _without_data(episode: Episode) -> Episode:
    """An episode as it travels: what a task is graded with need not pickle, and nobody learns from it."""
    return replace(episode, task=replace(episode.task, data={}))


def _error_of(failed: Failed, rank: int) -> Exception:
    if failed.kind == "value":
        return ValueError(failed.said)
    if failed.kind == "run":
        return RunError(failed.said)
    error = RankFaultError(f"in rank {rank}: {failed.said}")
    error.add_note(failed.trace)
    return error
