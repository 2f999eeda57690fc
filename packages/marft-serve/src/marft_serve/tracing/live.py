"""Episodes sent to a receiver while they are played. Whatever becomes of it, nobody who plays waits for it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from marft.common.observing import Observer
from marft.common.texts import one_line, raised
from marft.common.types import Episode
from marft_serve.tracing.batches import batches, resource_of
from marft_serve.tracing.cast import Cast
from marft_serve.tracing.episode import Tracer
from marft_serve.tracing.otlp import check_installed, protobuf
from marft_serve.tracing.receiver import Receiver, UnsentError, headers_of, traces_url
from marft_serve.tracing.settings import TracingSettings

TOGETHER = 64  # episodes that are sent at once
LINGER = 1.0  # seconds that an episode waits for others
TRIES = 3
LAST_SECONDS = 10.0  # for what is left when a run ends


class Live:
    """Sends episodes, on a thread of its own. Close it.

    Args:
        waiting: episodes that wait to be sent, at most. Those for which there is no room are lost, and counted.

    Raises:
        ValueError: a package is missing, or a header in the environment is none.
    """

    def __init__(self, tracer: Tracer, url: str, *, timeout: float = 10.0, waiting: int = 1024) -> None:
        check_installed()
        self._over, self._given_up = threading.Event(), False
        self._receiver = Receiver(traces_url(url), headers_of(), timeout, TRIES, self._over.wait)
        self._tracer, self._resource = tracer, resource_of(tracer)
        self._queue: queue.Queue[Episode] = queue.Queue(waiting)
        self._lock = threading.Lock()
        self._added = self._sent = self._lost = 0
        self.problem = ""  # what the receiver said first
        self._thread = threading.Thread(target=self._work, name="marft-tracing", daemon=True)
        self._thread.start()

    @property
    def sent(self) -> int:
        """Episodes that the receiver has taken."""
        return self._sent

    @property
    def lost(self) -> int:
        """Episodes that it will not have."""
        return self._lost

    def add(self, episode: Episode) -> None:
        """Take an episode, to be sent soon. Never waits."""
        with self._lock:
            self._added += 1
        try:
            self._queue.put_nowait(episode)
        except queue.Full:
            self._lose(1, f"it does not keep up: {self._queue.maxsize} episodes wait for it")

    def close(self, seconds: float = LAST_SECONDS) -> None:
        """Send what is left. What is not taken in so many seconds is lost."""
        self._over.set()
        self._thread.join(seconds)
        self._given_up = True
        with self._lock:
            left = self._added - self._sent - self._lost
        if left:
            self._lose(left, f"it did not take them within {seconds:g} s of the end")

    def _lose(self, count: int, why: str) -> None:
        with self._lock:
            self._lost += count
            self.problem = self.problem or why

    def _work(self) -> None:
        while not (self._given_up or (self._over.is_set() and self._queue.empty())):
            if some := self._some():
                self._send(some)

    def _some(self) -> list[Episode]:
        """What has come within a moment, or all that is left."""
        some, until = list[Episode](), time.monotonic() + LINGER
        while len(some) < TOGETHER:
            try:
                left = 0.0 if self._over.is_set() else max(0.0, until - time.monotonic())
                some.append(self._queue.get(timeout=left) if left else self._queue.get_nowait())
            except queue.Empty:
                break
        return some

    def _send(self, episodes: list[Episode]) -> None:
        done = 0
        try:
            for batch in batches(episodes, self._tracer):
                rejected = self._receiver.send(protobuf(batch.spans, self._resource))
                done += batch.episodes
                with self._lock:
                    self._sent += batch.episodes
                    self.problem = self.problem or (f"it left out {rejected}" if rejected else "")
        except UnsentError as error:
            self._lose(len(episodes) - done, str(error))
        except Exception as error:  # noqa: BLE001  nothing about traces may end a run, or this thread
            self._lose(len(episodes) - done, one_line(raised(error)))


class Traced(Observer):
    """Tells an observer everything, and sends the episodes on."""

    def __init__(self, observer: Observer, live: Live) -> None:
        self._observer, self._live = observer, live
        self._said = False

    def began(self, done: int, steps: int) -> None:
        self._observer.began(done, steps)

    def episode(self, episode: Episode) -> None:
        self._live.add(episode)
        self._observer.episode(episode)

    def step(self, step: int, metrics: dict[str, float]) -> None:
        self._observer.step(step, metrics)
        if self._live.problem and not self._said:
            self._said = True
            self._observer.note(f"traces: {self._live.problem}. The run goes on, and this is said once")

    def guard(self, step: int, name: str, sentence: str) -> None:
        self._observer.guard(step, name, sentence)

    def note(self, text: str) -> None:
        self._observer.note(text)

    def wants_stop(self) -> bool:
        return self._observer.wants_stop()


@contextmanager
def traced(
    settings: TracingSettings, observer: Observer, run: str, recipe: Mapping[str, object], remedy: str = ""
) -> Iterator[Observer]:
    """An observer that sends episodes on, where settings name a receiver; else the same one.

    Args:
        run: the run's identity, which ids are made of.
        recipe: as a plain table.
        remedy: how what is lost can be sent later.

    Raises:
        ValueError: a package is missing, or a header in the environment is none.
    """
    if not settings.otlp:
        yield observer
        return
    tracer = Tracer(run, Cast.of(recipe), settings.content)
    live = Live(tracer, settings.otlp, timeout=settings.timeout_seconds, waiting=settings.queue)
    try:
        yield Traced(observer, live)
    finally:
        live.close()
        if live.lost:
            observer.note(f"traces: {live.lost} episodes were not sent to {settings.otlp}: {live.problem}{remedy}")
