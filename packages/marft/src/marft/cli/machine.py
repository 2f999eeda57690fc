"""``--json``: one JSON object per line on stdout for other programs (docs: running)."""

from __future__ import annotations

import io
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TextIO

from marft.cli.sparks import Eta
from marft.cli.streams import unbroken
from marft.cli.terminal import Interruptible
from marft.common.texts import storable
from marft.common.types import Episode

SCHEMA = 1  # incremented when a key is removed or changes its meaning


class Lines:
    """Writer for JSON lines in ASCII. Line breaks are escaped, and non-finite numbers become null."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, event: str, **fields: object) -> None:
        """Write one event as a line and flush."""
        self._out.write(
            json.dumps({"event": event, **{k: _plain(v) for k, v in fields.items()}}, allow_nan=False) + "\n"
        )
        self._out.flush()


def _plain(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str | Path):
        return storable(str(value))
    if isinstance(value, Mapping):
        return {storable(str(key)): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


@contextmanager
def lines_on_stdout() -> Iterator[Lines]:
    """Yield a JSON line writer for stdout; all other output goes to stderr.

    The redirection covers this process and programs that it starts.
    """
    sys.stdout.flush()
    try:
        ours = sys.stdout.fileno() == 1
    except (io.UnsupportedOperation, ValueError):
        ours = False  # not a file, as in a notebook
    if not ours:
        out = sys.stdout
        with redirect_stdout(sys.stderr):
            yield Lines(out)
        return
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr), unbroken(kept, 1, "ascii") as stdout:
            yield Lines(stdout)
    finally:
        os.dup2(kept, 1)
        os.close(kept)


class Machine(Interruptible):
    """Callback that writes events as JSON lines."""

    def __init__(self, lines: Lines, folder: Path, roles: Sequence[str]) -> None:
        self._lines, self._folder, self._roles = lines, folder, roles
        self._step, self._steps, self._eta = 0, 0, Eta()

    def began(self, done: int, steps: int) -> None:
        """Write a ``began`` line."""
        super().began(done, steps)
        self._step, self._steps = done, steps
        self._eta.tick(time.monotonic())
        self._lines.write("began", schema=SCHEMA, run=self._folder, agents=list(self._roles), done=done, steps=steps)

    def episode(self, episode: Episode) -> None:
        """Write an ``episode_lost`` line for an episode without a score."""
        if not episode.scored:
            self._lines.write(
                "episode_lost", step=self._step + 1, task=episode.task.id, sample=episode.sample,
                status=episode.status, error=episode.error,
            )  # fmt: skip

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Write a ``step`` line."""
        self._step, now = step, time.monotonic()
        self._eta.tick(now)
        left = self._eta.seconds(self._steps - step, now)
        self._lines.write("step", step=step, steps=self._steps, seconds_left=left, metrics=metrics)

    def guard(self, step: int, name: str, sentence: str) -> None:
        """Write a ``guard`` line."""
        self._lines.write("guard", step=step, name=name, text=sentence)

    def note(self, text: str) -> None:
        """Write a ``note`` line."""
        self._lines.write("note", step=self._step, text=text)
