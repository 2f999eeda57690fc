"""Live export of episodes on a background thread; rollouts never wait for the endpoint."""

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

TOGETHER = 64  # maximum number of episodes per batch
LINGER = 1.0  # maximum seconds that an episode waits for others in its batch
TRIES = 3
LAST_SECONDS = 10.0  # timeout for the remaining episodes at the end of a run


class Live:
    """Exporter on a background thread. Call :meth:`close` at the end.

    Args:
        tracer: converter to spans.
        url: URL of the endpoint.
        timeout: timeout of a request, in seconds.
        waiting: maximum number of queued episodes. Further episodes are dropped and counted.

    Raises:
        ValueError: a package is missing, or a header in the environment is invalid.
    """

    def __init__(self, tracer: Tracer, url: str, *, timeout: float = 10.0, waiting: int = 1024) -> None:
        check_installed()
        self._over, self._given_up = threading.Event(), False
        self._receiver = Receiver(traces_url(url), headers_of(), timeout, TRIES, self._over.wait)
        self._tracer, self._resource = tracer, resource_of(tracer)
        self._queue: queue.Queue[Episode] = queue.Queue(waiting)
        self._lock = threading.Lock()
        self._added = self._sent = self._lost = 0
        self.problem = ""  # first error of the endpoint
        self._thread = threading.Thread(target=self._work, name="marft-tracing", daemon=True)
        self._thread.start()

    @property
    def sent(self) -> int:
        """Number of exported episodes."""
        return self._sent

    @property
    def lost(self) -> int:
        """Number of dropped episodes."""
        return self._lost

    def add(self, episode: Episode) -> None:
        """Queue an episode for export; never blocks."""
        with self._lock:
            self._added += 1
        try:
            self._queue.put_nowait(episode)
        except queue.Full:
            self._lose(1, f"it does not keep up: {self._queue.maxsize} episodes wait for it")

    def close(self, seconds: float = LAST_SECONDS) -> None:
        """Export the queued episodes; drop the rest after a timeout in seconds."""
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
        """Return the next batch: episodes that arrive within a short time, or up to a full batch at the end."""
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
        except Exception as error:  # noqa: BLE001  an export error must not end the run or this thread
            self._lose(len(episodes) - done, one_line(raised(error)))


class Traced(Observer):
    """Observer that exports episodes and forwards all events to another observer."""

    def __init__(self, observer: Observer, live: Live) -> None:
        self._observer, self._live = observer, live
        self._said = False

    def began(self, done: int, steps: int) -> None:
        """Forward the event."""
        self._observer.began(done, steps)

    def episode(self, episode: Episode) -> None:
        """Export the episode and forward the event."""
        self._live.add(episode)
        self._observer.episode(episode)

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Forward the event; report the first export error."""
        self._observer.step(step, metrics)
        if self._live.problem and not self._said:
            self._said = True
            self._observer.note(f"traces: {self._live.problem}. The run goes on, and this is said once")

    def guard(self, step: int, name: str, sentence: str) -> None:
        """Forward the event."""
        self._observer.guard(step, name, sentence)

    def note(self, text: str) -> None:
        """Forward the message."""
        self._observer.note(text)

    def wants_stop(self) -> bool:
        """Return the other observer's answer."""
        return self._observer.wants_stop()


@contextmanager
def traced(
    settings: TracingSettings, observer: Observer, run: str, recipe: Mapping[str, object], remedy: str = ""
) -> Iterator[Observer]:
    """Context manager with an observer that also exports episodes; without an endpoint, the original observer.

    Args:
        settings: export settings.
        observer: the original observer.
        run: identity of the run, for reproducible ids.
        recipe: the recipe as a plain table.
        remedy: hint for exporting dropped episodes later.

    Raises:
        ValueError: a package is missing, or a header in the environment is invalid.
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
