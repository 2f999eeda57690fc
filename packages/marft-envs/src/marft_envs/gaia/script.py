"""Scripted policy for generated questions: read tool results, call the next tools, and state the answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from marft.common.types import ToolCall
from marft.envs.scripted_policy import PolicyInput, ScriptedReply
from marft_envs.gaia.plans import KnownFacts, MissingFact, execute_plan, parse_fields
from marft_envs.gaia.tables import PARSERS, file_suffix

RESULT_PATTERN = re.compile(r"^\[(\d+)\] ([^:\n]+?)(?::.*)?$", re.MULTILINE)
COMPUTED_PATTERN = re.compile(r"^([^=\n]+) = (-?[\d.]+)$")
MESSAGE_PATTERN = re.compile(r"Message from \w+:\nFound: (.+)")
NOTHING_FOUND = "I found nothing."
GIVE_UP_TURNS = 12  # turns after which a weak player gives up


@dataclass(frozen=True)
class GaiaScript:
    """Scripted policy for ``searcher``, ``answerer`` and all other roles.

    ``searcher`` looks facts up and reports the result. ``answerer`` states the reported answer. Any other role does
    both. A weak player searches for part of a name, reads a wrong page or line, or reports no result. A weak
    answerer ignores messages.

    Args:
        skill: fraction of well-played turns.
    """

    skill: float

    def __call__(self, cue: PolicyInput) -> str | ScriptedReply:
        """Return the agent's next text or tool calls."""
        is_good = cue.random.random() < self.skill
        if cue.role == "answerer":
            match = MESSAGE_PATTERN.search(cue.last_message)
            return f"FINAL ANSWER: {match[1] if match and is_good else 'unknown'}"
        facts = _collect_facts(cue.messages, cue.task.data["files"])
        prefix = "Found:" if cue.role == "searcher" else "FINAL ANSWER:"
        try:
            answer = execute_plan(cue.task.data["plan"], facts)
        except MissingFact as missing:
            if not is_good and cue.random.random() < 0.5:
                return NOTHING_FOUND
            calls = _make_calls(missing, facts, cue.task.prompt, cue.random, is_good)
            return ScriptedReply("", calls) if calls and len(cue.messages) < GIVE_UP_TURNS * 2 else NOTHING_FOUND
        return f"{prefix} {answer if is_good else _wrong_value(facts, answer, cue.random)}"


def _collect_facts(chat: Sequence[Mapping[str, object]], files: Mapping[str, str]) -> KnownFacts:
    """Collect the facts in tool results."""
    facts = KnownFacts()
    for message in chat:
        if message["role"] != "tool":
            continue
        text = str(message["content"])
        first, _, body = text.partition("\n")
        if first in files:
            facts.files[first] = PARSERS[file_suffix(first)](body)
        elif match := COMPUTED_PATTERN.match(text):
            facts.computed[match[1]] = match[2]
        elif text.startswith("["):
            facts.page_numbers |= {title: int(number) for number, title in RESULT_PATTERN.findall(text)}
        else:
            facts.pages[first] = parse_fields(body)
    return facts


def _make_calls(
    missing: MissingFact, facts: KnownFacts, question: str, random: Random, is_good: bool
) -> tuple[ToolCall, ...]:
    """Return tool calls for the missing facts.

    For pages named in the question, the first search uses the whole question. Further searches use the titles of
    missing pages.
    """
    if missing.kind == "file":
        return (_make_call("read_file", name=missing.names[0]),)
    if missing.kind == "value":
        return tuple(_make_call("calculate", expression=expression) for expression in missing.names)
    searched_titles = [title for title in missing.names if title not in facts.page_numbers]
    if searched_titles:
        if is_good and not facts.page_numbers and any(title in question for title in searched_titles):
            return (_make_call("search", query=question),)
        return tuple(_make_call("search", query=title if is_good else title.split()[0]) for title in searched_titles)
    numbers = list(facts.page_numbers.values())
    return tuple(
        _make_call("open_page", page=facts.page_numbers[title] if is_good else random.choice(numbers))
        for title in missing.names
    )


def _wrong_value(facts: KnownFacts, expected: str, random: Random) -> str:
    """Return a wrong value from the sources, as a mistake."""
    values_read = [value for fields in facts.pages.values() for value in fields.values()]
    values_read += [cell for rows in facts.files.values() for cells in rows[1:] for cell in cells]
    wrong_values = [value for value in values_read if value != expected]
    return random.choice(wrong_values) if wrong_values else expected


def _make_call(name: str, /, **arguments: object) -> ToolCall:
    return ToolCall(name, json.dumps(arguments))
