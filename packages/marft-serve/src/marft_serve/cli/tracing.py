"""``marft trace``: export recorded episodes as OpenTelemetry spans, to an endpoint or a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from marft.cli.console import INTERRUPTED, wide_console
from marft.common.errors import RunError
from marft.common.texts import visible
from marft_serve.tracing.episode import Tracer
from marft_serve.tracing.otlp import check_installed
from marft_serve.tracing.receiver import Receiver, UnsentError, headers_of, traces_url
from marft_serve.tracing.recorded import Recording, Sent, Take, to_file, to_receiver

AGAIN = "Nothing is lost: the same command sends them again, under the same ids"


def trace(
    path: Path, otlp: str, file: Path | None, step: int, task: str, headers: Sequence[str], timeout: float,
    content: bool,
) -> None:  # fmt: skip
    """``marft trace``.

    Raises:
        ValueError: there is nothing to export, or no destination.
        RunError: the endpoint did not accept everything; the message gives the progress.
        SystemExit: Ctrl-C.
    """
    if bool(otlp) == bool(file):
        raise ValueError("say where to:  --otlp http://localhost:4318  or  --json traces.jsonl")
    if file and headers:
        raise ValueError("--header goes with --otlp")
    recording = Recording.of(path, step, task)
    if file:
        with to_file(file) as take:
            sent = _send(recording, take, content)
        _say(f"{sent} written to {file}")
        return
    check_installed()
    sent = _send(recording, to_receiver(Receiver(traces_url(otlp), headers_of(headers), timeout)), content)
    if sent.rejected:
        raise RunError(f"{sent} sent, of which the receiver did not take {'; '.join(dict.fromkeys(sent.rejected))}")
    _say(f"{sent} sent to {otlp}")


def _send(recording: Recording, take: Callable[[Tracer], Take], content: bool) -> Sent:
    sent = Sent()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = wide_console()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("files of episodes", total=len(recording.files))
        try:
            recording.send(take, content, sent, lambda: progress.advance(bar))
        except UnsentError as error:
            raise RunError(f"{sent} sent, then no more: {error}. {AGAIN}") from error
        except KeyboardInterrupt:
            progress.stop()
            _say(f"stopped: {sent} sent. {AGAIN}")
            raise SystemExit(INTERRUPTED) from None
    return sent


def _say(text: str) -> None:
    wide_console().print(Text(visible(text)), soft_wrap=True)
