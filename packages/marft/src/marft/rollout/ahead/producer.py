"""Background producer of episode groups, with the forks that credit assignment needs."""

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
Both = tuple[list[Episode], list[Episode]]  # attempts without forks, and all episodes
MOST_THREADS = 1024  # one thread per forked group
POLL_SECONDS = 1.0


class Producer:
    """Background player of several groups at a time; call ``close`` at the end.

    A failure of any group is raised at once in :meth:`take`, even if the caller waits for another group. Such a failure
    never concerns a single group.
    """

    def __init__(self, rollouts: Rollouts, tasks: Sequence[Task]) -> None:
        self._rollouts, self._tasks = rollouts, tasks
        forking = forking_of(rollouts.run.algorithm)
        self._threads = (
            ThreadPoolExecutor(MOST_THREADS, "marft-group") if forking else None
        )  # each thread waits for its episodes
        self._groups: dict[int, Future[Group]] = {}
        self._begun: dict[int, list[Begun]] = {}
        self._lock, self._ended = Lock(), 0  # ``_ended`` counts the calls of ``end``
        self.clock = Clock()

    @property
    def in_play(self) -> int:
        """Number of unfinished groups."""
        return sum(not group.done() for group in self._groups.values())

    def has(self, number: int) -> bool:
        """Return True if a group is in progress, or finished and not taken."""
        return number in self._groups

    def begin(self, number: int, standing: Standing | None = None) -> None:
        """Start a group in the background.

        Args:
            number: number of the group.
            standing: curriculum state; None for the initial state.
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
        """Add a finished group, for example from a checkpoint."""
        self._groups[group.number] = there = Future[Group]()
        there.set_result(group)

    def take(self, number: int) -> Group:
        """Wait for a group, then remove and return the group.

        Raises:
            RunError: no more episodes can be played. Other errors of rollouts are raised unchanged.
        """
        while not self._groups[number].done():
            for group in self._groups.values():
                if group.done():
                    group.result()
            wait([group for group in self._groups.values() if not group.done()], return_when=FIRST_COMPLETED)
        self._begun.pop(number, None)
        return self._groups.pop(number).result()

    def over(self) -> list[Group]:
        """Return the finished, not yet taken groups, sorted by number."""
        done = [group for _, group in sorted(self._groups.items()) if group.done()]
        return [group.result() for group in done if not group.exception()]

    def end(self) -> int:
        """Cancel and remove all groups; return their number."""
        with self._lock:
            self._ended += 1
            begun = [one for some in self._begun.values() for one in some]
        self._rollouts.end(begun)
        count = len(self._groups)
        self._groups.clear()
        self._begun.clear()
        return count

    def close(self) -> None:
        """Cancel all groups and shut down the threads."""
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
        """Play a group and its forks on a separate thread, which blocks until the end."""

        def play(
            attempts: Sequence[Attempt],
            *,
            on_done: Callable[[Episode], None] = lambda _: None,  # noqa: ARG001
        ) -> list[Episode]:
            outcome = self._play(number, attempts, ended).outcome
            while not outcome.done() and ended == self._ended:  # poll: an endless wait would block the exit of Python
                wait([outcome], POLL_SECONDS)
            if not outcome.done():
                raise CancelledError
            return outcome.result()

        return play_forking(self._rollouts.run, play, attempts, lambda _: None)


def _then(first: Future[T], make: Callable[[T], Group]) -> Future[Group]:
    """Return a future for the finished group."""
    group: Future[Group] = Future()

    def done(over: Future[T]) -> None:
        error = CancelledError() if over.cancelled() else over.exception()
        if error:
            group.set_exception(error)
        else:
            group.set_result(make(over.result()))

    first.add_done_callback(done)
    return group
