"""Instructions on upper case, lower case and commas."""

from __future__ import annotations

from random import Random
from typing import Any

from marft_envs.instructions.counting import capital_words_of
from marft_envs.instructions.kinds import Kind, Topic, counted, nothing
from marft_envs.instructions.languages import may_be

FAMILY = "change_case"


def _capital_words(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    return {"capital_frequency": random.randint(1, 4), "capital_relation": random.choice(("at least", "less than"))}


KINDS = (
    Kind(
        f"{FAMILY}:english_capital", lambda _: "Write in English, in capital letters alone.",
        lambda text, _: text.isupper() and may_be(text, "en"), nothing, group="case",
    ),
    Kind(
        f"{FAMILY}:english_lowercase", lambda _: "Write in English, in small letters alone.",
        lambda text, _: text.islower() and may_be(text, "en"), nothing, group="case",
    ),
    Kind(
        f"{FAMILY}:capital_word_frequency",
        lambda given: f"Write {given['capital_relation']} {given['capital_frequency']} words in capitals.",
        lambda text, given: counted(
            len(capital_words_of(text)), given["capital_relation"], given["capital_frequency"]
        ),
        _capital_words, ("capital_frequency", "capital_relation"), "case",
    ),
    Kind("punctuation:no_comma", lambda _: "Use no commas.", lambda text, _: "," not in text, nothing, group="commas"),
)  # fmt: skip
