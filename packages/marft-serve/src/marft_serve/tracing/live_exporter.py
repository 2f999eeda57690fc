"""Live export of episodes on a background thread; rollouts never wait for the endpoint."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping

from marft.common.callbacks import Callback
from marft.common.log import get_logger
from marft.common.texts import format_error, single_line
from marft.common.types import Episode
from marft_serve.tracing.episode_spans import Tracer, build_resource, make_batches
from marft_serve.tracing.otlp import check_installed, encode_protobuf
from marft_serve.tracing.receiver import ExportError, Receiver, build_traces_url, parse_headers
from marft_serve.tracing.settings import TracingSettings
from marft_serve.tracing.team_metadata import TeamMetadata

logger = get_logger(__name__)
MAX_BATCH_EPISODES = 64  # maximum number of episodes per batch
BATCH_SECONDS = 1.0  # maximum seconds that an episode waits for others in its batch
MAX_ATTEMPTS = 3
CLOSE_SECONDS = 10.0  # timeout for the remaining episodes at the end of a run


class LiveExporter:
    """Exporter on a background thread. Call :meth:`close` at the end.

    Args:
        tracer: converter to spans.
        url: URL of the endpoint.
        timeout: timeout of a request, in seconds.
        queue_size: maximum number of queued episodes. Further episodes are dropped and counted.

    Attributes:
        sent: number of exported episodes.
        dropped: number of dropped episodes.
        problem: first error of the endpoint.

    Raises:
        ValueError: a package is missing, or a header in the environment is invalid.
    """

    def __init__(self, tracer: Tracer, url: str, *, timeout: float = 10.0, queue_size: int = 1024) -> None:
        check_installed()
        self._closing, self._stopped = threading.Event(), False
        self._receiver = Receiver(build_traces_url(url), parse_headers(), timeout, MAX_ATTEMPTS, self._closing.wait)
        self._tracer, self._resource = tracer, build_resource(tracer)
        self._queue: queue.Queue[Episode] = queue.Queue(queue_size)
        self._lock = threading.Lock()
        self._added = self.sent = self.dropped = 0
        self.problem = ""
        self._thread = threading.Thread(target=self._run, name="marft-tracing", daemon=True)
        self._thread.start()

    def add_episode(self, episode: Episode) -> None:
        """Queue an episode for export; never blocks."""
        with self._lock:
            self._added += 1
        try:
            self._queue.put_nowait(episode)
        except queue.Full:
            self._drop(1, f"it does not keep up: {self._queue.maxsize} episodes wait for it")

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Export the queued episodes; drop the rest after a timeout in seconds."""
        self._closing.set()
        self._thread.join(seconds)
        self._stopped = True
        with self._lock:
            remaining = self._added - self.sent - self.dropped
        if remaining:
            self._drop(remaining, f"it did not take them within {seconds:g} s of the end")

    def _drop(self, count: int, reason: str) -> None:
        with self._lock:
            self.dropped += count
            self.problem = self.problem or reason

    def _run(self) -> None:
        while not (self._stopped or (self._closing.is_set() and self._queue.empty())):
            if episodes := self._next_batch():
                self._send(episodes)

    def _next_batch(self) -> list[Episode]:
        """Return the next batch: episodes that arrive within a short time, or up to a full batch at the end."""
        batch, until = list[Episode](), time.monotonic() + BATCH_SECONDS
        while len(batch) < MAX_BATCH_EPISODES:
            try:
                remaining = 0.0 if self._closing.is_set() else max(0.0, until - time.monotonic())
                batch.append(self._queue.get(timeout=remaining) if remaining else self._queue.get_nowait())
            except queue.Empty:
                break
        return batch

    def _send(self, episodes: list[Episode]) -> None:
        exported = 0
        try:
            for batch in make_batches(episodes, self._tracer):
                rejected = self._receiver.send(encode_protobuf(batch.spans, self._resource))
                exported += batch.episodes
                with self._lock:
                    self.sent += batch.episodes
                    self.problem = self.problem or (f"it left out {rejected}" if rejected else "")
        except ExportError as error:
            self._drop(len(episodes) - exported, str(error))
        except Exception as error:  # noqa: BLE001  an export error must not end the run or this thread
            self._drop(len(episodes) - exported, single_line(format_error(error)))


class TracingCallback(Callback):
    """Callback that exports episodes, and reports what was not sent.

    Args:
        settings: export settings, with an endpoint.
        run: identity of the run, for reproducible ids.
        recipe: the recipe as a plain table.
        hint: hint for exporting dropped episodes later.

    Raises:
        ValueError: a package is missing, or a header in the environment is invalid.
    """

    def __init__(
        self,
        settings: TracingSettings,
        run: str,
        recipe: Mapping[str, object],
        hint: str = "",
    ) -> None:
        tracer = Tracer(run, TeamMetadata.from_table(recipe), settings.include_content)
        self.exporter = LiveExporter(
            tracer, settings.otlp, timeout=settings.timeout_seconds, queue_size=settings.max_queued_episodes
        )
        self._url, self._hint = settings.otlp, hint
        self._reported = False

    def on_episode(self, episode: Episode) -> None:
        """Export the episode."""
        self.exporter.add_episode(episode)

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:  # noqa: ARG002
        """Report the first export error."""
        if self.exporter.problem and not self._reported:
            self._reported = True
            logger.warning(f"traces: {self.exporter.problem}. The run goes on, and this is said once")

    def on_train_end(self, error: BaseException | None) -> None:  # noqa: ARG002
        """Send what is queued, and report the episodes that were dropped."""
        self.exporter.close()
        if self.exporter.dropped:
            logger.warning(
                f"traces: {self.exporter.dropped} episodes were not sent to {self._url}: "
                f"{self.exporter.problem}{self._hint}"
            )
