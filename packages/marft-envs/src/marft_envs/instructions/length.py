"""Instructions on length in words, sentences and paragraphs."""

from __future__ import annotations

from random import Random
from typing import Any

from marft_envs.instructions.counting import divided_paragraphs, sentences_of, words_of
from marft_envs.instructions.kinds import Given, Kind, Topic, counted

FAMILY = "length_constraints"


def _words(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    relation = random.choice(("exactly", "at least", "less than"))
    count = random.randint(3, 9) if relation == "exactly" else random.choice((20, 30, 40, 60))
    return {"num_words": count, "relation": relation}


def _sentences(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    relation = random.choice(("at least", "less than", "exactly"))
    return {"num_sentences": random.randint(2, 6), "relation": relation}


def _paragraphs(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    return {"num_paragraphs": random.randint(2, 5)}


def _first_word(random: Random, topic: Topic) -> dict[str, Any]:
    count = random.randint(2, 4)
    return {
        "num_paragraphs": count, "nth_paragraph": random.randint(1, count), "first_word": random.choice(topic.words)
    }  # fmt: skip


def _divided(text: str, given: Given) -> bool:
    paragraphs = divided_paragraphs(text)
    return paragraphs is not None and counted(len(paragraphs), "exactly", given["num_paragraphs"])


def _begins(text: str, given: Given) -> bool:
    """Check the number of paragraphs, separated by empty lines, and the first word in a given paragraph.

    Case is ignored.
    """
    parts, place = text.split("\n\n"), given["nth_paragraph"]
    count = sum(bool(part.strip()) for part in parts)
    if count != given["num_paragraphs"] or not 1 <= place <= min(count, len(parts)) or not parts[place - 1].strip():
        return False
    first = str(parts[place - 1]).split()[0].lstrip("'\"")
    for mark in ".,?!'\"":
        first = first.split(mark)[0]
    return first.lower() == str(given["first_word"]).lower()


KINDS = (
    Kind(
        f"{FAMILY}:number_words", lambda given: f"Use {given['relation']} {given['num_words']} words.",
        lambda text, given: counted(len(words_of(text)), given["relation"], given["num_words"]),
        _words, ("num_words", "relation"), "words",
    ),
    Kind(
        f"{FAMILY}:number_sentences", lambda given: f"Write {given['relation']} {given['num_sentences']} sentences.",
        lambda text, given: counted(len(sentences_of(text)), given["relation"], given["num_sentences"]),
        _sentences, ("num_sentences", "relation"), "sentences",
    ),
    Kind(
        f"{FAMILY}:number_paragraphs",
        lambda given: f"Write {given['num_paragraphs']} paragraphs, divided by lines of ***.",
        _divided, _paragraphs, ("num_paragraphs",), "parts",
    ),
    Kind(
        f"{FAMILY}:nth_paragraph_first_word",
        lambda given: (
            f"Write {given['num_paragraphs']} paragraphs with an empty line between them, and begin paragraph "
            f"{given['nth_paragraph']} with the word {given['first_word']}."
        ),
        _begins, _first_word, ("num_paragraphs", "nth_paragraph", "first_word"), "parts",
    ),
)  # fmt: skip
