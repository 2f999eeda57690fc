"""Keeps groups in play in the background: each the way that the algorithm's credit asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import TypeVar

from marft.agents.game import Attempt
from marft.common.types import Episode, Task
from marft.rollout.ahead.clock import Clock
from marft.rollout.ahead.groups import Group
from marft.rollout.collection import attempts_at, play_forking
from marft.rollout.forking.interface import forking_of
from marft.rollout.playing import Begun, Rollouts
from marft.runs.stated import Standing

T = TypeVar("T")
Both = tuple[list[Episode], list[Episode]]  # the attempts as the policies make them, and everything that was played
MOST_THREADS = 1024  # of groups that are forked
POLL_SECONDS = 1.0


class Producer:
    """Plays groups, several at once. Close it.

    Whoever waits for a group hears at once what went wrong with any other: what is raised is never a group's own.
    """

    def __init__(self, rollouts: Rollouts, tasks: Sequence[Task]) -> None:
        self._rollouts, self._tasks = rollouts, tasks
        forking = forking_of(rollouts.run.algorithm)
        self._threads = (
            ThreadPoolExecutor(MOST_THREADS, "marft-group") if forking else None
        )  # each waits for what it plays
        self._groups: dict[int, Future[Group]] = {}
        self._begun: dict[int, list[Begun]] = {}
        self._lock, self._ended = Lock(), 0  # how often all of them were let go
        self.clock = Clock()

    @property
    def in_play(self) -> int:
        """Groups that are begun and not over."""
        return sum(not group.done() for group in self._groups.values())

    def has(self, number: int) -> bool:
        """Whether a group is in play, or over and not taken."""
        return number in self._groups

    def begin(self, number: int, standing: Standing | None = None) -> None:
        """Begin to play a group.

        Args:
            standing: of the curriculum; None where it begins.
        """
        run = self._rollouts.run
        step = number // run.rollout.tasks_per_step
        attempts = attempts_at(run, self._tasks, step, number, 1, standing=standing)
        self.clock.began()
        if self._threads:
            played = self._threads.submit(self._fork, number, attempts, self._ended)
            group = _then(played, lambda both: Group(number, *both))
        else:
            outcome = self._play(number, attempts, self._ended).outcome
            group = _then(outcome, lambda episodes: Group(number, episodes, episodes))
        group.add_done_callback(lambda _: self.clock.ended())
        self._groups[number] = group

    def put(self, group: Group) -> None:
        """Have a group that was played before."""
        self._groups[group.number] = there = Future[Group]()
        there.set_result(group)

    def take(self, number: int) -> Group:
        """Wait for a group, and let go of it.

        Raises:
            RunError: nothing can be played any more. Whatever else playing raises is raised here, too.
        """
        while not self._groups[number].done():
            for group in self._groups.values():
                if group.done():
                    group.result()
            wait([group for group in self._groups.values() if not group.done()], return_when=FIRST_COMPLETED)
        self._begun.pop(number, None)
        return self._groups.pop(number).result()

    def over(self) -> list[Group]:
        """Groups that were played and not taken, by number."""
        done = [group for _, group in sorted(self._groups.items()) if group.done()]
        return [group.result() for group in done if not group.exception()]

    def end(self) -> int:
        """Let go of all groups → how many that were."""
        with self._lock:
            self._ended += 1
            begun = [one for some in self._begun.values() for one in some]
        self._rollouts.end(begun)
        count = len(self._groups)
        self._groups.clear()
        self._begun.clear()
        return count

    def close(self) -> None:
        """Let go of everything."""
        self.end()
        if self._threads:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _play(self, number: int, attempts: Sequence[Attempt], ended: int) -> Begun:
        with self._lock:
            if ended != self._ended:
                raise CancelledError
            begun = self._rollouts.begin(attempts)
            self._begun.setdefault(number, []).append(begun)
        return begun

    def _fork(self, number: int, attempts: Sequence[Attempt], ended: int) -> Both:
        """On a thread of its own, which waits."""

        def play(
            attempts: Sequence[Attempt],
            *,
            on_done: Callable[[Episode], None] = lambda _: None,  # noqa: ARG001
        ) -> list[Episode]:
            outcome = self._play(number, attempts, ended).outcome
            while not outcome.done() and ended == self._ended:  # one that waits for ever keeps Python from ending
                wait([outcome], POLL_SECONDS)
            if not outcome.done():
                raise CancelledError
            return outcome.result()

        return play_forking(self._rollouts.run, play, attempts, lambda _: None)


def _then(first: Future[T], make: Callable[[T], Group]) -> Future[Group]:
    """A group as soon as what it is made of is there."""
    group: Future[Group] = Future()

    def done(over: Future[T]) -> None:
        error = CancelledError() if over.cancelled() else over.exception()
        if error:
            group.set_exception(error)
        else:
            group.set_result(make(over.result()))

    first.add_done_callback(done)
    return group
