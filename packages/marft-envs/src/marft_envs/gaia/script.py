"""Scripted policy for generated questions: read tool results, call the next tools, and state the answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from marft.common.types import ToolCall
from marft.envs.scripts import Cue, Line
from marft_envs.gaia.plans import Known, Missing, answer_of, fields_in
from marft_envs.gaia.tables import READ, ending

RESULT = re.compile(r"^\[(\d+)\] ([^:\n]+?)(?::.*)?$", re.MULTILINE)
WORKED = re.compile(r"^([^=\n]+) = (-?[\d.]+)$")
MESSAGE = re.compile(r"Message from \w+:\nFound: (.+)")
NOTHING = "I found nothing."
LOST = 12  # turns after which a weak player gives up


@dataclass(frozen=True)
class Researcher:
    """Scripted policy for ``searcher``, ``answerer`` and all other roles.

    ``searcher`` looks facts up and reports the result. ``answerer`` states the reported answer. Any other role does
    both. A weak player searches for part of a name, reads a wrong page or line, or reports no result. A weak
    answerer ignores messages.

    Args:
        skill: fraction of well-played turns.
    """

    skill: float

    def __call__(self, cue: Cue) -> str | Line:
        """Return the agent's next text or tool calls."""
        good = cue.random.random() < self.skill
        if cue.role == "answerer":
            found = MESSAGE.search(cue.shown)
            return f"FINAL ANSWER: {found[1] if found and good else 'unknown'}"
        known = _heard(cue.chat, cue.task.data["files"])
        said = "Found:" if cue.role == "searcher" else "FINAL ANSWER:"
        try:
            found_out = answer_of(cue.task.data["plan"], known)
        except Missing as missing:
            if not good and cue.random.random() < 0.5:
                return NOTHING
            calls = _calls(missing, known, cue.task.prompt, cue.random, good)
            return Line("", calls) if calls and len(cue.chat) < LOST * 2 else NOTHING
        return f"{said} {found_out if good else _slipped(known, found_out, cue.random)}"


def _heard(chat: Sequence[Mapping[str, object]], files: Mapping[str, str]) -> Known:
    """Collect the facts in tool results."""
    known = Known()
    for message in chat:
        if message["role"] != "tool":
            continue
        text = str(message["content"])
        first, _, rest = text.partition("\n")
        if first in files:
            known.files[first] = READ[ending(first)](rest)
        elif found := WORKED.match(text):
            known.worked_out[found[1]] = found[2]
        elif text.startswith("["):
            known.numbers |= {title: int(number) for number, title in RESULT.findall(text)}
        else:
            known.pages[first] = fields_in(rest)
    return known


def _calls(missing: Missing, known: Known, question: str, random: Random, good: bool) -> tuple[ToolCall, ...]:
    """Return tool calls for the missing facts.

    For pages named in the question, the first search uses the whole question. Further searches use the titles of
    missing pages.
    """
    if missing.what == "file":
        return (_call("read_file", name=missing.names[0]),)
    if missing.what == "value":
        return tuple(_call("calculate", expression=expression) for expression in missing.names)
    sought = [title for title in missing.names if title not in known.numbers]
    if sought:
        if good and not known.numbers and any(title in question for title in sought):
            return (_call("search", query=question),)
        return tuple(_call("search", query=title if good else title.split()[0]) for title in sought)
    numbers = list(known.numbers.values())
    return tuple(
        _call("open_page", page=known.numbers[title] if good else random.choice(numbers)) for title in missing.names
    )


def _slipped(known: Known, right: str, random: Random) -> str:
    """Return a wrong value from the sources, as a mistake."""
    read = [value for fields in known.pages.values() for value in fields.values()]
    read += [cell for rows in known.files.values() for cells in rows[1:] for cell in cells]
    others = [value for value in read if value != right]
    return random.choice(others) if others else right


def _call(name: str, /, **arguments: object) -> ToolCall:
    return ToolCall(name, json.dumps(arguments))
