"""``marft init``: a first team in a folder of its own. It asks on a terminal alone; every question has an option."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.prompt import Prompt

from marft.cli.console import in_bold, wide_console
from marft.cli.starter import environment
from marft.cli.starter.environment import write_environment
from marft.cli.starter.files import DATA, FILES, TINY, Plan, commands, refuse_taken, write
from marft.cli.starter.tables import Table, columns_of, guess, invented, look_at
from marft.cli.starter.teams import SHAPES
from marft.config.settings import did_you_mean

T = TypeVar("T")
KINDS = ("team", "environment")


def init(folder: Path, data: str | None, question: str, answer: str | None, model: str, team: str, yes: bool) -> None:
    """``marft init``.

    Args:
        data: a table; "" for invented rows; None where it is not decided yet, like "" and None of what follows.
        yes: ask nothing.

    Raises:
        ValueError: a file would be overwritten, or what was named cannot be used.
    """
    console = wide_console()
    asking = None if yes or not (sys.stdin.isatty() and sys.stdout.isatty()) else console
    refuse_taken(folder, FILES)
    rows = invented()

    def look(path: str) -> Table:
        return _table_of(asking, Path(path), question, answer) if path else _invented(rows)

    if data is None:
        text = "A table of your own (CSV, JSONL, Parquet); empty for a few invented rows"
        data, table = _ask_until(asking, text, "", look)
    else:
        table = look(data)
    if model:
        model = _model(model)
    else:
        text = "A model: tiny (bundled, knows sums alone), a folder, or a Hugging Face id"
        _, model = _ask_until(asking, text, TINY, _model)
    if not team:
        shapes = "; ".join(f"{name}: {shape.about}" for name, shape in SHAPES.items())
        team = _ask(asking, f"A team ({shapes})", next(iter(SHAPES)), list(SHAPES))
    if team not in SHAPES:
        raise ValueError(f"--team: no shape is called {team!r}{did_you_mean(team, SHAPES)}")
    plan = Plan(folder, table, Path(data) if data else None, model, team)
    names = write(plan, rows)
    console.print(f"wrote {', '.join(names)} in {folder}", soft_wrap=True)
    for note in _notes(plan):
        console.print(note, style="yellow", soft_wrap=True)
    _say_next(console, folder, commands())


def checked_kind(kind: str) -> str:
    """What is to be begun.

    Raises:
        ValueError: it is neither a team nor an environment.
    """
    if kind not in KINDS:
        raise ValueError(f"--kind: nothing is called {kind!r}{did_you_mean(kind, KINDS)}")
    return kind


def init_environment(folder: Path, of_teams: Sequence[str | None]) -> None:
    """``marft init --kind environment``.

    Args:
        of_teams: options that mean something for a team alone.

    Raises:
        ValueError: one of them is given, a file would be overwritten, or no package can have the folder's name.
    """
    if any(of_teams):
        raise ValueError(
            "--data, --question, --answer, --model and --team are for a team: leave out --kind environment"
        )
    console = wide_console()
    names = write_environment(folder)
    console.print(f"wrote {', '.join(names)} in {folder}", soft_wrap=True)
    _say_next(console, folder, environment.commands())


def _say_next(console: Console, folder: Path, said: str) -> None:
    console.print(in_bold("\nNext:"))
    change = "" if folder == Path() else f"cd {shlex.quote(str(folder))}\n"
    console.print(f"{change}{said}", soft_wrap=True)


def _ask(console: Console | None, question: str, default: str, choices: Sequence[str] = ()) -> str:
    if console is None:
        return default
    allowed = list(choices) or None
    return str(Prompt.ask(question, console=console, default=default, choices=allowed, show_default=bool(default)))


def _ask_until(console: Console | None, question: str, default: str, read: Callable[[str], T]) -> tuple[str, T]:
    """What is answered, and what comes of it; asked again as long as it cannot be used.

    Raises:
        ValueError: nobody can be asked, and the default cannot be used.
    """
    while True:
        answer = _ask(console, question, default)
        try:
            return answer, read(answer)
        except ValueError as error:
            if console is None:
                raise
            console.print(str(error), style="red", soft_wrap=True)


def _table_of(asking: Console | None, path: Path, question: str, answer: str | None) -> Table:
    columns = columns_of(path)
    guessed = guess([column for column in columns if column != answer] or columns)
    if asking and len(columns) > 1:
        question = question or _ask(asking, "The column with the questions", guessed[0], columns)
        if answer is None:
            rest = [column for column in columns if column != question]
            answer = _ask(asking, "The column with the right answers", guess([question, *rest])[1], rest)
    return look_at(path, question, answer)


def _invented(rows: str) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / DATA
        path.write_text(rows, encoding="utf-8")
        return look_at(path)


def _model(name: str) -> str:
    """A model as the recipe names it.

    Raises:
        ValueError: it looks like a folder, and none is there.
    """
    path = Path(name).expanduser()
    if name != TINY and path.is_dir():
        return str(path.resolve())
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise ValueError(f"--model: there is no folder {name}; a Hugging Face id looks like Qwen/Qwen2.5-3B-Instruct")
    return name


def _notes(plan: Plan) -> list[str]:
    notes = []
    if plan.model == TINY and not plan.table.sums:
        notes.append(
            "The bundled model has seen sums of small numbers alone: on other tasks it shows that everything runs, and "
            "learns little. For real work name another (--model)."
        )
    if plan.data is not None:
        answers = f"answers {plan.table.answer!r}" if plan.table.answer else "no column of right answers"
        notes.append(f"{plan.table.rows} rows: questions {plan.table.question!r}, {answers}.")
    return notes
