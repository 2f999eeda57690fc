"""Command output for people, for people who want only the result (``--quiet``), and for programs (``--json``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from rich.console import Console, RenderableType
from rich.text import Text

from marft.cli.console import wide_console
from marft.cli.machine import Lines, Machine, lines_on_stdout
from marft.cli.terminal import Interruptible, Quiet, Terminal

How = Literal["", "quiet", "json"]


def how(quiet: bool, as_json: bool) -> How:
    """Return the output mode.

    Raises:
        ValueError: both modes are requested.
    """
    if quiet and as_json:
        raise ValueError("--quiet is for people and --json for programs; give one of them")
    return "quiet" if quiet else "json" if as_json else ""


class Output:
    """Output channel for a command."""

    def __init__(self, how: How, console: Console, lines: Lines | None) -> None:
        self.how, self._console, self._lines = how, console, lines

    def say(self, *what: RenderableType) -> None:
        """Print results in human-readable form; no effect with ``--json``."""
        if self._lines is None:
            for one in what:
                self._console.print(one, soft_wrap=isinstance(one, str | Text))

    def tell(self, event: str, **fields: object) -> None:
        """Write an event as JSON line; no effect without ``--json``."""
        if self._lines is not None:
            self._lines.write(event, **fields)

    def note(self, text: str) -> None:
        """Write a note in either form."""
        self.say(text)
        self.tell("note", step=None, text=text)

    def observer(self, folder: Path, roles: Sequence[str], samples_every: int, label: str) -> Interruptible:
        """Return the callback for a run in this output mode."""
        if self._lines is not None:
            return Machine(self._lines, folder, roles)
        return Quiet() if self.how == "quiet" else Terminal(roles, samples_every, label)


@contextmanager
def output(how: How) -> Iterator[Output]:
    """Yield the output channel for a mode."""
    if how == "json":
        with lines_on_stdout() as lines:
            yield Output(how, wide_console(), lines)
    else:
        yield Output(how, wide_console(), None)
