"""Instructions on length in words, sentences and paragraphs."""

from __future__ import annotations

from random import Random
from typing import Any

from marft_envs.instructions.counting import split_paragraphs, split_sentences, split_words
from marft_envs.instructions.kinds import InstructionKind, Parameters, Topic, satisfies_relation

FAMILY = "length_constraints"


def _draw_word_count(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    relation = random.choice(("exactly", "at least", "less than"))
    count = random.randint(3, 9) if relation == "exactly" else random.choice((20, 30, 40, 60))
    return {"num_words": count, "relation": relation}


def _draw_sentence_count(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    relation = random.choice(("at least", "less than", "exactly"))
    return {"num_sentences": random.randint(2, 6), "relation": relation}


def _draw_paragraph_count(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    return {"num_paragraphs": random.randint(2, 5)}


def _draw_first_word(random: Random, topic: Topic) -> dict[str, Any]:
    count = random.randint(2, 4)
    return {
        "num_paragraphs": count,
        "nth_paragraph": random.randint(1, count),
        "first_word": random.choice(topic.words),
    }


def _has_paragraph_count(text: str, parameters: Parameters) -> bool:
    paragraphs = split_paragraphs(text)
    return paragraphs is not None and satisfies_relation(len(paragraphs), "exactly", parameters["num_paragraphs"])


def _has_first_word(text: str, parameters: Parameters) -> bool:
    """Check the number of paragraphs, separated by empty lines, and the first word in a given paragraph.

    Case is ignored.
    """
    parts, paragraph_number = text.split("\n\n"), parameters["nth_paragraph"]
    count = sum(bool(part.strip()) for part in parts)
    if (
        count != parameters["num_paragraphs"]
        or not 1 <= paragraph_number <= min(count, len(parts))
        or not parts[paragraph_number - 1].strip()
    ):
        return False
    first = str(parts[paragraph_number - 1]).split()[0].lstrip("'\"")
    for mark in ".,?!'\"":
        first = first.split(mark)[0]
    return first.lower() == str(parameters["first_word"]).lower()


KINDS = (
    InstructionKind(
        f"{FAMILY}:number_words",
        lambda given: f"Use {given['relation']} {given['num_words']} words.",
        lambda text, given: satisfies_relation(len(split_words(text)), given["relation"], given["num_words"]),
        _draw_word_count,
        ("num_words", "relation"),
        "words",
    ),
    InstructionKind(
        f"{FAMILY}:number_sentences",
        lambda given: f"Write {given['relation']} {given['num_sentences']} sentences.",
        lambda text, given: satisfies_relation(len(split_sentences(text)), given["relation"], given["num_sentences"]),
        _draw_sentence_count,
        ("num_sentences", "relation"),
        "sentences",
    ),
    InstructionKind(
        f"{FAMILY}:number_paragraphs",
        lambda given: f"Write {given['num_paragraphs']} paragraphs, divided by lines of ***.",
        _has_paragraph_count,
        _draw_paragraph_count,
        ("num_paragraphs",),
        "parts",
    ),
    InstructionKind(
        f"{FAMILY}:nth_paragraph_first_word",
        lambda given: (
            f"Write {given['num_paragraphs']} paragraphs with an empty line between them, and begin paragraph "
            f"{given['nth_paragraph']} with the word {given['first_word']}."
        ),
        _has_first_word,
        _draw_first_word,
        ("num_paragraphs", "nth_paragraph", "first_word"),
        "parts",
    ),
)
