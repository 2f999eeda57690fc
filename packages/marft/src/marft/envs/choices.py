"""Multiple choice: labeled choices, and matching of a text to a choice."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any, NamedTuple

from marft.agents.answers import bold_in, find_answer, statement_in, undecorated
from marft.common.thoughts import outside_thoughts
from marft.envs.grading import said_plainly

_OF_OTHERS = re.compile(
    r"\b(?:all|none|neither|any|both|either|each) of (?:the|these|those)\b|\babove\b", re.IGNORECASE
)
_DECORATION = " \t\r\n*_`$"
_NAMING = re.compile(
    r"^(?:(?:la|die|the)\s+)?(?:(?:option|choice|letter|opción|opção)\s+|选项\s*)?(?=\w$)", re.IGNORECASE
)
# phrases that mark the label before them as correct, and phrases that mark the label after them
_IS_RIGHT = (
    r"\s+(?:is|seems|looks)\s+(?:(?:the|most|more|clearly|probably)\s+)*(?:correct|right|best|likely|true|answer)\b"
)
_RIGHT_IS = (
    r"(?:\b(?:choose|chose|choosing|pick|select|go(?:ing)?\s+with|it\s+is|must\s+be)|\b(?i:it|that)['’]s|\b(?i:so|hence|thus|therefore),?"
    r"(?:\s+it\s+is)?)\s+(?:(?:option|choice|letter)\s+)?"
)
# full-width letters and signs in East Asian texts
_WIDE = {0xFF01 + place: 0x21 + place for place in range(94)} | {ord("−"): "-"}
_DENIED = re.compile(r"\b(?:not|never|neither|nor|wrong|incorrect|false|except)\b|n['’]t\b", re.IGNORECASE)
_MORE = re.compile(r"\W*(?:or|and|oder|und|ou|o|y|和|或)\b|\s*[/&]", re.IGNORECASE)


class Choices(NamedTuple):
    """Choice list: ``labels[i]`` stands for ``texts[i]``; without texts, any letter is a choice."""

    labels: tuple[str, ...]
    texts: tuple[str, ...] = ()


def choices_in(cell: Any) -> Choices:
    """Return the choices in a cell: a list with texts, or an ARC table with ``text`` and ``label`` lists, also in JSON.

    >>> choices_in(["red", "blue"])
    Choices(labels=('A', 'B'), texts=('red', 'blue'))

    Raises:
        ValueError: the cell has neither form.
    """
    labels: object = None
    if isinstance(cell, str) and cell.lstrip().startswith(("[", "{")):
        cell = _from_json(cell)
    if isinstance(cell, Mapping):
        cell, labels = cell.get("text"), cell.get("label")
    if not isinstance(cell, list) or not cell:
        raise ValueError("holds no list of choices, nor a table with lists of them (text) and of their names (label)")
    labels = list(ascii_uppercase[: len(cell)]) if labels is None else labels
    if not isinstance(labels, list) or len(labels) != len(cell):
        raise ValueError(f"has {len(cell)} choices and not as many names for them; without names there are at most 26")
    return Choices(tuple(str(label) for label in labels), tuple(map(said_plainly, cell)))


def lettered(cell: object) -> str:
    """Return choices as lines: ``A. red``, ``B. blue``.

    Raises:
        ValueError: the cell holds no choices.
    """
    choices = choices_in(cell)
    return "\n".join(f"{label}. {text}" for label, text in zip(choices.labels, choices.texts, strict=True))


def chosen(text: str, choices: Choices) -> str:
    """Return the label for the choice meant by a text, or "" if no choice or more than one fits.

    The search covers the stated answer if there is one. Otherwise it covers the whole text, its bold text, and its
    last line. It accepts a label alone, one label before its text, the text of one choice, or one label in
    brackets.

    >>> chosen("The answer is (B).", choices_in(["red", "blue"])), chosen("blue", choices_in(["red", "blue"]))
    ('B', 'B')
    >>> chosen("A or B", Choices(("A", "B"))), chosen("A good plan", Choices(("A", "B")))
    ('', '')
    """
    text = outside_thoughts(text)
    stated = find_answer(text)
    stated = statement_in(text) if stated is None else stated
    if stated is not None:
        return _meant(stated, choices)
    places = (text, bold_in(text) or "", text.rstrip().rpartition("\n")[2])
    return next((label for place in places if (label := _meant(place, choices))), "") or _alone_first(text, choices)


def labelled(stated: str, choices: Choices) -> str:
    """Return the label of the only choice named by its label or text; a label match takes precedence."""
    words = undecorated(stated).translate(_WIDE)
    bare = _NAMING.sub("", words.strip(_DECORATION + "()[]{}.:。：【】"))
    by_label = [label for label in choices.labels if label.casefold() == bare.casefold()]
    by_text = [
        label for label, text in zip(choices.labels, choices.texts, strict=False) if _same(text, stated, words, bare)
    ]
    found = by_label or by_text
    return found[0] if len(found) == 1 else ""


def shuffled(choices: Choices, key: str) -> list[int]:
    """Return a permutation of the choices that depends only on a key: for each place, the original index.

    A choice that refers to others by position ("all of the above") keeps its place. If any choice names others by
    letter ("both A and B"), all choices keep their places.

    >>> shuffled(choices_in(["red", "blue", "green", "none of the above"]), "a question")[3]
    3
    """
    letters = "|".join(re.escape(label) for label in choices.labels)
    named = re.compile(rf"\b(?:{letters})\b(?:\)?,? (?:and|or|&) \(?|, )(?:{letters})\b")
    if any(named.search(text) for text in choices.texts):
        return list(range(len(choices.texts)))
    free = [place for place, text in enumerate(choices.texts) if not _OF_OTHERS.search(text)]
    moved = iter(sorted(free, key=lambda place: hashlib.blake2b(f"{key}/{place}".encode()).digest()))
    return [next(moved) if place in set(free) else place for place in range(len(choices.texts))]


def _meant(stated: str, choices: Choices) -> str:
    return labelled(stated, choices) or _with_label(undecorated(stated), choices)


def _with_label(stated: str, choices: Choices) -> str:
    """Return the only label before its text, in brackets, or after "option"; "" otherwise."""
    labels = "|".join(sorted(map(re.escape, choices.labels), key=len, reverse=True))
    known = {label.casefold(): label for label in choices.labels}
    alone = r"(?<![\w(\[])(?<!\d[.,])(?!(?<=[-−])\d)"  # before a label: not part of a number or word
    label_marked = rf"{alone}(?:[(\[]\s*({labels})\s*[)\]]|({labels})[).:、](?=\s|$))"
    marked = re.findall(label_marked, stated, re.IGNORECASE)
    named = {known[label.casefold()] for pair in marked for label in pair if label}
    first = re.match(
        rf"(?:(?:option|choice)\s+)?(?:(?i:[(\[]?\s*({labels})\s*[)\].:、](?!\d))"
        rf"|({labels})(?=\s*[,;，—–]|\s+-|\s+(?:because|since|as|due|for)\b))",
        stated,
    )
    if first:
        label, rest = known[(first[1] or first[2]).casefold()], stated[first.end() :]
        others = re.match(rf"[\s,;]*[(\[]?(?:{labels})(?!\w)", rest) if not first[1] else None
        other = labelled(rest, choices) if choices.texts and rest.strip() else label
        return label if named <= {label} and not _MORE.match(rest) and not others and other in ("", label) else ""
    worded = re.match(rf"({labels})\s+(.+)", stated)
    if worded and choices.texts and labelled(worded[2], choices) == worded[1]:
        return worded[1]
    if not named:
        said = rf"\b(?:[Oo]ption|[Cc]hoice)\s+({labels})(?!\w)|^({labels}){_IS_RIGHT}|{_RIGHT_IS}({labels})[.!]?$"
        named = {label for found in re.findall(said, stated) for label in found if label}
    return named.pop() if len(named) == 1 and not _DENIED.search(stated) else ""


def _alone_first(text: str, choices: Choices) -> str:
    """Return the label alone on the first line, if later lines name no other label; "" otherwise."""
    first, _, rest = text.strip().partition("\n")
    label = labelled(first, choices)
    others = "|".join(re.escape(other) for other in choices.labels if other != label)
    return "" if not label or (others and re.search(rf"(?<!\w)(?:{others})(?!\w)", rest)) else label


def _from_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _same(text: str, *others: str) -> bool:
    return any(" ".join(text.split()).casefold() == " ".join(other.split()).casefold() for other in others)
