"""Instructions on the presence and frequency of words and letters."""

from __future__ import annotations

import re
from random import Random
from typing import Any

from marft_envs.instructions.kinds import Given, Kind, Topic, counted

FAMILY = "keywords"
LETTERS = "aeinorst"


def _some(random: Random, topic: Topic) -> dict[str, Any]:
    return {"keywords": sorted(random.sample(topic.words, random.randint(1, 2)))}


def _forbidden(random: Random, topic: Topic) -> dict[str, Any]:
    return {"forbidden_words": sorted(random.sample(topic.words, random.randint(1, 2)))}


def _often(random: Random, topic: Topic) -> dict[str, Any]:
    relation = random.choice(("at least", "at least", "less than"))
    return {"keyword": random.choice(topic.words), "frequency": random.randint(2, 3), "relation": relation}


def _letter(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    relation = random.choice(("at least", "less than"))
    return {"letter": random.choice(LETTERS), "let_frequency": random.randint(3, 8), "let_relation": relation}


def _has_all(text: str, given: Given) -> bool:
    return all(word.strip().lower() in text.lower() for word in given["keywords"])


def _has_none(text: str, given: Given) -> bool:
    return not any(
        re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in given["forbidden_words"]
    )


KINDS = (
    Kind(
        f"{FAMILY}:existence", lambda given: f"Use {_listed(given['keywords'])}.",
        _has_all, _some, ("keywords",), "keywords",
    ),
    Kind(
        f"{FAMILY}:forbidden_words", lambda given: f"Do not use {_listed(given['forbidden_words'])}.",
        _has_none, _forbidden, ("forbidden_words",), "forbidden",
    ),
    Kind(
        f"{FAMILY}:frequency",
        lambda given: f"Use the word {given['keyword']} {given['relation']} {given['frequency']} times.",
        lambda text, given: counted(
            text.lower().count(given["keyword"].strip().lower()), given["relation"], given["frequency"]
        ),
        _often, ("keyword", "frequency", "relation"), "keywords",
    ),
    Kind(
        f"{FAMILY}:letter_frequency",
        lambda given: f"Use the letter {given['letter']} {given['let_relation']} {given['let_frequency']} times.",
        lambda text, given: counted(
            text.lower().count(given["letter"].lower()), given["let_relation"], given["let_frequency"]
        ),
        _letter, ("letter", "let_frequency", "let_relation"), "letters",
    ),
)  # fmt: skip


def _listed(words: list[str]) -> str:
    """Format a word list: ``the word a``, ``the words a, b and c``."""
    return f"the words {', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else f"the word {words[0]}"
