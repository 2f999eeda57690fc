"""Background producer of episode groups, with the forks that credit assignment needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from threading import Lock
from typing import TypeVar

from marft.agents.game import Attempt
from marft.common.types import Episode, Task
from marft.rollout.async_rollout.groups import Group
from marft.rollout.fork_plans import get_fork_plan
from marft.rollout.rollout_batch import play_with_forks, sample_attempts
from marft.rollout.runner import EpisodeCallback, RolloutHandle, RolloutRunner, ignore_episode
from marft.runs.state import CurriculumState

T = TypeVar("T")
GroupEpisodes = tuple[list[Episode], list[Episode]]  # attempts without forks, and all episodes
MAX_THREADS = 1024  # one thread per forked group
POLL_SECONDS = 1.0


class Producer:
    """Background player of several groups at a time; call ``close`` at the end.

    A failure of any group is raised at once in :meth:`take`, even if the caller waits for another group. Such a failure
    never concerns a single group.
    """

    def __init__(self, rollouts: RolloutRunner, tasks: Sequence[Task]) -> None:
        self._rollouts, self._tasks = rollouts, tasks
        forks = get_fork_plan(rollouts.run.algorithm) is not None
        # each thread waits for its episodes
        self._threads = ThreadPoolExecutor(MAX_THREADS, "marft-group") if forks else None
        self._groups: dict[int, Future[Group]] = {}
        self._handles: dict[int, list[RolloutHandle]] = {}
        self._lock, self._end_count = Lock(), 0  # ``_end_count`` counts the calls of ``end``
        self.clock = IdleClock()

    @property
    def unfinished_count(self) -> int:
        """Number of unfinished groups."""
        return sum(not group.done() for group in self._groups.values())

    def has_group(self, number: int) -> bool:
        """Return True if a group is in progress, or finished and not taken."""
        return number in self._groups

    def begin(self, number: int, curriculum: CurriculumState | None = None) -> None:
        """Start a group in the background.

        Args:
            number: number of the group.
            curriculum: curriculum state; None for the initial state.
        """
        run = self._rollouts.run
        step = number // run.rollout.tasks_per_step
        attempts = sample_attempts(run, self._tasks, step, number, 1, curriculum=curriculum)
        self.clock.start()
        if self._threads:
            future = self._threads.submit(copy_context().run, self._fork, number, attempts, self._end_count)
            group = _chain_group(future, lambda group_episodes: Group(number, *group_episodes))
        else:
            outcome = self._play(number, attempts, self._end_count).outcome
            group = _chain_group(outcome, lambda episodes: Group(number, episodes, episodes))
        group.add_done_callback(lambda _: self.clock.stop())
        self._groups[number] = group

    def put(self, group: Group) -> None:
        """Add a finished group, for example from a checkpoint."""
        self._groups[group.number] = future = Future[Group]()
        future.set_result(group)

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
        self._handles.pop(number, None)
        return self._groups.pop(number).result()

    def finished_groups(self) -> list[Group]:
        """Return the finished, not yet taken groups, sorted by number."""
        finished = [group for _, group in sorted(self._groups.items()) if group.done()]
        return [group.result() for group in finished if not group.exception()]

    def cancel(self) -> int:
        """Cancel and remove all groups; return their number."""
        with self._lock:
            self._end_count += 1
            handles = [handle for group_handles in self._handles.values() for handle in group_handles]
        self._rollouts.end(handles)
        count = len(self._groups)
        self._groups.clear()
        self._handles.clear()
        return count

    def close(self) -> None:
        """Cancel all groups and shut down the threads."""
        self.cancel()
        if self._threads:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _play(self, number: int, attempts: Sequence[Attempt], end_count: int) -> RolloutHandle:
        with self._lock:
            if end_count != self._end_count:
                raise CancelledError
            handle = self._rollouts.play_in_background(attempts)
            self._handles.setdefault(number, []).append(handle)
        return handle

    def _fork(self, number: int, attempts: Sequence[Attempt], end_count: int) -> GroupEpisodes:
        """Play a group and its forks on a separate thread, which blocks until the end."""

        def play(attempts: Sequence[Attempt], *, on_done: EpisodeCallback = ignore_episode) -> list[Episode]:  # noqa: ARG001
            outcome = self._play(number, attempts, end_count).outcome
            while not outcome.done() and end_count == self._end_count:
                wait([outcome], POLL_SECONDS)  # poll: an endless wait would block the exit of Python
            if not outcome.done():
                raise CancelledError
            return outcome.result()

        return play_with_forks(self._rollouts.run, play, attempts, ignore_episode)


def _chain_group(first: Future[T], make: Callable[[T], Group]) -> Future[Group]:
    """Return a future for the finished group."""
    group: Future[Group] = Future()

    def set_group(over: Future[T]) -> None:
        error = CancelledError() if over.cancelled() else over.exception()
        if error:
            group.set_exception(error)
        else:
            group.set_result(make(over.result()))

    first.add_done_callback(set_group)
    return group


class IdleClock:
    """Thread-safe counter of active rollouts and idle seconds.

    >>> clock = IdleClock(timer=iter([0.0, 1.0, 4.0, 9.0]).__next__)
    >>> clock.start(); clock.stop(); clock.total_idle_seconds()
    6.0

    Args:
        timer: function that returns the current time in seconds.
    """

    def __init__(self, timer: Callable[[], float] = time.perf_counter) -> None:
        self._timer, self._lock = timer, Lock()
        self._active, self._idle, self._since = 0, 0.0, timer()

    def start(self) -> None:
        """Register one more active rollout."""
        with self._lock:
            if not self._active:
                self._idle += self._timer() - self._since
            self._active += 1

    def stop(self) -> None:
        """Register a finished rollout."""
        with self._lock:
            self._active -= 1
            if not self._active:
                self._since = self._timer()

    def total_idle_seconds(self) -> float:
        """Return the total seconds without an active rollout so far."""
        with self._lock:
            return self._idle + (0.0 if self._active else self._timer() - self._since)
