"""Multi-turn tasks from the Berkeley function-calling leaderboard (Patil et al.).

The files are JSONL with messages, an initial state, and calls written as Python. The calls are parsed and never
executed.
"""

from __future__ import annotations

import ast
from typing import Any

from marft.common.faults import described
from marft.common.texts import cut
from marft.common.types import Task
from marft_envs.tool_use.loading.files import field, lines_of, table, texts

LONG = ("long_context", "composite")  # parts of the ids of tasks with long states
GO_ON = "Go on."  # message in a turn without text
MORE = "There are more tools now: {}."  # message in the turn that adds withheld tools


def bfcl_tasks(path: str, answers: str) -> list[Task]:
    """Read tasks from a file, with reference calls per turn from ``answers``.

    Raises:
        ValueError: a row has another layout, or has no answer.
    """
    known: dict[str, tuple[str, list[Any]]] = {}
    for where, row in lines_of(answers):
        if (name := field(row, "id", str, where)) in known:
            raise ValueError(
                f"environment.data.answers: {where}: {name!r} stands in {known[name][0]} too; leave one out"
            )
        known[name] = where, field(row, "ground_truth", list, where)
    found = []
    for where, row in lines_of(path):
        name = field(row, "id", str, where)
        if name not in known:
            raise ValueError(f"environment.data: {where}: {answers} has no {name!r}; give the file that belongs to it")
        place, turns = known[name]
        if not all(isinstance(turn, list) and all(isinstance(text, str) for text in turn) for turn in turns):
            raise ValueError(f"environment.data.answers: {place}: each turn of 'ground_truth' must be a list of texts")
        held_back = _held_back(row, where)
        said = _said(field(row, "question", list, where), where)
        messages = _messages(said, held_back)
        if len(turns) != len(messages):
            raise ValueError(
                f"environment.data.answers: {place}: 'ground_truth' has {len(turns)} turns, and 'question' of {where} "
                f"{len(messages)}; give the file that belongs to it"
            )
        involved = field(row, "involved_classes", list, where) and texts(row, "involved_classes", where)
        data = {
            "messages": messages,
            "asks": [words for words in said if words],
            "held_back": held_back,
            "initial": field(row, "initial_config", dict, where),
            "classes": involved,
            "excluded": texts(row, "excluded_function", where),
            "long_context": any(kind in name.rpartition("_")[0] for kind in LONG),
            "turns": [[call_of(text, place) for text in turn] for turn in turns],
        }
        found.append(Task(name, messages[0], data))
    return found


def call_of(text: str, where: str) -> list[Any]:
    """Parse a Python call with constant arguments.

    >>> call_of("mv(source='a.txt', destination='b')", "")
    ['mv', {'source': 'a.txt', 'destination': 'b'}]

    Positional arguments get the names ``*0``, ``*1``, …

    Raises:
        ValueError: the text is not a call with constant arguments.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if not isinstance(node, ast.Call):
            raise SyntaxError("no call")
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        named = {word.arg: ast.literal_eval(word.value) for word in node.keywords if word.arg}
        placed = {f"*{index}": ast.literal_eval(one) for index, one in enumerate(node.args)}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"environment.data.answers: {where}: {cut(repr(text), 100)} is no call of a tool: {described(error)}"
        ) from error
    return [name, {**placed, **named}]


def _held_back(row: dict[str, Any], where: str) -> dict[str, list[str]]:
    """Return the tools that become available in a turn, by turn index from 0."""
    held_back = table(row.get("missed_function", {}), where)
    for turn in held_back:
        if not turn.isdecimal():
            raise ValueError(f"environment.data: {where}: 'missed_function' has {cut(repr(turn), 100)} for a turn")
    return {turn: texts(held_back, turn, where) for turn in held_back}


def _said(question: list[Any], where: str) -> list[str]:
    """Return the user's text per turn; "" for a turn without text."""
    turns = []
    for turn in question:
        if not isinstance(turn, list):
            raise ValueError(f"environment.data: {where}: each turn of 'question' must be a list of messages")
        turns.append(" ".join(filter(None, (str(table(message, where).get("content", "")) for message in turn))))
    if not turns:
        raise ValueError(f"environment.data: {where}: 'question' has no turns")
    return turns


def _messages(said: list[str], held_back: dict[str, list[str]]) -> list[str]:
    """Return the message shown to agents per turn: user text and new tools, or a request to continue."""
    more = [held_back.get(str(number), []) for number in range(len(said))]
    told = [MORE.format(", ".join(names)) if names else "" for names in more]
    return [" ".join(filter(None, both)) or GO_ON for both in zip(said, told, strict=True)]
