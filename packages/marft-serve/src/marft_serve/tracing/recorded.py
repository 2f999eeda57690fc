"""Recorded episodes as traces: all that a folder holds, or some of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from marft.common.types import Episode
from marft.config.settings import did_you_mean
from marft.runs.episodes import read_episodes
from marft.runs.folder import RunFolder
from marft_serve.tracing.batches import batches, resource_of
from marft_serve.tracing.cast import Cast
from marft_serve.tracing.episode import Tracer
from marft_serve.tracing.otlp import json_line, protobuf
from marft_serve.tracing.receiver import Receiver
from marft_serve.tracing.span import Span

SESSIONS = "sessions-*.parquet"  # what marft serve --record writes
Take = Callable[[list[Span]], str]  # spans → what was not taken of them, in words


@dataclass(slots=True)
class Sent:
    """How far an export came."""

    episodes: int = 0
    spans: int = 0
    files: int = 0
    rejected: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.episodes} episodes ({self.spans} spans)"


@dataclass(frozen=True, slots=True)
class Recording:
    """The files of recorded episodes in a folder: of a run, or of ``marft serve --record``.

    Args:
        task: ``id`` or ``id#sample``; "" is all.
    """

    folder: Path
    files: tuple[Path, ...]
    identity: str
    task: str = ""

    @staticmethod
    def of(folder: Path, step: int = 0, task: str = "") -> Recording:
        """Those of a training step, counted from 1; 0 is all.

        Raises:
            ValueError: there is no such run, or nothing was recorded.
        """
        sessions = tuple(sorted(folder.glob(SESSIONS)))
        if sessions:
            if step:
                raise ValueError("sessions that were served have no steps; leave out --step")
            return Recording(folder, sessions, "", task)
        run = RunFolder.open(folder)
        files = (run.recorded(step),) if step or not run.recorded_steps() else tuple(run.recorded_steps())
        return Recording(folder, files, run.identity(), task)

    def send(self, take: Callable[[Tracer], Take], content: bool, sent: Sent, on_file: Callable[[], None]) -> None:
        """Hand over the spans of every episode, file by file.

        Args:
            take: makes what takes spans, for a file's identity.
            sent: counts them, also where this ends with an error.

        Raises:
            ValueError: a file cannot be read, or no episode is of the task.
            RunError: they were not taken.
        """
        cast, known = Cast.read(self.folder / "config.toml", self.folder.resolve().name), set[str]()
        for file in self.files:
            tracer = Tracer(self.identity or file.stem.rpartition("-")[0], cast, content)
            taking = take(tracer)
            for batch in batches(self._episodes(file, known), tracer):
                if rejected := taking(batch.spans):
                    sent.rejected.append(rejected)
                sent.episodes += batch.episodes
                sent.spans += len(batch.spans)
            sent.files += 1
            on_file()
        if not sent.spans:
            raise ValueError(f"no recorded episode is of task {self.task!r}{did_you_mean(self.task, known)}")

    def _episodes(self, file: Path, known: set[str]) -> Iterator[Episode]:
        for episode in read_episodes(file):
            known.add(episode.task.id)
            if self.task in ("", episode.task.id, f"{episode.task.id}#{episode.sample}"):
                yield _dated(episode, file)


def _dated(episode: Episode, file: Path) -> Episode:
    """An episode with a beginning: of one that was recorded by a version that kept none, when its file was written is
    the latest that it can have ended."""
    return episode if episode.began else replace(episode, began=file.stat().st_mtime - episode.seconds)


def to_receiver(receiver: Receiver) -> Callable[[Tracer], Take]:
    """Sends spans to a receiver."""

    def taking(tracer: Tracer) -> Take:
        resource = resource_of(tracer)
        return lambda spans: receiver.send(protobuf(spans, resource))

    return taking


@contextmanager
def to_file(path: Path) -> Iterator[Callable[[Tracer], Take]]:
    """Writes spans to a file, a line of JSON a batch, which is there once it is whole.

    Raises:
        ValueError: it is there already.
    """
    if path.exists():
        raise ValueError(f"{path} is there already; name another file, or remove it")
    draft = path.with_name(f"{path.name}.part")
    try:
        with draft.open("w", encoding="utf-8") as file:

            def taking(tracer: Tracer) -> Take:
                resource = resource_of(tracer)

                def write(spans: list[Span]) -> str:
                    file.write(json_line(spans, resource))
                    return ""

                return write

            yield taking
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
