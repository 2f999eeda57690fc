"""What a small model practises before it plays: to look words up, to copy them and to search for them, several times
a row.

A game's conversation asks for one or two words, too few to learn from scratch where in a text an answer stands. Here
one text is asked about again and again, in the turns of a chat, with the words that the world uses.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

from marft.agents.prompt_messages import tool_call_messages
from marft.common.types import ToolCall

QUESTIONS = 12
BETWEEN = ((" ", ", "), (" ", "; "), (": ", "\n"), (" ", "\n"), (" is ", ". "), (" ", " "))


def words_of(texts: Iterable[str], count: int = 250) -> list[str]:
    """The commonest words, and every digit."""
    seen = Counter(word for text in texts for word in re.findall(r"[A-Za-z]+", text))
    return sorted(word for word, _ in seen.most_common(count))


def practice(words: list[str], random: Random, asks: float = 0.0) -> Iterator[list[dict[str, Any]]]:
    """Conversations without end: a table and questions about it, words to repeat, or questions to search for.

    Args:
        asks: the share of the last.
    """
    while True:
        if asks and random.random() < asks:
            yield searches(words, random)
        else:
            yield lookups(words, random) if random.random() < 0.75 else copies(words, random)


def lookups(words: list[str], random: Random) -> list[dict[str, Any]]:
    """A table of keys and values; each question is a key, after some words or none."""
    keys = random.sample(words, random.randint(2, 8))
    table = {key: value(words, random) for key in keys}
    inside, apart = random.choice(BETWEEN)
    messages = [_says("user", apart.join(f"{key}{inside}{value}" for key, value in table.items()))]
    before = random.choice(["", "", f"{random.choice(words)}: ", f"{random.choice(words)} {random.choice(words)}: "])
    for _ in range(QUESTIONS):
        key = random.choice(keys)
        messages += [_says("user", before + key), _says("assistant", table[key])]
    return messages


def copies(words: list[str], random: Random) -> list[dict[str, Any]]:
    """Some words, after a mark; the answer is the same words."""
    mark = random.choice(["", f"{random.choice(words)}: "])
    messages = []
    for _ in range(QUESTIONS // 2):
        said = random.choice([" ", ", ", "\n"]).join(value(words, random) for _ in range(random.randint(1, 5)))
        messages += [_says("user", mark + said), _says("assistant", said)]
    return messages


def searches(words: list[str], random: Random) -> list[dict[str, Any]]:
    """Questions with a name among other words; each answer is a call that searches for the question."""
    names, others = ([word for word in words if word[0].isupper() is upper] for upper in (True, False))
    messages = []
    for _ in range(random.choice([1, 2, QUESTIONS // 3])):
        first, *name = random.sample(names, random.choice([2, 2, 3]))
        before, after = (random.choices(others, k=random.randint(*most)) for most in ((1, 3), (0, 2)))
        question = " ".join([first, *before, *name, *after]) + "?"
        call = tool_call_messages("", [ToolCall("search", json.dumps({"query": question}))])[0]
        messages += [_says("user", question), dict(call)]
    return messages


def value(words: list[str], random: Random) -> str:
    """A word, a letter, or a number."""
    return random.choice([random.choice(words), random.choice("ABCDEFGHJKLMNPQRSTUVWXYZ"), str(random.randint(0, 99))])


def _says(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}
