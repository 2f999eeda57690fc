"""Prompt for a table row: its question column, or a template over several columns."""

from __future__ import annotations

from collections.abc import Sequence
from string import Formatter

from pydantic_core import PydanticCustomError

from marft.envs.choices import format_choices
from marft.envs.table_rows import Row

QUESTION_FIELD, CHOICES_FIELD = "question", "choices"  # template fields, independent of the column names


def check_template(template: str, answer: str) -> str:
    """Check and return a prompt template like ``"{question}\\n\\nChoices: {choices}"``.

    Raises:
        PydanticCustomError: braces do not match, or the template would reveal the correct answer.
    """
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise PydanticCustomError(
            "template", "prompt: {error}; a brace of its own is written twice", {"error": str(error)}
        ) from error
    if any(name == "" or form or conversion for _, name, form, conversion in parts):
        raise PydanticCustomError("template", "prompt: a column is named alone, such as {{question}}")
    if answer and any(name == answer for _, name, _, _ in parts):
        raise PydanticCustomError("template", "prompt: shows the right answer, {name}", {"name": repr(answer)})
    return template


def render_prompt(row: Row, template: str, question: str, choices: str | Sequence[str] = ()) -> str:
    """Return the prompt for a row.

    Args:
        template: checked by :func:`check_template`; "" uses the question alone.
        question: name of the question column.
        choices: column of choices, or several columns with one choice each; shown as lines with letters.

    Raises:
        ValueError: a column is missing, or the question is not text.
    """
    parts = []
    for words, name, _, _ in Formatter().parse(template or f"{{{QUESTION_FIELD}}}"):
        parts.append(words)
        if name == QUESTION_FIELD:
            parts.append(_read_question(row, question))
        elif name is not None:
            parts.append(_render_field(row, name, choices))
    prompt = "".join(parts)
    if not prompt.strip():
        raise ValueError(f"environment: {row.location} makes an empty prompt; fill it in, or remove the row")
    return prompt


def _render_field(row: Row, name: str, choices: str | Sequence[str]) -> str:
    """Return the text for a template field: a column, or the choices."""
    if name == choices:
        return row.check_text(format_choices(row.cell(name)), name)
    if name == CHOICES_FIELD and choices and name not in row.cells:
        cell = row.cell(choices) if isinstance(choices, str) else [row.text(column) for column in choices]
        return row.check_text(format_choices(cell), name)
    return row.text(name)


def _read_question(row: Row, column: str) -> str:
    cell: object = row.cell(column)
    if isinstance(cell, bool) or not isinstance(cell, str | int | float | None):
        raise ValueError(
            f"environment: {row.location}: column {column!r} is a {type(cell).__name__}, not text or a number; name "
            "another column (question), or the parts of the prompt (prompt)"
        )
    text = row.text(column)
    if not text.strip():
        raise ValueError(f"environment: {row.location}: column {column!r} is empty; fill it in, or remove the row")
    return text
