"""Published collections of mathematics problems, as their files and data sets have them: which column is what.

The columns are those of the data sets' own cards: MATH (Hendrycks et al. 2021) and MATH-500, GSM8K (Cobbe et al. 2021),
AIME and AMC as Kaggle and the hub have them, OlympiadBench (He et al. 2024); and the files of verl, for which
``examples/data_preprocess`` writes them.
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
ABOUT = ("answer_type", "difficulty", "level", "source", "subfield", "subject", "type", "year")  # what tells them apart
_COMMANDS = re.compile(r"\\[a-z]+|[{}$~]")  # of LaTeX, around a unit
_INTEGER = re.compile(r"-?0*(\d+)(?:\.0+)?")


class Problem(NamedTuple):
    """``answer`` is the gold one, "" where there is none; ``tolerances`` is how far numbers may be from it."""

    question: str
    answer: str
    about: Mapping[str, str | int]
    tolerances: tuple[float, ...] = ()


class Columns(NamedTuple):
    """What a layout's columns are called, the first that a row has; in any case."""

    question: tuple[str, ...]
    answer: tuple[str, ...]


LAYOUTS: Mapping[str, Columns] = {
    "math": Columns(("problem",), ("answer", "solution")),
    "gsm8k": Columns(("question",), ("answer",)),
    "aime": Columns(("problem", "question"), ("answer", "solution")),
    "olympiadbench": Columns(("question",), ("final_answer",)),
}


def layout_of(row: Row) -> str:
    """The layout of a table, by its first row.

    Raises:
        ValueError: it is none that is known.
    """
    names = {str(name).casefold(): name for name in row.cells}
    if {"prompt", "reward_model"} <= names.keys():
        return "verl"
    if "final_answer" in names and "question" in names:
        return "olympiadbench"
    if "question" in names and "answer" in names:
        return "gsm8k"  # or a table of one's own: answers are read alike
    if "problem" in names and names.keys() & {"answer", "solution"}:
        return "math"
    raise ValueError(
        f"environment: {row.place} has columns {', '.join(sorted(map(str, row.cells)))}, which are no layout that is "
        "known (layout); name those with the problem and its answer (question, answer)"
    )


def problem_in(row: Row, layout: str, question: str, answer: str) -> Problem | None:
    """The problem of a row; None where it cannot be one in words: it shows pictures.

    Args:
        layout: a known one, or ``"columns"``.
        question: the column that is named for it; "": the layout's own.
        answer: the same.

    Raises:
        ValueError: a column is missing, or holds something else; the message names file and line.
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
    """A row of verl: messages, and a table with what is right; the question without words on its form, where it is
    there.

    Raises:
        ValueError: it has no such table, or messages that an assistant has written.
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
    """A list or table of a column, which may be there as JSON; None where there is none."""
    cell = _cell(row, name)
    try:
        return json.loads(cell) if isinstance(cell, str) and cell else cell
    except (ValueError, RecursionError) as error:
        raise ValueError(f"environment: {row.place}: column {name!r} is not JSON ({error})") from error


def _olympiad(row: Row, asked: str, about: Mapping[str, str | int]) -> Problem | None:
    """A row of OlympiadBench: a list of answers, units apart from them, an error that is allowed; proofs have none."""
    if any(written(cell).strip() for name, cell in row.cells.items() if str(name).startswith("image")):
        return None
    context = written(_cell(row, "context")).strip()
    found = row.cell("final_answer")
    answers = [written(one).strip().strip("$") for one in (found if isinstance(found, list) else [found])]
    gold = ", ".join(one for one in answers if one)
    unit = _COMMANDS.sub("", written(_cell(row, "unit"))).strip()
    if gold and not _cell(row, "is_multiple_answer") and unit_of(unit):  # others are not told apart
        gold = rf"{gold}\text{{ {unit}}}"
    return Problem(f"{context}\n\n{asked}" if context else asked, gold, about, _tolerances(row))


def _tolerances(row: Row) -> tuple[float, ...]:
    """``"1e-1,1e-2"``: one for each answer, or one for all.

    Raises:
        ValueError: they are no finite numbers, or below 0.
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
    """A whole number without what files put around it: ``073``, ``142.0``.

    Raises:
        ValueError: it is none.
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
    """The first of some columns that a row has, and where asked for has something in it."""
    known = {str(name).casefold(): str(name) for name in row.cells}
    there = [known[name] for name in names if name in known]
    full = [name for name in there if written(row.cells[name]).strip()] if filled else []
    return next(iter(full or there), names[0])


def _cell(row: Row, name: str) -> object:
    """What stands in a column, whatever case its name has; None where there is none."""
    return next((cell for key, cell in row.cells.items() if str(key).casefold() == name), None)


def _text(row: Row, column: str) -> str:
    """What stands in a column, which is text, a number, or nothing.

    Raises:
        ValueError: there is no such column, or something else in it.
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
    """The problems of a table, each with the number of its row, without those that have pictures, or no answer.

    Raises:
        ValueError: as :func:`layout_of` and :func:`problem_in` do.
    """
    for number, row in enumerate(rows):
        if layout == "auto":
            layout = "columns" if question and answer else layout_of(row)
        problem = problem_in(row, layout, question, answer)
        if problem is not None and problem.answer:
            yield number, problem
