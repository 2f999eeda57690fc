"""``marft trace``: export recorded episodes as OpenTelemetry spans, to an endpoint or a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from marft.cli.console import INTERRUPTED, wide_console
from marft.common.errors import RunError
from marft.common.texts import sanitize
from marft_serve.tracing.episode_spans import Tracer
from marft_serve.tracing.otlp import check_installed
from marft_serve.tracing.receiver import ExportError, Receiver, build_traces_url, parse_headers
from marft_serve.tracing.recorded_episodes import (
    ExportProgress,
    Recording,
    SendSpans,
    build_receiver_sender,
    open_file_sender,
)

RETRY_HINT = "Nothing is lost: the same command sends them again, under the same ids"


def run_trace(
    path: Path,
    otlp: str,
    file: Path | None,
    step: int,
    task: str,
    headers: Sequence[str],
    timeout: float,
    content: bool,
) -> None:
    """``marft trace``.

    Raises:
        ValueError: there is nothing to export, or no destination.
        RunError: the endpoint did not accept everything; the message gives the progress.
        SystemExit: Ctrl-C.
    """
    if bool(otlp) == bool(file):
        raise ValueError("say where to:  --otlp http://localhost:4318  or  --output traces.jsonl")
    if file and headers:
        raise ValueError("--header goes with --otlp")
    recording = Recording.from_folder(path, step, task)
    if file:
        with open_file_sender(file) as make_sender:
            progress = _export(recording, make_sender, content)
        _print_line(f"{progress} written to {file}")
        return
    check_installed()
    progress = _export(
        recording, build_receiver_sender(Receiver(build_traces_url(otlp), parse_headers(headers), timeout)), content
    )
    if progress.rejected:
        raise RunError(
            f"{progress} sent, of which the receiver did not take {'; '.join(dict.fromkeys(progress.rejected))}"
        )
    _print_line(f"{progress} sent to {otlp}")


def _export(recording: Recording, make_sender: Callable[[Tracer], SendSpans], content: bool) -> ExportProgress:
    progress_counts = ExportProgress()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = wide_console()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("files of episodes", total=len(recording.files))
        try:
            recording.export(make_sender, content, progress_counts, lambda: progress.advance(bar))
        except ExportError as error:
            raise RunError(f"{progress_counts} sent, then no more: {error}. {RETRY_HINT}") from error
        except KeyboardInterrupt:
            progress.stop()
            _print_line(f"stopped: {progress_counts} sent. {RETRY_HINT}")
            raise SystemExit(INTERRUPTED) from None
    return progress_counts


def _print_line(text: str) -> None:
    wide_console().print(Text(sanitize(text)), soft_wrap=True)
