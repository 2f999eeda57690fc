"""How a command speaks: to people, to people who want to hear the end alone (``--quiet``), or to
programs (``--json``)."""

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
    """
    Raises:
        ValueError: both are asked for.
    """
    if quiet and as_json:
        raise ValueError("--quiet is for people and --json for programs; give one of them")
    return "quiet" if quiet else "json" if as_json else ""


class Output:
    """What a command says, and to whom."""

    def __init__(self, how: How, console: Console, lines: Lines | None) -> None:
        self.how, self._console, self._lines = how, console, lines

    def say(self, *what: RenderableType) -> None:
        """To people: what came of it."""
        if self._lines is None:
            for one in what:
                self._console.print(one, soft_wrap=isinstance(one, str | Text))

    def tell(self, event: str, **fields: object) -> None:
        """To programs."""
        if self._lines is not None:
            self._lines.write(event, **fields)

    def note(self, text: str) -> None:
        """To either: something they should know."""
        self.say(text)
        self.tell("note", step=None, text=text)

    def observer(self, folder: Path, roles: Sequence[str], samples_every: int, label: str) -> Interruptible:
        """Whoever watches a run for it."""
        if self._lines is not None:
            return Machine(self._lines, folder, roles)
        return Quiet() if self.how == "quiet" else Terminal(roles, samples_every, label)


@contextmanager
def output(how: How) -> Iterator[Output]:
    if how == "json":
        with lines_on_stdout() as lines:
            yield Output(how, wide_console(), lines)
    else:
        yield Output(how, wide_console(), None)
