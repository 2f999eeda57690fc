"""Export of recorded episodes from a folder, complete or in part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from marft.common.errors import UserError
from marft.common.types import Episode
from marft.config.settings import did_you_mean
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft_serve.tracing.episode_spans import Tracer, build_resource, make_batches
from marft_serve.tracing.otlp import encode_json_line
from marft_serve.tracing.span import AttributeValue, Span
from marft_serve.tracing.team_metadata import TeamMetadata

SESSION_FILES = "sessions-*.parquet"  # files written by marft serve --record
# sends spans with their resource attributes; returns the endpoint's message about rejected spans
SendSpans = Callable[[Sequence[Span], Mapping[str, AttributeValue]], str]


@dataclass(slots=True)
class ExportProgress:
    """Progress of an export.

    Args:
        episodes: number of exported episodes.
        spans: number of exported spans.
        rejected: messages about rejected spans.
    """

    episodes: int = 0
    spans: int = 0
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
    def from_folder(folder: Path, step: int = 0, task: str = "") -> Recording:
        """Find the files in a folder.

        Args:
            folder: the folder.
            step: training step, counted from 1; 0 for all steps.
            task: only episodes of this task; "" for all.

        Raises:
            UserError: the run does not exist, or nothing was recorded.
        """
        sessions = tuple(sorted(folder.glob(SESSION_FILES)))
        if sessions:
            if step:
                raise UserError("sessions that were served have no steps; leave out --step")
            return Recording(folder, sessions, "", task)
        run = RunFolder.open(folder)
        files = (run.find_recorded(step),) if step or not run.recorded_steps() else tuple(run.recorded_steps())
        return Recording(folder, files, run.read_id(), task)

    def export(
        self, send_spans: SendSpans, content: bool, progress: ExportProgress, on_file: Callable[[], None]
    ) -> None:
        """Export every episode's spans, file by file.

        Args:
            send_spans: function that sends spans.
            content: True to include prompts, answers, and the arguments and results of tool calls.
            progress: progress, updated in place, also if an error ends the export.
            on_file: callback after each file.

        Raises:
            UserError: a file cannot be read, or no episode belongs to the task.
            RunError: the endpoint did not accept the spans.
        """
        team, task_ids = TeamMetadata.from_file(self.folder / "config.toml", self.folder.resolve().name), set[str]()
        for file in self.files:
            tracer = Tracer(self.identity or file.stem.rpartition("-")[0], team, content)
            resource = build_resource(tracer)
            for batch in make_batches(self._iter_episodes(file, task_ids), tracer):
                if rejected := send_spans(batch.spans, resource):
                    progress.rejected.append(rejected)
                progress.episodes += batch.episodes
                progress.spans += len(batch.spans)
            on_file()
        if not progress.spans:
            raise UserError(f"no recorded episode is of task {self.task!r}{did_you_mean(self.task, task_ids)}")

    def _iter_episodes(self, file: Path, task_ids: set[str]) -> Iterator[Episode]:
        for episode in read_episodes(file):
            task_ids.add(episode.task.id)
            if self.task in ("", episode.task.id, f"{episode.task.id}#{episode.sample}"):
                yield _with_start_time(episode, file)


def _with_start_time(episode: Episode, file: Path) -> Episode:
    """Return an episode with a start time.

    Older versions recorded none. Then the file's modification time is used as the end of the episode.
    """
    return episode if episode.start_time else replace(episode, start_time=file.stat().st_mtime - episode.seconds)


@contextmanager
def open_trace_file(path: Path) -> Iterator[SendSpans]:
    """Context manager with a function that writes spans to a file, as one JSON line per call.

    The file appears only when it is complete.

    Raises:
        UserError: the file already exists.
    """
    if path.exists():
        raise UserError(f"{path} is there already; name another file, or remove it")
    temporary = path.with_name(f"{path.name}.part")
    try:
        with temporary.open("w", encoding="utf-8") as file:

            def write_spans(spans: Sequence[Span], resource: Mapping[str, AttributeValue]) -> str:
                """Write spans as one line."""
                file.write(encode_json_line(spans, resource))
                return ""

            yield write_spans
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
