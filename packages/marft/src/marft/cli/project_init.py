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

from marft.cli.console import bold, wide_console
from marft.cli.template.files import (
    DATA_FILE,
    TEAM_FILES,
    TEAM_TEMPLATES,
    TINY_MODEL,
    TemplatePlan,
    TemplateResult,
    check_free,
    next_commands,
    write_template,
)
from marft.cli.template.tables import TableInfo, columns_of, generate_sums, guess_columns, inspect_table
from marft.common.errors import UserError
from marft.common.packages import missing_extra
from marft.config.plugins import load_registered, plugin_names
from marft.config.settings import did_you_mean

T = TypeVar("T")
TEAM_KIND = "team"  # the kind that the core writes


def init_team(
    folder: Path, data: str | None, question: str, answer: str | None, model: str, team: str, use_defaults: bool
) -> None:
    """``marft init``.

    Args:
        folder: folder to create.
        data: table file; "" for generated rows; None if not chosen.
        question: column with the questions; "" if not chosen.
        answer: column with the correct answers; "" for none; None if not chosen.
        model: model name; "" if not chosen.
        team: shape of the team; "" if not chosen.
        use_defaults: ask no questions and use defaults.

    Raises:
        UserError: a file would be overwritten, or an option is invalid.
    """
    console = wide_console()
    prompt_console = None if use_defaults or not (sys.stdin.isatty() and sys.stdout.isatty()) else console
    check_free(folder, TEAM_FILES)
    rows = generate_sums()

    def look(path: str) -> TableInfo:
        return _inspect_table(prompt_console, Path(path), question, answer) if path else _generated_table(rows)

    if data is None:
        text = "A table of your own (CSV, JSONL, Parquet); empty for a few invented rows"
        data, table = _ask_until(prompt_console, text, "", look)
    else:
        table = look(data)
    if model:
        model = _check_model(model)
    else:
        text = "A model: tiny (bundled, knows sums alone), a folder, or a Hugging Face id"
        _, model = _ask_until(prompt_console, text, TINY_MODEL, _check_model)
    if not team:
        shapes = "; ".join(f"{name}: {shape.description}" for name, shape in TEAM_TEMPLATES.items())
        team = _ask(prompt_console, f"A team ({shapes})", next(iter(TEAM_TEMPLATES)), list(TEAM_TEMPLATES))
    if team not in TEAM_TEMPLATES:
        raise UserError(f"--team: no shape is called {team!r}{did_you_mean(team, TEAM_TEMPLATES)}")
    plan = TemplatePlan(folder, table, Path(data) if data else None, model, team)
    names = write_template(plan, rows)
    console.print(f"wrote {', '.join(names)} in {folder}", soft_wrap=True)
    for note in _plan_notes(plan):
        console.print(note, style="yellow", soft_wrap=True)
    _print_next(console, folder, next_commands())


def check_kind(kind: str) -> str:
    """Return the kind of project that ``marft init --kind`` should write.

    Raises:
        UserError: neither the core nor an installed package can write it.
    """
    kinds = [TEAM_KIND, *plugin_names("starters")]
    if kind not in kinds:
        raise UserError(f"--kind: {missing_extra('starters', kind) or f'unknown {kind!r}{did_you_mean(kind, kinds)}'}")
    return kind


def init_kind(kind: str, folder: Path | None, team_options: Sequence[str | None]) -> None:
    """Run ``marft init`` with a ``--kind`` that an installed package adds.

    Args:
        folder: None: the default of that kind.
        team_options: options that apply to a team only.

    Raises:
        UserError: one of these options is given, a file would be overwritten, or the folder's name does not fit.
    """
    if any(team_options):
        raise UserError(f"--data, --question, --answer, --model and --team are for a team: leave out --kind {kind}")
    console = wide_console()
    result: TemplateResult = load_registered("starters", kind)(folder)
    console.print(f"wrote {', '.join(result.files)} in {result.folder}", soft_wrap=True)
    _print_next(console, result.folder, result.commands)


def _print_next(console: Console, folder: Path, steps: str) -> None:
    console.print(bold("\nNext:"))
    change = "" if folder == Path() else f"cd {shlex.quote(str(folder))}\n"
    console.print(f"{change}{steps}", soft_wrap=True)


def _ask(console: Console | None, question: str, default: str, choices: Sequence[str] = ()) -> str:
    if console is None:
        return default
    allowed = list(choices) or None
    return str(Prompt.ask(question, console=console, default=default, choices=allowed, show_default=bool(default)))


def _ask_until(console: Console | None, question: str, default: str, parse: Callable[[str], T]) -> tuple[str, T]:
    """Ask until the answer is valid; return the answer and its parsed value.

    Raises:
        UserError: there is no terminal, and the default is invalid.
    """
    while True:
        answer = _ask(console, question, default)
        try:
            return answer, parse(answer)
        except ValueError as error:
            if console is None:
                raise
            console.print(str(error), style="red", soft_wrap=True)


def _inspect_table(prompt_console: Console | None, path: Path, question: str, answer: str | None) -> TableInfo:
    columns = columns_of(path)
    guesses = guess_columns([column for column in columns if column != answer] or columns)
    if prompt_console and len(columns) > 1:
        question = question or _ask(prompt_console, "The column with the questions", guesses[0], columns)
        if answer is None:
            remaining = [column for column in columns if column != question]
            answer = _ask(
                prompt_console, "The column with the right answers", guess_columns([question, *remaining])[1], remaining
            )
    return inspect_table(path, question, answer)


def _generated_table(rows: str) -> TableInfo:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / DATA_FILE
        path.write_text(rows, encoding="utf-8")
        return inspect_table(path)


def _check_model(name: str) -> str:
    """Return a model name or path for the recipe.

    Raises:
        UserError: the name looks like a folder that does not exist.
    """
    path = Path(name).expanduser()
    if name != TINY_MODEL and path.is_dir():
        return str(path.resolve())
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise UserError(f"--model: there is no folder {name}; a Hugging Face id looks like Qwen/Qwen2.5-3B-Instruct")
    return name


def _plan_notes(plan: TemplatePlan) -> list[str]:
    notes = []
    if plan.model == TINY_MODEL and not plan.table.is_sums:
        notes.append(
            "The bundled model has seen sums of small numbers alone: on other tasks it shows that everything runs, and "
            "learns little. For real work name another (--model)."
        )
    if plan.data is not None:
        answers = f"answers {plan.table.answer!r}" if plan.table.answer else "no column of right answers"
        notes.append(f"{plan.table.rows} rows: questions {plan.table.question!r}, {answers}.")
    return notes
