"""Pool of worker processes: replaces lost workers and plays their attempts again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from marft.common.errors import RunError
from marft.common.processes.child_process import python_command
from marft.common.processes.launcher import Launcher, NoResourcesError, ProcessHandle
from marft.common.types import Episode
from marft.common.usage import sum_counts
from marft.config.interfaces.engine import Sampler
from marft.rollout.workers.link import Leases, Link, RetriedRollout, WorkerLostError
from marft.rollout.workers.messages import StartWorker

HEARTBEAT_SECONDS = 1.0
GRACE_SECONDS = 5.0  # time for a worker to answer, on top of the timeout of environment calls
MAX_START_ATTEMPTS = 8  # attempts to replace a worker; a process may be killed during its start


class WorkerPool:
    """Worker process pool; lost workers are replaced and their attempts played again.

    Args:
        begin: message that every worker is built from.
        engine: sampler for the requests of the workers.
        timeout: maximum seconds of a call into an environment.
        starter: starter of worker processes.
        max_retries: number of retries of an attempt whose process ended while playing only that attempt; then the
            attempt's task is excluded.
        excluded_tasks: excluded tasks, by id, and the reason; the pool adds entries.
    """

    def __init__(
        self,
        begin: StartWorker,
        engine: Sampler,
        timeout: float,
        starter: Launcher,
        max_retries: int,
        excluded_tasks: dict[str, str],
    ) -> None:
        self.begin, self.engine, self.patience = begin, engine, timeout + GRACE_SECONDS
        self.starter, self.max_retries, self.excluded_tasks = starter, max_retries, excluded_tasks
        self.links: list[Link] = []
        self.lost_count = self.retry_count = 0  # lost workers; attempts played again
        self._leases = Leases()  # shared by all workers of the run
        self._lost_usage: Mapping[str, float] = {}  # of lost workers
        self._background_tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()  # set when a waiting attempt may find a free worker
        self._failed_workers: dict[int, Exception] = {}  # indices of workers that cannot be replaced
        self._unlinked: list[ProcessHandle] = []  # started, without a link yet
        self._is_closed = False

    async def start(self, children: Sequence[ProcessHandle]) -> None:
        """Start every worker.

        Raises:
            ValueError: a component of the recipe is unavailable in a worker.
            RunError: a worker process ended during its start.
        """
        self.links = [self._link(child) for child in children]
        starting = [asyncio.create_task(link.start(self.begin)) for link in self.links]
        try:
            await asyncio.gather(*starting)
        except BaseException:
            for link in self.links:
                link.child.end()
            await asyncio.gather(*starting, *(link.exited for link in self.links), return_exceptions=True)
            raise
        self._background_tasks = [asyncio.create_task(self._supervise(index)) for index in range(len(children))]
        self._background_tasks.append(asyncio.create_task(self._send_heartbeats()))

    async def play(self, rollout: RetriedRollout) -> None:
        """Play an attempt until the episode no longer counts as live.

        The least busy worker plays the attempt. If the worker is lost, another worker plays the attempt again.

        Raises:
            ValueError: the attempt cannot be sent to another process.
            RunError: all workers are lost and cannot be restarted.
        """
        while link := await self._wait_for_worker(rollout):
            rollout.active = link.play(rollout.attempt, rollout.team, rollout.max_concurrent)
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
            ValueError: see :meth:`play`.
            RunError: see :meth:`play`.
        """
        while rollout.failed_episode is None:
            assert rollout.active is not None
            try:
                return await rollout.active.episode
            except WorkerLostError as error:  # lost during the computation of rewards
                self._handle_loss(rollout, error)
                await self.play(rollout)
        return rollout.failed_episode

    def usage(self) -> dict[str, float]:
        """Return total usage over the workers, and failure counts, by metric name."""
        failures = {
            "workers_lost": float(self.lost_count),
            "episodes_retried": float(self.retry_count),
            "tasks_excluded": float(len(self.excluded_tasks)),
        }
        return sum_counts(self._lost_usage, *(link.usage for link in self.links)) | failures

    async def cancel(self) -> None:
        """Cancel every worker's attempts."""
        await asyncio.gather(*(link.cancel() for link in self.links))
        self._changed.set()

    async def end(self) -> None:
        """Stop every worker."""
        self._is_closed = True
        for task in self._background_tasks:
            task.cancel()
        for child in self._unlinked:
            child.end()
        await asyncio.gather(*(link.end() for link in self.links))

    # attempts

    async def _wait_for_worker(self, rollout: RetriedRollout) -> Link | None:
        """Wait for the least busy worker with room for an attempt.

        Return None if the attempt was given up.
        """
        while not self._is_excluded(rollout):
            free_links = [
                link
                for link in self.links
                if link.ready and link.live_count < min(link.max_concurrent, rollout.max_concurrent)
            ]
            if free_links:
                return min(free_links, key=lambda link: link.live_count)
            if len(self._failed_workers) == len(self.links):
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

    def _link(self, child: ProcessHandle) -> Link:
        return Link(child, self.engine, self._leases, self.patience)

    async def _supervise(self, index: int) -> None:
        while index not in self._failed_workers:
            await asyncio.shield(self.links[index].exited)
            self.lost_count += 1
            self._lost_usage = sum_counts(self._lost_usage, self.links[index].usage)
            self.links[index].usage = {}
            try:
                await self._replace_worker(index)
            except Exception as error:  # noqa: BLE001  waiting attempts raise the error
                self._failed_workers[index] = error
                if remaining := len(self.links) - len(self._failed_workers):
                    logging.getLogger("marft").warning("%s; the run goes on with %d", error, remaining)
            finally:
                self._changed.set()

    async def _replace_worker(self, index: int) -> None:
        """Replace a lost worker.

        Raises:
            ValueError: a component of the recipe is no longer available.
            RunError: every new process ended during its start, or there is no room for one.
        """
        name = self.links[index].child.name
        for number in range(MAX_START_ATTEMPTS):
            try:
                child = await asyncio.to_thread(self._start_process, name, index)
                self._unlinked.remove(child)
                self.links[index] = link = self._link(child)
                await link.start(self.begin)
            except RunError as error:
                if number == MAX_START_ATTEMPTS - 1 or isinstance(error, NoResourcesError):
                    raise RunError(f"{name} was lost and cannot be started again: {error}") from error
                if not self.links[index].exited.done():
                    await self.links[index].exited
            else:
                return

    def _start_process(self, name: str, index: int) -> ProcessHandle:
        """Start a process; stop it if the run ended during the start."""
        child = self.starter.start(name, worker_command, slot=index)
        self._unlinked.append(child)
        if self._is_closed:
            child.end()
        return child

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            for link in self.links:
                if link.ready:
                    link.send_heartbeat()


def _exclusion_message(times: int, reason: str) -> str:
    processes = "a worker process" if times == 1 else f"{times} worker processes, one after the other,"
    return f"its task is set aside for the rest of the run: {processes} ended with nothing else in it; {reason}"


def worker_command(descriptor: int) -> Sequence[str]:
    """Return the command for a worker, with this process's Python and module search path.

    Args:
        descriptor: file descriptor of the worker's end of the connection.
    """
    return python_command("marft.rollout.workers.worker", descriptor)
