"""All worker processes of a run: each place is filled, again where its worker is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from marft.errors import RunError
from marft.game.engine import Sampler
from marft.game.game import Attempt
from marft.game.loop_threads import LoopThreadPool
from marft.playing import added
from marft.processes.child import Child
from marft.workers.link import Link, Playing
from marft.workers.messages import Begin
from marft.workers.program import worker_command

TICK_SECONDS = 1.0
GRACE_SECONDS = 5.0  # for a worker to answer, beside the time that a call into an environment may take
TRIES = 3  # to fill a place again


class Crew:
    """Worker processes of a run. One that is lost takes the episodes that it plays with it, and is replaced.

    Args:
        begin: what every worker is built from.
        timeout: seconds that a call into an environment may take.
    """

    def __init__(self, begin: Begin, engine: Sampler, timeout: float) -> None:
        self.begin, self.engine, self.patience = begin, engine, timeout + GRACE_SECONDS
        self.links: list[Link] = []
        self.lost = 0
        self._slots = LoopThreadPool().slots  # of the run: workers lease them
        self._used: Mapping[str, float] = {}  # by workers that are gone
        self._keeping: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._failure: Exception | None = None  # of a place that could not be filled again

    async def start(self, children: Sequence[Child]) -> None:
        """Fill every place.

        Raises:
            ValueError: something that the recipe names cannot be had in a worker.
            RunError: a worker ended before it had begun.
        """
        self.links = [Link(child, self.engine, self._slots, self.patience) for child in children]
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

    async def play(self, attempt: Attempt, team: bytes) -> Playing:
        """Have the worker that plays least play an attempt, until the episode no longer counts as live.

        Raises:
            ValueError: the attempt cannot be sent to another process.
            RunError: the workers are lost, and cannot be started again.
        """
        while not (ready := [link for link in self.links if link.ready]):
            self._changed.clear()
            if self._failure:
                raise self._failure
            await self._changed.wait()
        playing = min(ready, key=lambda link: link.live).play(attempt, team)
        await playing.over
        return playing

    def usage(self) -> dict[str, float]:
        """What all workers have taken so far, and how many were lost, by the name of a metric."""
        return added(self._used, *(link.usage for link in self.links)) | {"workers_lost": float(self.lost)}

    async def cancel(self) -> None:
        """Have every worker let go of what it plays."""
        await asyncio.gather(*(link.cancel() for link in self.links))

    async def end(self) -> None:
        """End every worker."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*(link.end() for link in self.links))

    async def _keep(self, index: int) -> None:
        while True:
            await asyncio.shield(self.links[index].over)
            self.lost += 1
            self._used = added(self._used, self.links[index].usage)
            self.links[index].usage = {}
            try:
                await self._fill_again(index)
            except Exception as error:  # noqa: BLE001  whoever waits for a worker must hear of it
                self._failure = error
                return
            finally:
                self._changed.set()

    async def _fill_again(self, index: int) -> None:
        """Start another worker in the place of one that is lost.

        Raises:
            ValueError: what the recipe names cannot be had any more.
            RunError: again and again it ended before it had begun.
        """
        name = self.links[index].child.name
        for number in range(TRIES):
            self.links[index] = link = Link(Child(name, worker_command), self.engine, self._slots, self.patience)
            try:
                await link.start(self.begin)
            except RunError as error:
                await link.over
                if number == TRIES - 1:
                    raise RunError(f"{name} was lost and cannot be started again: {error}") from error
            else:
                return

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for link in self.links:
                if link.ready:
                    link.tick()
