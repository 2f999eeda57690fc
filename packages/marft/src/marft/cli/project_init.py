"""``marft init``: create a first team in a new folder. Questions appear only on a terminal, and each has an option."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.prompt import Prompt

from marft.cli.console import bold, wide_console
from marft.cli.template.files import (
    DATA_FILE,
    RECIPE_FILE,
    TEAM_FILES,
    TEAM_TEMPLATES,
    TINY_MODEL,
    TemplatePlan,
    TemplateResult,
    check_free,
    next_commands,
    write_template,
)
from marft.cli.template.tables import (
    SUM_TASK,
    TableInfo,
    columns_of,
    generate_sums,
    guess_answer,
    guess_columns,
    inspect_table,
)
from marft.common.errors import UserError
from marft.common.packages import missing_extra
from marft.common.texts import single_line
from marft.config.interfaces.environment import Split
from marft.config.plugins import load_registered, plugin_names
from marft.config.settings import did_you_mean

T = TypeVar("T")
TEAM_KIND = "team"  # the kind that the core writes
MIN_TEST_ROWS = 20  # a test split with fewer rows gives a warning


@dataclass(frozen=True, slots=True)
class TeamOptions:
    """Options of ``marft init`` that apply to a team only.

    Args:
        data: table file; "" for generated rows; None if not chosen.
        task: the task of the table in one sentence; "" if not chosen.
        question: column with the questions; "" if not chosen.
        answer: column with the correct answers; "" for none; None if not chosen.
        model: model name; "" if not chosen.
        team: shape of the team; "" if not chosen.
    """

    data: str | None = None
    task: str = ""
    question: str = ""
    answer: str | None = None
    model: str = ""
    team: str = ""


def init_team(folder: Path, options: TeamOptions, use_defaults: bool) -> None:
    """``marft init``.

    Args:
        folder: folder to create.
        options: chosen options.
        use_defaults: ask no questions and use defaults.

    Raises:
        UserError: a file would be overwritten, or an option is invalid.
    """
    console = wide_console()
    prompt_console = None if use_defaults or not (sys.stdin.isatty() and sys.stdout.isatty()) else console
    check_free(folder, TEAM_FILES)
    rows = generate_sums()
    data, table = _choose_table(prompt_console, options, rows)
    if options.model:
        model = _check_model(options.model)
    else:
        text = "Model: tiny (bundled, knows only sums), a folder, or a Hugging Face id"
        _, model = _ask_until(prompt_console, text, TINY_MODEL, _check_model)
    team = options.team
    if not team:
        shapes = "; ".join(f"{name}: {shape.description}" for name, shape in TEAM_TEMPLATES.items())
        team = _ask(prompt_console, f"Team ({shapes})", next(iter(TEAM_TEMPLATES)), list(TEAM_TEMPLATES))
    if team not in TEAM_TEMPLATES:
        raise UserError(f"--team: no shape is called {team!r}{did_you_mean(team, TEAM_TEMPLATES)}")
    plan = TemplatePlan(folder, table, data, model, team)
    names = write_template(plan, rows)
    console.print(f"wrote {', '.join(names)} in {folder}", soft_wrap=True)
    console.print(_describe_data(plan), soft_wrap=True)
    for warning in _plan_warnings(plan):
        console.print(warning, style="yellow", soft_wrap=True)
    _print_next(console, folder, next_commands())


def _choose_table(console: Console | None, options: TeamOptions, rows: str) -> tuple[Path | None, TableInfo]:
    """Return the path of the table, None for generated rows, and the table's properties.

    Raises:
        UserError: the table cannot be used, or there is a task without a table.
    """

    def look(path: str) -> TableInfo:
        if path:
            return _inspect_table(console, Path(path), options)
        if options.task:
            raise UserError("--task describes a table of your own; name the table (--data)")
        return _generated_table(rows)

    if options.data is None:
        text = "Path of your table (CSV, JSONL or Parquet); empty: 60 generated sums"
        data, table = _ask_until(console, text, "", look)
    else:
        data, table = options.data, look(options.data)
    return Path(data) if data else None, table


def check_kind(kind: str) -> str:
    """Return the kind of project that ``marft init --kind`` should write.

    Raises:
        UserError: neither the core nor an installed package can write it.
    """
    kinds = [TEAM_KIND, *plugin_names("starters")]
    if kind not in kinds:
        raise UserError(f"--kind: {missing_extra('starters', kind) or f'unknown {kind!r}{did_you_mean(kind, kinds)}'}")
    return kind


def init_kind(kind: str, folder: Path | None, team_options: TeamOptions) -> None:
    """Run ``marft init`` with a ``--kind`` that an installed package adds.

    Args:
        folder: None: the default of that kind.
        team_options: options that apply to a team only.

    Raises:
        UserError: one of these options is given, a file would be overwritten, or the folder's name does not fit.
    """
    if team_options != TeamOptions():
        raise UserError(
            f"--data, --task, --question, --answer, --model and --team are for a team: leave out --kind {kind}"
        )
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


def _inspect_table(prompt_console: Console | None, path: Path, options: TeamOptions) -> TableInfo:
    columns, question, answer = columns_of(path), options.question, options.answer
    guesses = guess_columns([column for column in columns if column != answer] or columns)
    if prompt_console and len(columns) > 1:
        question = question or _ask(prompt_console, "Column with the questions", guesses[0], columns)
        if answer is None:
            remaining = [column for column in columns if column != question]
            answer = _ask(prompt_console, "Column with the right answers", guess_answer(remaining), remaining)
    table = inspect_table(path, question, answer, options.task)
    if prompt_console and not options.task:
        default = SUM_TASK if table.is_sums else ""
        task = _ask(prompt_console, "The task in one sentence, for the agents' prompt", default)
        table = inspect_table(path, table.question, table.answer, task)
    return table


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


def _describe_data(plan: TemplatePlan) -> str:
    """Return the columns of a table, and the sizes of the splits."""
    table = plan.table
    answers = f"answers {table.answer!r}" if table.answer else "no column of right answers"
    columns = f": questions {single_line(table.question)!r}, {answers}" if plan.data else ""
    splits: Sequence[Split] = ("train", "validation", "test")
    sizes = ", ".join(f"{table.split_sizes.get(split, 0)} {split}" for split in splits)
    skipped = table.rows - sum(table.split_sizes.values())
    left_out = f", {skipped} left out (duplicates, or without an answer)" if skipped else ""
    return f"{table.rows} rows{columns}. Splits: {sizes}{left_out}."


def _plan_warnings(plan: TemplatePlan) -> list[str]:
    warnings, table = [], plan.table
    test_rows = table.split_sizes["test"]
    if plan.data and test_rows < MIN_TEST_ROWS:
        warnings.append(
            f"Only {test_rows} held-out test rows: each counts {100 / test_rows:.0f} % of the result. Use at least "
            f"{MIN_TEST_ROWS}: add rows, or raise test in split_fractions of {RECIPE_FILE}."
        )
    if plan.data and not table.prompt:
        warnings.append(
            f"The agents read only the column {single_line(table.question)!r}. State the task in one sentence (--task)."
        )
    if plan.model == TINY_MODEL and (not table.is_sums or table.task):
        warnings.append(
            "The bundled model knows only sums of small numbers, in one wording. On other tasks it only shows that "
            "everything runs. For real work, choose another model (--model)."
        )
    return warnings
