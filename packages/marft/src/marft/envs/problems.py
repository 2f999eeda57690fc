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
from typing import Any, Literal, NamedTuple

from marft.agents.answers import answer_in
from marft.config.settings import did_you_mean
from marft.envs.grading import label_of, said_plainly
from marft.envs.rows import Row, written
from marft.rewards.units import unit_of

Layout = Literal["auto", "math", "gsm8k", "aime", "olympiadbench", "verl", "columns"]
# metadata columns for cohorts
ABOUT = ("answer_type", "difficulty", "level", "source", "subfield", "subject", "type", "year")
_COMMANDS = re.compile(r"\\[a-z]+|[{}$~]")  # LaTeX commands around a unit
_INTEGER = re.compile(r"-?0*(\d+)(?:\.0+)?")


class Problem(NamedTuple):
    """Mathematics problem; ``answer`` is the gold answer or "", ``tolerances`` the permitted errors of its numbers."""

    question: str
    answer: str
    about: Mapping[str, str | int]
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


def layout_of(row: Row) -> str:
    """Return a table's layout, given its first row.

    Raises:
        ValueError: no known layout has these columns.
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
    raise ValueError(
        f"environment: {row.place} has columns {', '.join(sorted(map(str, row.cells)))}, which are no layout that is "
        "known (layout); name those with the problem and its answer (question, answer)"
    )


def problem_in(row: Row, layout: str, question: str, answer: str) -> Problem | None:
    """Return the problem in a row, or None if it depends on pictures.

    Args:
        layout: a known layout, or ``"columns"``.
        question: name of the problem column; "" uses the layout's.
        answer: name of the answer column; "" uses the layout's.

    Raises:
        ValueError: a column is missing or has an invalid value; the message names file and line.
    """
    if layout == "verl" and not question and not answer:
        return _verl(row)
    columns = LAYOUTS.get(layout, Columns(("problem",), ("answer",)))
    asked = _text(row, question or _first(row, columns.question))
    if not asked.strip():
        raise ValueError(f"environment: {row.place}: column {question or columns.question[0]!r} is empty")
    about = {name: value for name in ABOUT if isinstance(value := _cell(row, name), str | int) and value != ""}
    if layout == "olympiadbench" and not answer:
        return _olympiad(row, asked, about)
    gold = _gold(row, answer or _first(row, columns.answer, filled=True))
    if layout == "aime" and not answer:
        gold = _whole(row, gold)
    return Problem(asked, gold, about)


def _verl(row: Row) -> Problem | None:
    """Return the problem in a verl row: messages, and a table with the correct answer.

    The question comes without instructions on its form, if the row provides it.

    Raises:
        ValueError: the row has no such table, or contains assistant messages.
    """
    messages, judged, more = (_table(row, name) for name in ("prompt", "reward_model", "extra_info"))
    if not isinstance(messages, list) or not all(isinstance(one, Mapping) for one in messages):
        raise ValueError(f"environment: {row.place}: column 'prompt' holds no list of messages, as verl has them")
    if not isinstance(judged, Mapping) or not isinstance(judged.get("ground_truth"), str | int | float | None):
        raise ValueError(
            f"environment: {row.place}: column 'reward_model' has no ground_truth that is a text or a number"
        )
    if any(one.get("role") == "assistant" for one in messages):
        raise ValueError(
            f"environment: {row.place}: column 'prompt' holds what an assistant has said; a problem is asked alone"
        )
    said = [one.get("content") for one in messages]
    if _cell(row, "images") or _cell(row, "videos") or not all(isinstance(text, str) for text in said):
        return None
    asked = more.get("question") if isinstance(more, Mapping) else None
    text = row.whole(asked if isinstance(asked, str) and asked.strip() else "\n\n".join(map(str, said)), "prompt")
    if not text.strip():
        raise ValueError(f"environment: {row.place}: column 'prompt' is empty")
    source, gold = _cell(row, "data_source"), row.whole(written(judged.get("ground_truth")), "reward_model")
    return Problem(text, answer_in(gold), {"source": source} if isinstance(source, str) and source else {})


def _table(row: Row, name: str) -> Any:
    """Return a list or table from a column, possibly written as JSON, or None.

    Raises:
        ValueError: the cell is invalid JSON.
    """
    cell = _cell(row, name)
    try:
        return json.loads(cell) if isinstance(cell, str) and cell else cell
    except (ValueError, RecursionError) as error:
        raise ValueError(f"environment: {row.place}: column {name!r} is not JSON ({error})") from error


def _olympiad(row: Row, asked: str, about: Mapping[str, str | int]) -> Problem | None:
    """Return the problem in an OlympiadBench row, or None if it depends on pictures.

    The row has a list of answers, a separate unit, and a permitted error. Proofs have no answer.
    """
    if any(written(cell).strip() for name, cell in row.cells.items() if str(name).startswith("image")):
        return None
    context = written(_cell(row, "context")).strip()
    found = row.cell("final_answer")
    answers = [written(one).strip().strip("$") for one in (found if isinstance(found, list) else [found])]
    gold = ", ".join(one for one in answers if one)
    unit = _COMMANDS.sub("", written(_cell(row, "unit"))).strip()
    if gold and not _cell(row, "is_multiple_answer") and unit_of(unit):  # other units are not recognized
        gold = rf"{gold}\text{{ {unit}}}"
    return Problem(f"{context}\n\n{asked}" if context else asked, gold, about, _tolerances(row))


def _tolerances(row: Row) -> tuple[float, ...]:
    """Return the tolerances from a text like ``"1e-1,1e-2"``: one per answer, or one for the whole row.

    Raises:
        ValueError: a tolerance is not a finite number, or is negative.
    """
    text = written(_cell(row, "error")).strip()
    try:
        found = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        found = (-1.0,)
    if not all(0 <= one < math.inf for one in found):
        raise ValueError(f"environment: {row.place}: column 'error' holds {text[:80]!r}, which is no number from 0 on")
    return found


def _whole(row: Row, gold: str) -> str:
    """Return an integer in plain notation, from forms like ``073`` or ``142.0``.

    Raises:
        ValueError: the text is not an integer.
    """
    match = _INTEGER.fullmatch(gold.replace(",", ""))
    if gold and not match:
        raise ValueError(
            f"environment: {row.place} holds the answer {gold[:80]!r}, which is no whole number, as answers of AIME "
            "and AMC are; for others set layout = 'math', or name the columns (question, answer)"
        )
    return f"{'-' if gold.startswith('-') else ''}{int(match[1])}" if match else ""


def _gold(row: Row, column: str) -> str:
    cell = row.cells.get(column)
    label = label_of(cell)
    return answer_in(_text(row, column) if label is cell else row.whole(said_plainly(label), column))


def _first(row: Row, names: tuple[str, ...], filled: bool = False) -> str:
    """Return the first column present in a row, preferring nonempty ones if ``filled``."""
    known = {str(name).casefold(): str(name) for name in row.cells}
    there = [known[name] for name in names if name in known]
    full = [name for name in there if written(row.cells[name]).strip()] if filled else []
    return next(iter(full or there), names[0])


def _cell(row: Row, name: str) -> object:
    """Return the value in a column, ignoring the case of its name, or None."""
    return next((cell for key, cell in row.cells.items() if str(key).casefold() == name), None)


def _text(row: Row, column: str) -> str:
    """Return the text in a column with text, a number, or nothing.

    Raises:
        ValueError: the column is missing, or has another type.
    """
    if column not in row.cells:
        columns = [str(name) for name in row.cells]
        raise ValueError(f"environment: {row.place} has no column {column!r}{did_you_mean(column, columns)}")
    cell = row.cells[column]
    if isinstance(cell, bool) or not isinstance(cell, str | int | float | Decimal | None):
        raise ValueError(
            f"environment: {row.place}: column {column!r} is a {type(cell).__name__}, not text or a number"
        )
    return row.text(column)


def problems_of(rows: Iterator[Row], layout: str, question: str, answer: str) -> Iterator[tuple[int, Problem]]:
    """Yield the problems in a table with row numbers, without those that depend on pictures or lack an answer.

    Raises:
        ValueError: as for :func:`layout_of` and :func:`problem_in`.
    """
    for number, row in enumerate(rows):
        if layout == "auto":
            layout = "columns" if question and answer else layout_of(row)
        problem = problem_in(row, layout, question, answer)
        if problem is not None and problem.answer:
            yield number, problem
