"""Multi-turn tasks from the Berkeley function-calling leaderboard (Patil et al.).

The files are JSONL with messages, an initial state, and calls written as Python. The calls are parsed and never
executed.
"""

from __future__ import annotations

import ast
from typing import Any

from marft.common.error_origin import describe_error
from marft.common.texts import truncate
from marft.common.types import Task
from marft_envs.tool_use.loading.files import read_json_lines, require_field, require_table, text_list

LONG_CONTEXT_NAMES = ("long_context", "composite")  # parts of the ids of tasks with long states
CONTINUE_MESSAGE = "Go on."  # message in a turn without text
NEW_TOOLS_MESSAGE = "There are more tools now: {}."  # message in the turn that adds withheld tools


def read_bfcl_tasks(path: str, answers: str) -> list[Task]:
    """Read tasks from a file, with reference calls per turn from ``answers``.

    Raises:
        ValueError: a row has another layout, or has no answer.
    """
    answers_by_id: dict[str, tuple[str, list[Any]]] = {}
    for location, row in read_json_lines(answers):
        if (name := require_field(row, "id", str, location)) in answers_by_id:
            raise ValueError(
                f"environment.data.answers: {location}: {name!r} stands in {answers_by_id[name][0]} too; leave one out"
            )
        answers_by_id[name] = location, require_field(row, "ground_truth", list, location)
    tasks = []
    for location, row in read_json_lines(path):
        name = require_field(row, "id", str, location)
        if name not in answers_by_id:
            raise ValueError(
                f"environment.data: {location}: {answers} has no {name!r}; give the file that belongs to it"
            )
        answer_location, turns = answers_by_id[name]
        if not all(isinstance(turn, list) and all(isinstance(text, str) for text in turn) for turn in turns):
            raise ValueError(
                f"environment.data.answers: {answer_location}: each turn of 'ground_truth' must be a list of texts"
            )
        withheld_tools = _withheld_tools(row, location)
        user_texts = _user_texts(require_field(row, "question", list, location), location)
        messages = _turn_messages(user_texts, withheld_tools)
        if len(turns) != len(messages):
            raise ValueError(
                f"environment.data.answers: {answer_location}: 'ground_truth' has {len(turns)} turns, and 'question' "
                f"of {location} {len(messages)}; give the file that belongs to it"
            )
        class_names = require_field(row, "involved_classes", list, location) and text_list(
            row, "involved_classes", location
        )
        data = {
            "messages": messages,
            "asks": [words for words in user_texts if words],
            "held_back": withheld_tools,
            "initial": require_field(row, "initial_config", dict, location),
            "classes": class_names,
            "excluded": text_list(row, "excluded_function", location),
            "long_context": any(kind in name.rpartition("_")[0] for kind in LONG_CONTEXT_NAMES),
            "turns": [[parse_call(text, answer_location) for text in turn] for turn in turns],
        }
        tasks.append(Task(name, messages[0], data))
    return tasks


def parse_call(text: str, location: str) -> list[Any]:
    """Parse a Python call with constant arguments.

    >>> parse_call("mv(source='a.txt', destination='b')", "")
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
        positional = {f"*{index}": ast.literal_eval(argument) for index, argument in enumerate(node.args)}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"environment.data.answers: {location}: {truncate(repr(text), 100)} is no call of a tool: "
            f"{describe_error(error)}"
        ) from error
    return [name, {**positional, **named}]


def _withheld_tools(row: dict[str, Any], location: str) -> dict[str, list[str]]:
    """Return the tools that become available in a turn, by turn index from 0."""
    withheld = require_table(row.get("missed_function", {}), location)
    for turn in withheld:
        if not turn.isdecimal():
            raise ValueError(
                f"environment.data: {location}: 'missed_function' has {truncate(repr(turn), 100)} for a turn"
            )
    return {turn: text_list(withheld, turn, location) for turn in withheld}


def _user_texts(question: list[Any], location: str) -> list[str]:
    """Return the user's text per turn; "" for a turn without text."""
    turns = []
    for turn in question:
        if not isinstance(turn, list):
            raise ValueError(f"environment.data: {location}: each turn of 'question' must be a list of messages")
        turns.append(
            " ".join(filter(None, (str(require_table(message, location).get("content", "")) for message in turn)))
        )
    if not turns:
        raise ValueError(f"environment.data: {location}: 'question' has no turns")
    return turns


def _turn_messages(user_texts: list[str], withheld: dict[str, list[str]]) -> list[str]:
    """Return the message shown to agents per turn: user text and new tools, or a request to continue."""
    new_tools = [withheld.get(str(number), []) for number in range(len(user_texts))]
    tool_messages = [NEW_TOOLS_MESSAGE.format(", ".join(names)) if names else "" for names in new_tools]
    return [" ".join(filter(None, parts)) or CONTINUE_MESSAGE for parts in zip(user_texts, tool_messages, strict=True)]
