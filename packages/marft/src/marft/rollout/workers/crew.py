"""Pool of worker processes: replaces lost workers and plays their attempts again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from marft.agents.engine import Sampler
from marft.common.errors import RunError
from marft.common.processes.starting import NoRoomError, Started, Starter
from marft.common.types import Episode
from marft.common.usage import added
from marft.rollout.workers.leases import Leases
from marft.rollout.workers.link import Link
from marft.rollout.workers.messages import Begin
from marft.rollout.workers.program import worker_command
from marft.rollout.workers.tried import LostError, Tried

TICK_SECONDS = 1.0
GRACE_SECONDS = 5.0  # time for a worker to answer, on top of the timeout of environment calls
TRIES = 8  # attempts to replace a worker; a process may be killed during its start


class Crew:
    """Worker process pool; lost workers are replaced and their attempts played again.

    Args:
        begin: message that every worker is built from.
        engine: sampler for the requests of the workers.
        timeout: maximum seconds of a call into an environment.
        starter: starter of worker processes.
        tries: number of processes that may end while playing only one attempt; then the attempt's task is excluded.
        set_aside: excluded tasks, by id, and the reason; the pool adds entries.
    """

    def __init__(
        self, begin: Begin, engine: Sampler, timeout: float, starter: Starter, tries: int, set_aside: dict[str, str]
    ) -> None:
        self.begin, self.engine, self.patience = begin, engine, timeout + GRACE_SECONDS
        self.starter, self.tries, self.set_aside = starter, tries, set_aside
        self.links: list[Link] = []
        self.lost = self.again = 0  # lost workers; attempts played again
        self._leases = Leases()  # shared by all workers of the run
        self._used: Mapping[str, float] = {}  # of lost workers
        self._keeping: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()  # set when a waiting attempt may find a free worker
        self._given_up: dict[int, Exception] = {}  # indices of workers that cannot be replaced
        self._spare: list[Started] = []  # started, without a link yet
        self._ended = False

    async def start(self, children: Sequence[Started]) -> None:
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
            await asyncio.gather(*starting, *(link.over for link in self.links), return_exceptions=True)
            raise
        self._keeping = [asyncio.create_task(self._keep(index)) for index in range(len(children))]
        self._keeping.append(asyncio.create_task(self._watch()))

    async def play(self, tried: Tried) -> None:
        """Play an attempt until the episode no longer counts as live.

        The least busy worker plays the attempt. If the worker is lost, another worker plays the attempt again.

        Raises:
            ValueError: the attempt cannot be sent to another process.
            RunError: all workers are lost and cannot be restarted.
        """
        while link := await self._room_for(tried):
            tried.playing = link.play(tried.attempt, tried.team, tried.most)
            tried.playing.episode.add_done_callback(lambda _: self._changed.set())
            try:
                await tried.playing.over
            except LostError as lost:
                self._lose(tried, lost)
            else:
                return

    async def episode(self, tried: Tried) -> Episode:
        """Wait for the rewarded episode of an attempt in progress.

        Raises:
            ValueError: see :meth:`play`.
            RunError: see :meth:`play`.
        """
        while tried.given_up is None:
            assert tried.playing is not None
            try:
                return await tried.playing.episode
            except LostError as lost:  # lost during the computation of rewards
                self._lose(tried, lost)
                await self.play(tried)
        return tried.given_up

    def usage(self) -> dict[str, float]:
        """Return total usage over the workers, and failure counts, by metric name."""
        counted = {
            "workers_lost": float(self.lost),
            "episodes_played_again": float(self.again),
            "tasks_set_aside": float(len(self.set_aside)),
        }
        return added(self._used, *(link.usage for link in self.links)) | counted

    async def cancel(self) -> None:
        """Cancel every worker's attempts."""
        await asyncio.gather(*(link.cancel() for link in self.links))
        self._changed.set()

    async def end(self) -> None:
        """Stop every worker."""
        self._ended = True
        for task in self._keeping:
            task.cancel()
        for child in self._spare:
            child.end()
        await asyncio.gather(*(link.end() for link in self.links))

    # attempts

    async def _room_for(self, tried: Tried) -> Link | None:
        """Wait for the least busy worker with room for an attempt.

        Return None if the attempt was given up.
        """
        while not self._is_set_aside(tried):
            room = [link for link in self.links if link.ready and link.live < min(link.most, tried.most)]
            if room:
                return min(room, key=lambda link: link.live)
            if len(self._given_up) == len(self.links):
                raise next(iter(self._given_up.values()))
            self._changed.clear()
            await self._changed.wait()
        return None

    def _lose(self, tried: Tried, lost: LostError) -> None:
        tried.lose(lost)
        if tried.alone >= self.tries:
            self.set_aside[tried.attempt.task.id] = _in_words(tried.alone, lost.reason)
            self._changed.set()
            tried.give_up(lost.status, self.set_aside[tried.attempt.task.id])
        else:
            self.again += 1

    def _is_set_aside(self, tried: Tried) -> bool:
        if tried.given_up is None and (why := self.set_aside.get(tried.attempt.task.id)):
            tried.give_up("failed", why)
        return tried.given_up is not None

    # workers

    def _link(self, child: Started) -> Link:
        return Link(child, self.engine, self._leases, self.patience)

    async def _keep(self, index: int) -> None:
        while index not in self._given_up:
            await asyncio.shield(self.links[index].over)
            self.lost += 1
            self._used = added(self._used, self.links[index].usage)
            self.links[index].usage = {}
            try:
                await self._fill_again(index)
            except Exception as error:  # noqa: BLE001  waiting attempts raise the error
                self._given_up[index] = error
                if left := len(self.links) - len(self._given_up):
                    logging.getLogger("marft").warning("%s; the run goes on with %d", error, left)
            finally:
                self._changed.set()

    async def _fill_again(self, index: int) -> None:
        """Replace a lost worker.

        Raises:
            ValueError: a component of the recipe is no longer available.
            RunError: every new process ended during its start, or there is no room for one.
        """
        name = self.links[index].child.name
        for number in range(TRIES):
            try:
                child = await asyncio.to_thread(self._start_at, name, index)
                self._spare.remove(child)
                self.links[index] = link = self._link(child)
                await link.start(self.begin)
            except RunError as error:
                if number == TRIES - 1 or isinstance(error, NoRoomError):
                    raise RunError(f"{name} was lost and cannot be started again: {error}") from error
                if not self.links[index].over.done():
                    await self.links[index].over
            else:
                return

    def _start_at(self, name: str, index: int) -> Started:
        """Start a process; stop it if the run ended during the start."""
        child = self.starter.start(name, worker_command, place=index)
        self._spare.append(child)
        if self._ended:
            child.end()
        return child

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for link in self.links:
                if link.ready:
                    link.tick()


def _in_words(times: int, reason: str) -> str:
    ended = "a worker process" if times == 1 else f"{times} worker processes, one after the other,"
    return f"its task is set aside for the rest of the run: {ended} ended with nothing else in it; {reason}"
