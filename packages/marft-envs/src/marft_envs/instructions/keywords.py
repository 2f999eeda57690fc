"""Instructions on the presence and frequency of words and letters."""

from __future__ import annotations

import re
from random import Random
from typing import Any

from marft_envs.instructions.kinds import InstructionKind, Parameters, Topic, satisfies_relation

FAMILY = "keywords"
LETTERS = "aeinorst"


def _draw_keywords(random: Random, topic: Topic) -> dict[str, Any]:
    return {"keywords": sorted(random.sample(topic.words, random.randint(1, 2)))}


def _draw_forbidden(random: Random, topic: Topic) -> dict[str, Any]:
    return {"forbidden_words": sorted(random.sample(topic.words, random.randint(1, 2)))}


def _draw_frequency(random: Random, topic: Topic) -> dict[str, Any]:
    relation = random.choice(("at least", "at least", "less than"))
    return {"keyword": random.choice(topic.words), "frequency": random.randint(2, 3), "relation": relation}


def _draw_letter(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    relation = random.choice(("at least", "less than"))
    return {"letter": random.choice(LETTERS), "let_frequency": random.randint(3, 8), "let_relation": relation}


def _has_keywords(text: str, parameters: Parameters) -> bool:
    return all(word.strip().lower() in text.lower() for word in parameters["keywords"])


def _has_no_forbidden(text: str, parameters: Parameters) -> bool:
    return not any(
        re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in parameters["forbidden_words"]
    )


KINDS = (
    InstructionKind(
        f"{FAMILY}:existence",
        lambda given: f"Use {_format_words(given['keywords'])}.",
        _has_keywords,
        _draw_keywords,
        ("keywords",),
        "keywords",
    ),
    InstructionKind(
        f"{FAMILY}:forbidden_words",
        lambda given: f"Do not use {_format_words(given['forbidden_words'])}.",
        _has_no_forbidden,
        _draw_forbidden,
        ("forbidden_words",),
        "forbidden",
    ),
    InstructionKind(
        f"{FAMILY}:frequency",
        lambda given: f"Use the word {given['keyword']} {given['relation']} {given['frequency']} times.",
        lambda text, given: satisfies_relation(
            text.lower().count(given["keyword"].strip().lower()), given["relation"], given["frequency"]
        ),
        _draw_frequency,
        ("keyword", "frequency", "relation"),
        "keywords",
    ),
    InstructionKind(
        f"{FAMILY}:letter_frequency",
        lambda given: f"Use the letter {given['letter']} {given['let_relation']} {given['let_frequency']} times.",
        lambda text, given: satisfies_relation(
            text.lower().count(given["letter"].lower()), given["let_relation"], given["let_frequency"]
        ),
        _draw_letter,
        ("letter", "let_frequency", "let_relation"),
        "letters",
    ),
)


def _format_words(words: list[str]) -> str:
    """Format a word list: ``the word a``, ``the words a, b and c``."""
    return f"the words {', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else f"the word {words[0]}"
