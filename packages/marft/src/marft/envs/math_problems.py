"""Readers for published collections of mathematics problems, with the column layout of each collection.

The columns are those of the data sets' own cards: MATH (Hendrycks et al. 2021) and MATH-500, GSM8K (Cobbe et al.
2021), AIME and AMC as on Kaggle and the Hub, and OlympiadBench (He et al. 2024). The files of verl follow its
``examples/data_preprocess``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Literal, NamedTuple

from marft.agents.answers import reference_answer
from marft.common.errors import UserError
from marft.config.settings import did_you_mean
from marft.envs.table_rows import Row, extract_label, format_cell, format_value
from marft.rewards.quantities import parse_unit

Layout = Literal["auto", "math", "gsm8k", "aime", "olympiadbench", "verl", "columns"]
# metadata columns for cohorts
METADATA_COLUMNS = ("answer_type", "difficulty", "level", "source", "subfield", "subject", "type", "year")
_COMMANDS = re.compile(r"\\[a-z]+|[{}$~]")  # LaTeX commands around a unit
_INTEGER = re.compile(r"-?0*(\d+)(?:\.0+)?")


class Problem(NamedTuple):
    """Mathematics problem; ``answer`` is the gold answer or "", ``tolerances`` the permitted errors of its numbers."""

    question: str
    answer: str
    metadata: Mapping[str, str | int]
    tolerances: tuple[float, ...] = ()


class Columns(NamedTuple):
    """Column names in a layout, in any case; the first name present in a row counts."""

    question: tuple[str, ...]
    answer: tuple[str, ...]


LAYOUTS: Mapping[str, Columns] = {
    "math": Columns(("problem",), ("answer", "solution")),
    "gsm8k": Columns(("question",), ("answer",)),
    "aime": Columns(("problem", "question"), ("answer", "solution")),
    "olympiadbench": Columns(("question",), ("final_answer",)),
}


def detect_layout(row: Row) -> str:
    """Return a table's layout, given its first row.

    Raises:
        UserError: no known layout has these columns.
    """
    names = {str(name).casefold(): name for name in row.cells}
    if {"prompt", "reward_model"} <= names.keys():
        return "verl"
    if "final_answer" in names and "question" in names:
        return "olympiadbench"
    if "question" in names and "answer" in names:
        return "gsm8k"  # or a custom table: answers are read the same way
    if "problem" in names and names.keys() & {"answer", "solution"}:
        return "math"
    raise UserError(
        f"environment: {row.location} has columns {', '.join(sorted(map(str, row.cells)))}, which are no layout that "
        "is known (layout); name those with the problem and its answer (question, answer)"
    )


def parse_problem(row: Row, layout: str, question: str, answer: str) -> Problem | None:
    """Return the problem in a row, or None if it depends on pictures.

    Args:
        layout: a known layout, or ``"columns"``.
        question: name of the problem column; "" uses the layout's.
        answer: name of the answer column; "" uses the layout's.

    Raises:
        UserError: a column is missing or has an invalid value; the message names file and line.
    """
    if layout == "verl" and not question and not answer:
        return _parse_verl(row)
    columns = LAYOUTS.get(layout, Columns(("problem",), ("answer",)))
    question_text = _read_text(row, question or _first_column(row, columns.question))
    if not question_text.strip():
        raise UserError(f"environment: {row.location}: column {question or columns.question[0]!r} is empty")
    metadata = {
        name: value for name in METADATA_COLUMNS if isinstance(value := _get_cell(row, name), str | int) and value != ""
    }
    if layout == "olympiadbench" and not answer:
        return _parse_olympiad(row, question_text, metadata)
    gold = _read_gold_answer(row, answer or _first_column(row, columns.answer, prefer_nonempty=True))
    if layout == "aime" and not answer:
        gold = _parse_integer(row, gold)
    return Problem(question_text, gold, metadata)


def _parse_verl(row: Row) -> Problem | None:
    """Return the problem in a verl row: messages, and a table with the correct answer.

    The question comes without instructions on its form, if the row provides it.

    Raises:
        UserError: the row has no such table, or contains assistant messages.
    """
    messages, reward_model, extra_info = (
        _read_json_cell(row, name) for name in ("prompt", "reward_model", "extra_info")
    )
    if not isinstance(messages, list) or not all(isinstance(message, Mapping) for message in messages):
        raise UserError(f"environment: {row.location}: column 'prompt' holds no list of messages, as verl has them")
    if not isinstance(reward_model, Mapping) or not isinstance(
        reward_model.get("ground_truth"), str | int | float | None
    ):
        raise UserError(
            f"environment: {row.location}: column 'reward_model' has no ground_truth that is a text or a number"
        )
    if any(message.get("role") == "assistant" for message in messages):
        raise UserError(
            f"environment: {row.location}: column 'prompt' holds what an assistant has said; a problem is asked alone"
        )
    contents = [message.get("content") for message in messages]
    if _get_cell(row, "images") or _get_cell(row, "videos") or not all(isinstance(text, str) for text in contents):
        return None
    question = extra_info.get("question") if isinstance(extra_info, Mapping) else None
    text = row.check_text(
        question if isinstance(question, str) and question.strip() else "\n\n".join(map(str, contents)), "prompt"
    )
    if not text.strip():
        raise UserError(f"environment: {row.location}: column 'prompt' is empty")
    source = _get_cell(row, "data_source")
    gold = row.check_text(format_cell(reward_model.get("ground_truth")), "reward_model")
    return Problem(text, reference_answer(gold), {"source": source} if isinstance(source, str) and source else {})


def _read_json_cell(row: Row, name: str) -> object:
    """Return a list or table from a column, possibly written as JSON, or None.

    Raises:
        UserError: the cell is invalid JSON.
    """
    cell = _get_cell(row, name)
    try:
        return json.loads(cell) if isinstance(cell, str) and cell else cell
    except (ValueError, RecursionError) as error:
        raise UserError(f"environment: {row.location}: column {name!r} is not JSON ({error})") from error


def _parse_olympiad(row: Row, question: str, metadata: Mapping[str, str | int]) -> Problem | None:
    """Return the problem in an OlympiadBench row, or None if it depends on pictures.

    The row has a list of answers, a separate unit, and a permitted error. Proofs have no answer.
    """
    if any(format_cell(cell).strip() for name, cell in row.cells.items() if str(name).startswith("image")):
        return None
    context = format_cell(_get_cell(row, "context")).strip()
    final_answer = row.cell("final_answer")
    parts = final_answer if isinstance(final_answer, list) else [final_answer]
    answers = [format_cell(part).strip().strip("$") for part in parts]
    gold = ", ".join(part for part in answers if part)
    unit = _COMMANDS.sub("", format_cell(_get_cell(row, "unit"))).strip()
    if gold and not _get_cell(row, "is_multiple_answer") and parse_unit(unit):  # other units are not recognized
        gold = rf"{gold}\text{{ {unit}}}"
    return Problem(f"{context}\n\n{question}" if context else question, gold, metadata, _parse_tolerances(row))


def _parse_tolerances(row: Row) -> tuple[float, ...]:
    """Return the tolerances from a text like ``"1e-1,1e-2"``: one per answer, or one for the whole row.

    Raises:
        UserError: a tolerance is not a finite number, or is negative.
    """
    text = format_cell(_get_cell(row, "error")).strip()
    try:
        tolerances = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        tolerances = (-1.0,)
    if not all(0 <= tolerance < math.inf for tolerance in tolerances):
        raise UserError(
            f"environment: {row.location}: column 'error' holds {text[:80]!r}, which is no number from 0 on"
        )
    return tolerances


def _parse_integer(row: Row, gold: str) -> str:
    """Return an integer in plain notation, from forms like ``073`` or ``142.0``.

    Raises:
        UserError: the text is not an integer.
    """
    match = _INTEGER.fullmatch(gold.replace(",", ""))
    if gold and not match:
        raise UserError(
            f"environment: {row.location} holds the answer {gold[:80]!r}, which is no whole number, as answers of AIME "
            "and AMC are; for others set layout = 'math', or name the columns (question, answer)"
        )
    return f"{'-' if gold.startswith('-') else ''}{int(match[1])}" if match else ""


def _read_gold_answer(row: Row, column: str) -> str:
    cell = row.cells.get(column)
    label = extract_label(cell)
    return reference_answer(_read_text(row, column) if label is cell else row.check_text(format_value(label), column))


def _first_column(row: Row, names: tuple[str, ...], prefer_nonempty: bool = False) -> str:
    """Return the first column present in a row, preferring nonempty ones if ``prefer_nonempty``."""
    column_by_name = {str(name).casefold(): str(name) for name in row.cells}
    present = [column_by_name[name] for name in names if name in column_by_name]
    nonempty = [name for name in present if format_cell(row.cells[name]).strip()] if prefer_nonempty else []
    return next(iter(nonempty or present), names[0])


def _get_cell(row: Row, name: str) -> object:
    """Return the value in a column, ignoring the case of its name, or None."""
    return next((cell for key, cell in row.cells.items() if str(key).casefold() == name), None)


def _read_text(row: Row, column: str) -> str:
    """Return the text in a column with text, a number, or nothing.

    Raises:
        UserError: the column is missing, or has another type.
    """
    if column not in row.cells:
        columns = [str(name) for name in row.cells]
        raise UserError(f"environment: {row.location} has no column {column!r}{did_you_mean(column, columns)}")
    cell = row.cells[column]
    if isinstance(cell, bool) or not isinstance(cell, str | int | float | Decimal | None):
        raise UserError(
            f"environment: {row.location}: column {column!r} is a {type(cell).__name__}, not text or a number"
        )
    return row.text(column)


def read_problems(rows: Iterator[Row], layout: str, question: str, answer: str) -> Iterator[tuple[int, Problem]]:
    """Yield the problems in a table with row numbers, without those that depend on pictures or lack an answer.

    Raises:
        UserError: as for :func:`detect_layout` and :func:`parse_problem`.
    """
    for number, row in enumerate(rows):
        if layout == "auto":
            layout = "columns" if question and answer else detect_layout(row)
        problem = parse_problem(row, layout, question, answer)
        if problem is not None and problem.answer:
            yield number, problem
