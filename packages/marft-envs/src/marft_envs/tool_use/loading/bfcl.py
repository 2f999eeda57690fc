"""Multi-turn tasks of the Berkeley function-calling leaderboard (Patil et al.): JSONL with messages, a state to begin
with, and calls written as Python, which are read and never run."""

from __future__ import annotations

import ast
from typing import Any

from marft.common.faults import described
from marft.common.texts import cut
from marft.common.types import Task
from marft_envs.tool_use.loading.files import field, lines_of, table, texts

LONG = ("long_context", "composite")  # in ids of tasks whose states are long
GO_ON = "Go on."  # said in a turn without words
MORE = "There are more tools now: {}."  # said in the turn in which what was held back is there


def bfcl_tasks(path: str, answers: str) -> list[Task]:
    """The tasks of a file, with the calls that ``answers`` has for each turn.

    Raises:
        ValueError: one is of another layout, or has no answer.
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
    """A call as it is written in Python, read.

    >>> call_of("mv(source='a.txt', destination='b')", "")
    ['mv', {'source': 'a.txt', 'destination': 'b'}]

    Raises:
        ValueError: it is none of constants.
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
    """By turn, counted from 0, the names of tools that are there from then on."""
    held_back = table(row.get("missed_function", {}), where)
    for turn in held_back:
        if not turn.isdecimal():
            raise ValueError(f"environment.data: {where}: 'missed_function' has {cut(repr(turn), 100)} for a turn")
    return {turn: texts(held_back, turn, where) for turn in held_back}


def _said(question: list[Any], where: str) -> list[str]:
    """The words of the user, turn by turn; "" in a turn without any."""
    turns = []
    for turn in question:
        if not isinstance(turn, list):
            raise ValueError(f"environment.data: {where}: each turn of 'question' must be a list of messages")
        turns.append(" ".join(filter(None, (str(table(message, where).get("content", "")) for message in turn))))
    if not turns:
        raise ValueError(f"environment.data: {where}: 'question' has no turns")
    return turns


def _messages(said: list[str], held_back: dict[str, list[str]]) -> list[str]:
    """What agents are told, turn by turn: the user's words, and what tools there are now; without either, to go on."""
    more = [held_back.get(str(number), []) for number in range(len(said))]
    told = [MORE.format(", ".join(names)) if names else "" for names in more]
    return [" ".join(filter(None, both)) or GO_ON for both in zip(said, told, strict=True)]
