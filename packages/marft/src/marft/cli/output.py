"""Command output for people, for people who want only the result (``--quiet``), and for programs (``--json``)."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Literal, TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from marft.cli.console import wide_console
from marft.cli.streams import open_safe_stream
from marft.cli.terminal import InterruptibleCallback, QuietCallback, TerminalCallback, TimeEstimate
from marft.common.errors import UserError
from marft.common.log import receive_logs
from marft.common.texts import replace_surrogates
from marft.common.types import Episode
from marft.config.secrets import redacted

SCHEMA_VERSION = 1  # incremented when a key is removed or changes its meaning

OutputMode = Literal["", "quiet", "json", "verbose"]


class JsonLinesWriter:
    """Writer for JSON lines in ASCII. Line breaks are escaped, and non-finite numbers become null."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, event: str, **fields: object) -> None:
        """Write one event as a line and flush."""
        self._out.write(
            json.dumps({"event": event, **{k: _to_json(v) for k, v in fields.items()}}, allow_nan=False) + "\n"
        )
        self._out.flush()


def _to_json(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str | Path):
        return replace_surrogates(str(value))
    if isinstance(value, Mapping):
        return {replace_surrogates(str(key)): _to_json(inner) for key, inner in value.items()}
    return [_to_json(inner) for inner in value] if isinstance(value, list | tuple) else value


@contextmanager
def json_lines_stdout() -> Iterator[JsonLinesWriter]:
    """Yield a JSON line writer for stdout; all other output goes to stderr.

    The redirection covers this process and programs that it starts.
    """
    sys.stdout.flush()
    try:
        is_stdout = sys.stdout.fileno() == 1
    except (io.UnsupportedOperation, ValueError):
        is_stdout = False  # not a file, as in a notebook
    if not is_stdout:
        out = sys.stdout
        with redirect_stdout(sys.stderr):
            yield JsonLinesWriter(out)
        return
    stdout_copy = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr), open_safe_stream(stdout_copy, 1, "ascii") as stdout:
            yield JsonLinesWriter(stdout)
    finally:
        os.dup2(stdout_copy, 1)
        os.close(stdout_copy)


class JsonCallback(InterruptibleCallback):
    """Callback that writes events as JSON lines."""

    def __init__(self, lines: JsonLinesWriter, folder: Path, roles: Sequence[str]) -> None:
        self._lines, self._folder, self._roles = lines, folder, roles
        self._step, self._steps, self._eta = 0, 0, TimeEstimate()

    def on_train_start(self, completed_steps: int, steps: int) -> None:
        """Write a ``began`` line."""
        super().on_train_start(completed_steps, steps)
        self._step, self._steps = completed_steps, steps
        self._eta.update(time.monotonic())
        self._lines.write(
            "began",
            schema=SCHEMA_VERSION,
            run=self._folder,
            agents=list(self._roles),
            done=completed_steps,
            steps=steps,
        )

    def on_episode(self, episode: Episode) -> None:
        """Write an ``episode_lost`` line for an episode without a score."""
        if not episode.is_scored:
            self._lines.write(
                "episode_lost",
                step=self._step + 1,
                task=episode.task.id,
                sample=episode.sample,
                status=episode.status,
                error=episode.error,
            )

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        """Write a ``step`` line."""
        self._step, timestamp = step, time.monotonic()
        self._eta.update(timestamp)
        seconds_left = self._eta.remaining_seconds(self._steps - step, timestamp)
        self._lines.write("step", step=step, steps=self._steps, seconds_left=seconds_left, metrics=metrics)

    def on_guard(self, step: int, name: str, sentence: str) -> None:
        """Write a ``guard`` line."""
        self._lines.write("guard", step=step, name=name, text=sentence)

    def on_note(self, text: str) -> None:
        """Write a ``note`` line."""
        self._lines.write("note", step=self._step, text=text)


def output_mode(quiet: bool, as_json: bool, verbose: bool = False) -> OutputMode:
    """Return the output mode.

    Raises:
        UserError: more than one mode is requested.
    """
    modes: dict[OutputMode, bool] = {"quiet": quiet, "json": as_json, "verbose": verbose}
    requested = [mode for mode, is_requested in modes.items() if is_requested]
    if len(requested) > 1:
        raise UserError(f"--{requested[0]} and --{requested[1]} exclude each other; use one of them")
    return requested[0] if requested else ""


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
        if self.mode == "quiet":
            return QuietCallback()
        return TerminalCallback(roles, sample_interval, label, verbose=self.mode == "verbose")


@contextmanager
def open_output(mode: OutputMode) -> Iterator[Output]:
    """Yield the output channel for a mode. It receives log records as notes; with ``--quiet``, warnings only."""
    with ExitStack() as stack:
        lines = stack.enter_context(json_lines_stdout()) if mode == "json" else None
        out = Output(mode, wide_console(), lines)
        stack.enter_context(receive_logs(redacted(out.note), logging.WARNING if mode == "quiet" else logging.INFO))
        yield out
