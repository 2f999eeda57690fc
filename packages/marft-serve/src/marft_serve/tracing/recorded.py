"""Export of recorded episodes from a folder, complete or in part."""

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

SESSIONS = "sessions-*.parquet"  # files written by marft serve --record
Take = Callable[[list[Span]], str]  # sends spans; returns the endpoint's message about rejected spans


@dataclass(slots=True)
class Sent:
    """Progress of an export.

    Args:
        episodes: number of exported episodes.
        spans: number of exported spans.
        files: number of exported files.
        rejected: messages about rejected spans.
    """

    episodes: int = 0
    spans: int = 0
    files: int = 0
    rejected: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.episodes} episodes ({self.spans} spans)"


@dataclass(frozen=True, slots=True)
class Recording:
    """Files with recorded episodes in a folder: a run, or the output of ``marft serve --record``.

    Args:
        folder: the folder.
        files: the files.
        identity: identity of the run; "" for served sessions, where each file has its own.
        task: only episodes of this task, ``id`` or ``id#sample``; "" for all.
    """

    folder: Path
    files: tuple[Path, ...]
    identity: str
    task: str = ""

    @staticmethod
    def of(folder: Path, step: int = 0, task: str = "") -> Recording:
        """Find the files in a folder.

        Args:
            folder: the folder.
            step: training step, counted from 1; 0 for all steps.
            task: only episodes of this task; "" for all.

        Raises:
            ValueError: the run does not exist, or nothing was recorded.
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
        """Export every episode's spans, file by file.

        Args:
            take: function from a file's tracer to a function that sends spans.
            content: True to include prompts, answers, and the arguments and results of tool calls.
            sent: progress, updated in place, also if an error ends the export.
            on_file: callback after each file.

        Raises:
            ValueError: a file cannot be read, or no episode belongs to the task.
            RunError: the endpoint did not accept the spans.
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
    """Return an episode with a start time.

    Older versions recorded none. Then the file's modification time is used as the end of the episode.
    """
    return episode if episode.began else replace(episode, began=file.stat().st_mtime - episode.seconds)


def to_receiver(receiver: Receiver) -> Callable[[Tracer], Take]:
    """Return an exporter to an OTLP endpoint."""

    def taking(tracer: Tracer) -> Take:
        """Return the function that sends spans."""
        resource = resource_of(tracer)
        return lambda spans: receiver.send(protobuf(spans, resource))

    return taking


@contextmanager
def to_file(path: Path) -> Iterator[Callable[[Tracer], Take]]:
    """Context manager with an exporter to a file, one JSON line per batch.

    The file appears only when it is complete.

    Raises:
        ValueError: the file already exists.
    """
    if path.exists():
        raise ValueError(f"{path} is there already; name another file, or remove it")
    draft = path.with_name(f"{path.name}.part")
    try:
        with draft.open("w", encoding="utf-8") as file:

            def taking(tracer: Tracer) -> Take:
                """Return the function that writes spans."""
                resource = resource_of(tracer)

                def write(spans: list[Span]) -> str:
                    """Write spans as one line."""
                    file.write(json_line(spans, resource))
                    return ""

                return write

            yield taking
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
