"""Command output for people, for people who want only the result (``--quiet``), and for programs (``--json``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from rich.console import Console, RenderableType
from rich.text import Text

from marft.cli.console import wide_console
from marft.cli.json_output import JsonCallback, JsonLinesWriter, json_lines_stdout
from marft.cli.terminal import InterruptibleCallback, QuietCallback, TerminalCallback

OutputMode = Literal["", "quiet", "json"]


def output_mode(quiet: bool, as_json: bool) -> OutputMode:
    """Return the output mode.

    Raises:
        ValueError: both modes are requested.
    """
    if quiet and as_json:
        raise ValueError("--quiet is for people and --json for programs; give one of them")
    return "quiet" if quiet else "json" if as_json else ""


class Output:
    """Output channel for a command."""

    def __init__(self, mode: OutputMode, console: Console, lines: JsonLinesWriter | None) -> None:
        self.mode, self._console, self._lines = mode, console, lines

    def print(self, *items: RenderableType) -> None:
        """Print results in human-readable form; no effect with ``--json``."""
        if self._lines is None:
            for item in items:
                self._console.print(item, soft_wrap=isinstance(item, str | Text))

    def emit(self, event: str, **fields: object) -> None:
        """Write an event as JSON line; no effect without ``--json``."""
        if self._lines is not None:
            self._lines.write(event, **fields)

    def note(self, text: str) -> None:
        """Write a note in either form."""
        self.print(text)
        self.emit("note", step=None, text=text)

    def build_callback(
        self, folder: Path, roles: Sequence[str], sample_interval: int, label: str
    ) -> InterruptibleCallback:
        """Return the callback for a run in this output mode."""
        if self._lines is not None:
            return JsonCallback(self._lines, folder, roles)
        return QuietCallback() if self.mode == "quiet" else TerminalCallback(roles, sample_interval, label)


@contextmanager
def open_output(mode: OutputMode) -> Iterator[Output]:
    """Yield the output channel for a mode."""
    if mode == "json":
        with json_lines_stdout() as lines:
            yield Output(mode, wide_console(), lines)
    else:
        yield Output(mode, wide_console(), None)
