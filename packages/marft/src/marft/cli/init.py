"""``marft init``: create a first team in a new folder. Questions appear only on a terminal, and each has an option."""

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
from marft.cli.starter.files import DATA, FILES, TINY, Plan, Started, commands, refuse_taken, write
from marft.cli.starter.tables import Table, columns_of, guess, invented, look_at
from marft.cli.starter.teams import SHAPES
from marft.common.satellites import not_installed
from marft.config.plugins import load_registered, plugin_names
from marft.config.settings import did_you_mean

T = TypeVar("T")
TEAM = "team"  # the kind that the core writes


def init(folder: Path, data: str | None, question: str, answer: str | None, model: str, team: str, yes: bool) -> None:
    """``marft init``.

    Args:
        folder: folder to create.
        data: table file; "" for generated rows; None if not chosen.
        question: column with the questions; "" if not chosen.
        answer: column with the correct answers; "" for none; None if not chosen.
        model: model name; "" if not chosen.
        team: shape of the team; "" if not chosen.
        yes: ask no questions and use defaults.

    Raises:
        ValueError: a file would be overwritten, or an option is invalid.
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
    """Return the kind of project that ``marft init --kind`` should write.

    Raises:
        ValueError: neither the core nor an installed package can write it.
    """
    known = [TEAM, *plugin_names("starters")]
    if kind not in known:
        raise ValueError(f"--kind: {not_installed('starters', kind) or f'unknown {kind!r}{did_you_mean(kind, known)}'}")
    return kind


def init_other(kind: str, folder: Path | None, of_teams: Sequence[str | None]) -> None:
    """Run ``marft init`` with a ``--kind`` that an installed package adds.

    Args:
        folder: None: the default of that kind.
        of_teams: options that apply to a team only.

    Raises:
        ValueError: one of these options is given, a file would be overwritten, or the folder's name does not fit.
    """
    if any(of_teams):
        raise ValueError(f"--data, --question, --answer, --model and --team are for a team: leave out --kind {kind}")
    console = wide_console()
    started: Started = load_registered("starters", kind)(folder)
    console.print(f"wrote {', '.join(started.files)} in {started.folder}", soft_wrap=True)
    _say_next(console, started.folder, started.commands)


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
    """Ask until the answer is valid; return the answer and its parsed value.

    Raises:
        ValueError: there is no terminal, and the default is invalid.
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
    """Return a model name or path for the recipe.

    Raises:
        ValueError: the name looks like a folder that does not exist.
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
