"""Multiple choice: labeled choices, and matching of a text to a choice."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any, NamedTuple

from marft.agents.answers import find_answer, find_bold, find_statement, strip_markup
from marft.common.errors import UserError
from marft.common.reasoning import strip_reasoning
from marft.common.texts import parse_json_text
from marft.envs.table_rows import format_value

_REFERS_TO_OTHERS = re.compile(
    r"\b(?:all|none|neither|any|both|either|each) of (?:the|these|those)\b|\babove\b", re.IGNORECASE
)
_MARKUP_CHARS = " \t\r\n*_`$"
_LABEL_PREFIX = re.compile(
    r"^(?:(?:la|die|the)\s+)?(?:(?:option|choice|letter|opción|opção)\s+|选项\s*)?(?=\w$)", re.IGNORECASE
)
# phrases that mark the label before them as correct, and phrases that mark the label after them
_CORRECT_AFTER_LABEL = (
    r"\s+(?:is|seems|looks)\s+(?:(?:the|most|more|clearly|probably)\s+)*(?:correct|right|best|likely|true|answer)\b"
)
_CORRECT_BEFORE_LABEL = (
    r"(?:\b(?:choose|chose|choosing|pick|select|go(?:ing)?\s+with|it\s+is|must\s+be)|\b(?i:it|that)['’]s|\b(?i:so|hence|thus|therefore),?"
    r"(?:\s+it\s+is)?)\s+(?:(?:option|choice|letter)\s+)?"
)
# full-width letters and signs in East Asian texts
_WIDE_CHARS = {0xFF01 + place: 0x21 + place for place in range(94)} | {ord("−"): "-"}
_REJECTED = re.compile(r"\b(?:not|never|neither|nor|wrong|incorrect|false|except)\b|n['’]t\b", re.IGNORECASE)
_ALTERNATIVE = re.compile(r"\W*(?:or|and|oder|und|ou|o|y|和|或)\b|\s*[/&]", re.IGNORECASE)


class Choices(NamedTuple):
    """Choice list: ``labels[i]`` stands for ``texts[i]``; without texts, any letter is a choice."""

    labels: tuple[str, ...]
    texts: tuple[str, ...] = ()


def parse_choices(cell: Any) -> Choices:
    """Return the choices in a cell: a list with texts, or an ARC table with ``text`` and ``label`` lists, also in JSON.

    >>> parse_choices(["red", "blue"])
    Choices(labels=('A', 'B'), texts=('red', 'blue'))

    Raises:
        UserError: the cell has neither form.
    """
    labels: object = None
    if isinstance(cell, str) and cell.lstrip().startswith(("[", "{")):
        cell = parse_json_text(cell)
    if isinstance(cell, Mapping):
        cell, labels = cell.get("text"), cell.get("label")
    if not isinstance(cell, list) or not cell:
        raise UserError("holds no list of choices, nor a table with lists of them (text) and of their names (label)")
    labels = list(ascii_uppercase[: len(cell)]) if labels is None else labels
    if not isinstance(labels, list) or len(labels) != len(cell):
        raise UserError(f"has {len(cell)} choices and not as many names for them; without names there are at most 26")
    return Choices(tuple(str(label) for label in labels), tuple(map(format_value, cell)))


def format_choices(cell: object) -> str:
    """Return choices as lines: ``A. red``, ``B. blue``.

    Raises:
        UserError: the cell holds no choices.
    """
    choices = parse_choices(cell)
    return "\n".join(f"{label}. {text}" for label, text in zip(choices.labels, choices.texts, strict=True))


def extract_choice(text: str, choices: Choices) -> str:
    """Return the label for the choice meant by a text, or "" if no choice or more than one fits.

    The search covers the stated answer if there is one. Otherwise it covers the whole text, its bold text, and its
    last line. It accepts a label alone, one label before its text, the text of one choice, or one label in
    brackets.

    >>> [extract_choice(text, parse_choices(["red", "blue"])) for text in ("The answer is (B).", "blue")]
    ['B', 'B']
    >>> extract_choice("A or B", Choices(("A", "B"))), extract_choice("A good plan", Choices(("A", "B")))
    ('', '')
    """
    text = strip_reasoning(text)
    statement = find_answer(text)
    statement = find_statement(text) if statement is None else statement
    if statement is not None:
        return _match_statement(statement, choices)
    candidates = (text, find_bold(text) or "", text.rstrip().rpartition("\n")[2])
    labels = (_match_statement(candidate, choices) for candidate in candidates)
    return next(filter(None, labels), "") or _label_on_first_line(text, choices)


def match_choice(statement: str, choices: Choices) -> str:
    """Return the label of the only choice named by its label or text; a label match takes precedence."""
    words = strip_markup(statement).translate(_WIDE_CHARS)
    bare = _LABEL_PREFIX.sub("", words.strip(_MARKUP_CHARS + "()[]{}.:。：【】"))
    by_label = [label for label in choices.labels if label.casefold() == bare.casefold()]
    by_text = [
        label
        for label, text in zip(choices.labels, choices.texts, strict=False)
        if _equal_text(text, statement, words, bare)
    ]
    matches = by_label or by_text
    return matches[0] if len(matches) == 1 else ""


def permute_choices(choices: Choices, key: str) -> list[int]:
    """Return a permutation of the choices that depends only on a key: for each place, the original index.

    A choice that refers to others by position ("all of the above") keeps its place. If any choice names others by
    letter ("both A and B"), all choices keep their places.

    >>> permute_choices(parse_choices(["red", "blue", "green", "none of the above"]), "a question")[3]
    3
    """
    letters = "|".join(re.escape(label) for label in choices.labels)
    refers_by_letter = re.compile(rf"\b(?:{letters})\b(?:\)?,? (?:and|or|&) \(?|, )(?:{letters})\b")
    if any(refers_by_letter.search(text) for text in choices.texts):
        return list(range(len(choices.texts)))
    free = [index for index, text in enumerate(choices.texts) if not _REFERS_TO_OTHERS.search(text)]
    shuffled_indices = iter(sorted(free, key=lambda index: hashlib.blake2b(f"{key}/{index}".encode()).digest()))
    return [next(shuffled_indices) if index in set(free) else index for index in range(len(choices.texts))]


def _match_statement(statement: str, choices: Choices) -> str:
    return match_choice(statement, choices) or _match_marked_label(strip_markup(statement), choices)


def _match_marked_label(statement: str, choices: Choices) -> str:
    """Return the only label before its text, in brackets, or after "option"; "" otherwise."""
    labels = "|".join(sorted(map(re.escape, choices.labels), key=len, reverse=True))
    label_by_key = {label.casefold(): label for label in choices.labels}
    label_start = r"(?<![\w(\[])(?<!\d[.,])(?!(?<=[-−])\d)"  # before a label: not part of a number or word
    label_pattern = rf"{label_start}(?:[(\[]\s*({labels})\s*[)\]]|({labels})[).:、](?=\s|$))"
    label_matches = re.findall(label_pattern, statement, re.IGNORECASE)
    labels_in_text = {label_by_key[label.casefold()] for pair in label_matches for label in pair if label}
    first_match = re.match(
        rf"(?:(?:option|choice)\s+)?(?:(?i:[(\[]?\s*({labels})\s*[)\].:、](?!\d))"
        rf"|({labels})(?=\s*[,;，—–]|\s+-|\s+(?:because|since|as|due|for)\b))",
        statement,
    )
    if first_match:
        label, remainder = label_by_key[(first_match[1] or first_match[2]).casefold()], statement[first_match.end() :]
        second_label = re.match(rf"[\s,;]*[(\[]?(?:{labels})(?!\w)", remainder) if not first_match[1] else None
        rest_label = match_choice(remainder, choices) if choices.texts and remainder.strip() else label
        is_ambiguous = second_label or labels_in_text - {label} or _ALTERNATIVE.match(remainder)
        return label if not is_ambiguous and rest_label in ("", label) else ""
    text_match = re.match(rf"({labels})\s+(.+)", statement)
    if text_match and choices.texts and match_choice(text_match[2], choices) == text_match[1]:
        return text_match[1]
    if not labels_in_text:
        phrase_pattern = (
            rf"\b(?:[Oo]ption|[Cc]hoice)\s+({labels})(?!\w)|^({labels}){_CORRECT_AFTER_LABEL}"
            rf"|{_CORRECT_BEFORE_LABEL}({labels})[.!]?$"
        )
        labels_in_text = {label for groups in re.findall(phrase_pattern, statement) for label in groups if label}
    return labels_in_text.pop() if len(labels_in_text) == 1 and not _REJECTED.search(statement) else ""


def _label_on_first_line(text: str, choices: Choices) -> str:
    """Return the label alone on the first line, if later lines name no other label; "" otherwise."""
    first_line, _, remaining_lines = text.strip().partition("\n")
    label = match_choice(first_line, choices)
    other_labels = "|".join(re.escape(candidate) for candidate in choices.labels if candidate != label)
    if not label or (other_labels and re.search(rf"(?<!\w)(?:{other_labels})(?!\w)", remaining_lines)):
        return ""
    return label


def _equal_text(text: str, *candidates: str) -> bool:
    return any(" ".join(text.split()).casefold() == " ".join(candidate.split()).casefold() for candidate in candidates)
