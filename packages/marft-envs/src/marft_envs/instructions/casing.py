"""Instructions on upper case, lower case and commas."""

from __future__ import annotations

from random import Random
from typing import Any

from marft_envs.instructions.counting import find_capital_words
from marft_envs.instructions.kinds import InstructionKind, Topic, no_parameters, satisfies_relation
from marft_envs.instructions.languages import may_be_language

FAMILY = "change_case"


def _draw_capital_words(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    return {"capital_frequency": random.randint(1, 4), "capital_relation": random.choice(("at least", "less than"))}


KINDS = (
    InstructionKind(
        f"{FAMILY}:english_capital",
        lambda _: "Write in English, in capital letters alone.",
        lambda text, _: text.isupper() and may_be_language(text, "en"),
        no_parameters,
        group="case",
    ),
    InstructionKind(
        f"{FAMILY}:english_lowercase",
        lambda _: "Write in English, in small letters alone.",
        lambda text, _: text.islower() and may_be_language(text, "en"),
        no_parameters,
        group="case",
    ),
    InstructionKind(
        f"{FAMILY}:capital_word_frequency",
        lambda given: f"Write {given['capital_relation']} {given['capital_frequency']} words in capitals.",
        lambda text, given: satisfies_relation(
            len(find_capital_words(text)), given["capital_relation"], given["capital_frequency"]
        ),
        _draw_capital_words,
        ("capital_frequency", "capital_relation"),
        "case",
    ),
    InstructionKind(
        "punctuation:no_comma",
        lambda _: "Use no commas.",
        lambda text, _: "," not in text,
        no_parameters,
        group="commas",
    ),
)
