"""Pool of worker processes: replaces lost workers and plays their attempts again."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from marft.agents.game import Attempt
from marft.common.errors import RunError
from marft.common.log import get_logger
from marft.common.processes.child_process import python_command
from marft.common.processes.launcher import Launcher, NoResourcesError, ProcessHandle
from marft.common.processes.supervisor import Supervisor
from marft.common.types import Episode, Fork, Status
from marft.common.usage import sum_counts
from marft.config.interfaces.engine import Sampler
from marft.rollout.workers.messages import StartWorker
from marft.rollout.workers.worker_connection import ActiveAttempt, Leases, WorkerConnection, WorkerLostError

logger = get_logger(__name__)
HEARTBEAT_SECONDS = 1.0
GRACE_SECONDS = 5.0  # time for a worker to answer, on top of the timeout of environment calls


@dataclass(slots=True, eq=False)
class RetriedRollout:
    """Attempt with retries: after a lost process, the attempt restarts under the same keys.

    A lost process takes all its attempts along, and any of them may be the cause. Each of them is therefore played
    again with at most half as many concurrent attempts, and finally alone. An attempt that is alone in a lost process
    is the cause. Attempts that only shared a process with the cause are not blamed.

    Args:
        attempt: attempt to play.
        team: pickled team to play with.
        max_concurrent: maximum number of concurrent attempts in the worker, this attempt included.
        sole_failures: number of lost processes that played only this attempt.
        active: current play of the attempt; None after a loss.
        failed_episode: failed episode, after the attempt was given up.
        started_at: start time, in seconds of ``time.perf_counter``.

    >>> from marft.common.types import Task
    >>> tried = RetriedRollout(Attempt(Task("poison", "begin"), "train/0"), b"")
    >>> for company in (8, 3, 1, 1):
    ...     tried.record_loss(WorkerLostError("failed", "it was killed", company))
    ...     print(tried.max_concurrent, tried.sole_failures)
    4 0
    1 0
    1 1
    1 2
    """

    attempt: Attempt
    team: bytes
    max_concurrent: float = math.inf
    sole_failures: int = 0
    active: ActiveAttempt | None = None
    failed_episode: Episode | None = None  # failed episode, after the attempt was given up
    started_at: float = field(default_factory=time.perf_counter)

    def record_loss(self, error: WorkerLostError) -> None:
        """Update the limits after the loss of the attempt's process."""
        self.active = None
        self.max_concurrent = max(1, error.attempt_count // 2)
        self.sole_failures += error.attempt_count == 1

    def fail(self, status: Status, reason: str) -> None:
        """Stop playing the attempt; the episode gets the status and reason."""
        attempt, replay = self.attempt, self.attempt.replay
        self.failed_episode = Episode(
            attempt.task,
            attempt.stream,
            attempt.sample,
            (),
            status,
            error=reason,
            seconds=time.perf_counter() - self.started_at,
            fork=Fork(replay.origin, replay.fork_id) if replay else None,
        )


class WorkerPool:
    """Worker process pool; lost workers are replaced and their attempts played again.

    Args:
        start_message: message that every worker is built from.
        engine: sampler for the requests of the workers.
        timeout: maximum seconds of a call into an environment.
        launcher: starts the worker processes.
        max_retries: number of retries of an attempt whose process ended while playing only that attempt; then the
            attempt's task is excluded.
        excluded_tasks: excluded tasks, by id, and the reason; the pool adds entries.
    """

    def __init__(
        self,
        start_message: StartWorker,
        engine: Sampler,
        timeout: float,
        launcher: Launcher,
        max_retries: int,
        excluded_tasks: dict[str, str],
    ) -> None:
        self.start_message, self.engine, self.timeout_seconds = start_message, engine, timeout + GRACE_SECONDS
        self.launcher, self.max_retries, self.excluded_tasks = launcher, max_retries, excluded_tasks
        self.connections: list[WorkerConnection] = []
        self.lost_count = self.retry_count = 0  # lost workers; attempts played again
        self._leases = Leases()  # shared by all workers of the run
        self._lost_usage: Mapping[str, float] = {}  # of lost workers
        self._background_tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()  # set when a waiting attempt may find a free worker
        self._failed_workers: dict[int, Exception] = {}  # indices of workers that cannot be replaced
        self._supervisors: list[Supervisor] = []

    async def start(self, children: Sequence[ProcessHandle]) -> None:
        """Start every worker.

        Raises:
            ValueError: a component of the recipe is unavailable in a worker.
            RunError: a worker process ended during its start.
        """
        self.connections = [self._connect(child) for child in children]
        self._supervisors = [
            Supervisor(self.launcher, child.name, worker_command, slot=index) for index, child in enumerate(children)
        ]
        starting = [asyncio.create_task(connection.start(self.start_message)) for connection in self.connections]
        try:
            await asyncio.gather(*starting)
        except BaseException:
            for connection in self.connections:
                connection.child.end()
            await asyncio.gather(
                *starting, *(connection.exited for connection in self.connections), return_exceptions=True
            )
            raise
        self._background_tasks = [asyncio.create_task(self._supervise(index)) for index in range(len(children))]
        self._background_tasks.append(asyncio.create_task(self._send_heartbeats()))

    async def play_until_ended(self, rollout: RetriedRollout) -> None:
        """Play an attempt until the episode no longer counts as live.

        The least busy worker plays the attempt. If the worker is lost, another worker plays the attempt again.

        Raises:
            ValueError: the attempt cannot be sent to another process.
            RunError: all workers are lost and cannot be restarted.
        """
        while connection := await self._wait_for_worker(rollout):
            rollout.active = connection.play(rollout.attempt, rollout.team, rollout.max_concurrent)
            rollout.active.episode.add_done_callback(lambda _: self._changed.set())
            try:
                await rollout.active.ended
            except WorkerLostError as error:
                self._handle_loss(rollout, error)
            else:
                return

    async def wait_for_episode(self, rollout: RetriedRollout) -> Episode:
        """Wait for the rewarded episode of an attempt in progress.

        Raises:
            ValueError: see :meth:`play_until_ended`.
            RunError: see :meth:`play_until_ended`.
        """
        while rollout.failed_episode is None:
            assert rollout.active is not None
            try:
                return await rollout.active.episode
            except WorkerLostError as error:  # lost during the computation of rewards
                self._handle_loss(rollout, error)
                await self.play_until_ended(rollout)
        return rollout.failed_episode

    def usage(self) -> dict[str, float]:
        """Return total usage over the workers, and failure counts, by metric name."""
        failures = {
            "workers_lost": float(self.lost_count),
            "episodes_retried": float(self.retry_count),
            "tasks_excluded": float(len(self.excluded_tasks)),
        }
        return sum_counts(self._lost_usage, *(connection.usage for connection in self.connections)) | failures

    async def cancel(self) -> None:
        """Cancel every worker's attempts."""
        await asyncio.gather(*(connection.cancel() for connection in self.connections))
        self._changed.set()

    async def end(self) -> None:
        """Stop every worker."""
        for supervisor in self._supervisors:
            supervisor.close()
        for task in self._background_tasks:
            task.cancel()
        await asyncio.gather(*(connection.end() for connection in self.connections))

    # attempts

    async def _wait_for_worker(self, rollout: RetriedRollout) -> WorkerConnection | None:
        """Wait for the least busy worker with room for an attempt.

        Return None if the attempt was given up.
        """
        while not self._is_excluded(rollout):
            free_connections = [
                connection
                for connection in self.connections
                if connection.ready and connection.live_count < min(connection.max_concurrent, rollout.max_concurrent)
            ]
            if free_connections:
                return min(free_connections, key=lambda connection: connection.live_count)
            if len(self._failed_workers) == len(self.connections):
                raise next(iter(self._failed_workers.values()))
            self._changed.clear()
            await self._changed.wait()
        return None

    def _handle_loss(self, rollout: RetriedRollout, error: WorkerLostError) -> None:
        rollout.record_loss(error)
        if rollout.sole_failures > self.max_retries:
            self.excluded_tasks[rollout.attempt.task.id] = _exclusion_message(rollout.sole_failures, error.reason)
            self._changed.set()
            rollout.fail(error.status, self.excluded_tasks[rollout.attempt.task.id])
        else:
            self.retry_count += 1

    def _is_excluded(self, rollout: RetriedRollout) -> bool:
        if rollout.failed_episode is None and (reason := self.excluded_tasks.get(rollout.attempt.task.id)):
            rollout.fail("failed", reason)
        return rollout.failed_episode is not None

    # workers

    def _connect(self, child: ProcessHandle) -> WorkerConnection:
        return WorkerConnection(child, self.engine, self._leases, self.timeout_seconds)

    async def _supervise(self, index: int) -> None:
        while index not in self._failed_workers:
            await asyncio.shield(self.connections[index].exited)
            self.lost_count += 1
            self._lost_usage = sum_counts(self._lost_usage, self.connections[index].usage)
            self.connections[index].usage = {}
            try:
                await self._replace_worker(index)
            except Exception as error:  # noqa: BLE001  waiting attempts raise the error
                self._failed_workers[index] = error
                if remaining := len(self.connections) - len(self._failed_workers):
                    logger.warning("%s; the run goes on with %d", error, remaining)
            finally:
                self._changed.set()

    async def _replace_worker(self, index: int) -> None:
        """Replace a lost worker.

        Raises:
            ValueError: a component of the recipe is no longer available.
            RunError: every new process ended during its start, or there is no room for one.
        """
        supervisor = self._supervisors[index]
        supervisor.reset()
        while True:
            try:
                self.connections[index] = connection = self._connect(await supervisor.start())
                await connection.start(self.start_message)
            except RunError as error:
                supervisor.record_exit(str(error))
                if isinstance(error, NoResourcesError) or not supervisor.may_start:
                    raise RunError(
                        f"{supervisor.name} was lost and cannot be started again: {supervisor.last_exit}"
                    ) from error
                if not self.connections[index].exited.done():
                    await self.connections[index].exited
            else:
                return

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            for connection in self.connections:
                if connection.ready:
                    connection.send_heartbeat()


def _exclusion_message(times: int, reason: str) -> str:
    processes = "a worker process" if times == 1 else f"{times} worker processes, one after the other,"
    return f"its task is set aside for the rest of the run: {processes} ended with nothing else in it; {reason}"


def worker_command(descriptor: int) -> Sequence[str]:
    """Return the command for a worker, with this process's Python and module search path.

    Args:
        descriptor: file descriptor of the worker's end of the connection.
    """
    return python_command("marft.rollout.workers.worker", descriptor)
