"""Scripted writer that follows instructions.

It lays out the requested parts, fills them with words and checks the result. Its texts have no meaning. They show that
a task is solvable, and give a small model an example.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from marft_envs.instructions.counting import words_of
from marft_envs.instructions.kinds import Given, Topic
from marft_envs.instructions.languages import SAMPLES
from marft_envs.instructions.markup import CHOICES
from marft_envs.instructions.registry import Instruction, followed
from marft_envs.instructions.topics import FILLERS

ATTEMPTS = 4  # maximum attempts per text
FREE = 5  # words of a text without a requested length
VALUES: dict[str, Any] = {"string": "sea", "integer": 3, "boolean": True, "array": ["sea", "salt"]}


def write(topic: Topic, instructions: Sequence[Instruction], random: Random) -> str | None:
    """Write a text that strictly follows every instruction; None on failure.

    The first attempt uses words in the topic's order. Later attempts shuffle them.
    """
    asked = {one.id.split(":")[1]: one.given for one in instructions}
    for attempt in range(ATTEMPTS):
        words = tuple(random.sample(topic.words, len(topic.words))) if attempt else topic.words
        text = _whole(asked) or _composed(replace(topic, words=words), asked)
        if all(followed(instructions, text)):
            return text
    return None


def _whole(asked: dict[str, Given]) -> str:
    """Return the text if an instruction determines it entirely; else ""."""
    if "json_schema" in asked:
        return json.dumps(_value(asked["json_schema"]["schema"]))
    if "json_format" in asked:
        return json.dumps({"text": "sea"})
    if "constrained_response" in asked:
        return CHOICES[0]
    return SAMPLES.get(asked["response_language"]["language"], "") if "response_language" in asked else ""


def _value(schema: Any) -> Any:
    """Return an example value for a generated schema."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema["type"] == "object":
        return {name: _value(schema["properties"][name]) for name in schema["required"]}
    return VALUES[schema["type"]]


def _composed(topic: Topic, asked: dict[str, Given]) -> str:
    """Compose parts with the requested marks, and fill them to the requested length."""
    words = _allowed(topic, asked)
    parts = _parts(asked, _wanted(topic, asked, words), words)
    missing = _length(asked, len(words_of(_joined(asked, parts)))) if words else 0
    for number in range(missing):
        place = number % len(parts)
        parts[place] = _longer(parts[place], words[(number + len(parts)) % len(words)])
    return _cased(_joined(asked, parts), asked)


def _allowed(topic: Topic, asked: dict[str, Given]) -> list[str]:
    """Return words that no instruction forbids, words from the topic first."""
    barred = {word.lower() for word in asked.get("forbidden_words", {}).get("forbidden_words", ())}
    frequency, letter = asked.get("frequency", {}), asked.get("letter_frequency", {})
    if frequency.get("relation") == "less than":
        barred.add(frequency["keyword"])
    few = letter["letter"] if letter.get("let_relation") == "less than" else ""
    return [word for word in (*topic.words, *FILLERS) if word not in barred and (not few or few not in word)]


def _wanted(topic: Topic, asked: dict[str, Given], words: Sequence[str]) -> list[str]:
    """Return the required words."""
    found = list(asked.get("existence", {}).get("keywords", ()))
    frequency, letter = asked.get("frequency", {}), asked.get("letter_frequency", {})
    if frequency.get("relation") == "at least":
        found += [frequency["keyword"]] * frequency["frequency"]
    if letter.get("let_relation") == "at least":
        having = sorted(words, key=lambda word: -word.count(letter["letter"]))[:1]
        found += having * letter["let_frequency"]
    capitals = asked.get("capital_word_frequency", {})
    if capitals.get("capital_relation") == "at least":
        found += [word.upper() for word in topic.words[: capitals["capital_frequency"]]]
    found += [f"[{word}]" for word in topic.words[: asked.get("number_placeholders", {}).get("num_placeholders", 0)]]
    return found or list(words[:1])


def _parts(asked: dict[str, Given], wanted: list[str], words: Sequence[str]) -> list[str]:
    """Return paragraphs, sections or texts, each with at least a word. The first has the required content."""
    count = _number(asked)
    parts = [" ".join(wanted), *(words[number % len(words)] for number in range(1, count))]
    if "nth_paragraph_first_word" in asked:
        given = asked["nth_paragraph_first_word"]
        parts[given["nth_paragraph"] - 1] = f"{given['first_word']} {parts[given['nth_paragraph'] - 1]}"
    if "number_highlighted_sections" in asked:
        marked = [f"*{word}*" for word in words[: asked["number_highlighted_sections"]["num_highlights"]]]
        parts[0] = f"{parts[0]} {' '.join(marked)}"
    sentences = asked.get("number_sentences", {})
    if sentences and sentences["relation"] != "less than":
        parts[0] = ". ".join(
            [parts[0], *(words[number % len(words)] for number in range(1, sentences["num_sentences"]))]
        )
    for key, name in (("number_bullet_lists", "num_bullets"), ("numbered_list", "num_items")):
        if key in asked:
            signs = ["-" if key == "number_bullet_lists" else f"{number + 1}." for number in range(asked[key][name])]
            lines = [f"{sign} {words[number % len(words)]}" for number, sign in enumerate(signs)]
            parts[0] = "\n".join([parts[0], *lines])
    return parts


def _number(asked: dict[str, Given]) -> int:
    """Return the number of parts."""
    for key, name in (("number_paragraphs", "num_paragraphs"), ("nth_paragraph_first_word", "num_paragraphs")):
        if key in asked:
            return int(asked[key][name])
    return (
        int(asked["multiple_sections"]["num_sections"])
        if "multiple_sections" in asked
        else 1 + ("two_responses" in asked)
    )


def _length(asked: dict[str, Given], now: int) -> int:
    """Return the number of missing words."""
    given = asked.get("number_words")
    if given is None or given["relation"] == "less than":
        return max(0, FREE - now)
    return max(0, int(given["num_words"]) - now)


def _longer(part: str, word: str) -> str:
    """Append a word to the first line."""
    first, line, rest = part.partition("\n")
    return f"{first} {word}{line}{rest}"


def _joined(asked: dict[str, Given], parts: Sequence[str]) -> str:
    """Join the parts into a text, with the requested beginning and end."""
    if "multiple_sections" in asked:
        name = asked["multiple_sections"]["section_spliter"]
        text = "\n".join(f"{name} {number}\n{part}" for number, part in enumerate(parts, 1))
    else:
        between = {"number_paragraphs": "\n***\n", "nth_paragraph_first_word": "\n\n", "two_responses": "\n******\n"}
        text = next((sign for key, sign in between.items() if key in asked), "\n").join(parts)
    ends = "number_sentences" in asked and asked["number_sentences"]["relation"] == "exactly"
    before = [asked["repeat_prompt"]["prompt_to_repeat"]] if "repeat_prompt" in asked else []
    before += ["<<sea>>"] if "title" in asked else []
    after = [f"{asked['postscript']['postscript_marker']} bye"] if "postscript" in asked else []
    after += [asked["end_checker"]["end_phrase"]] if "end_checker" in asked else []
    whole = "\n".join([*before, text, *after]) + ("." if ends and not after else "")
    return f'"{whole}"' if "quotation" in asked else whole


def _cased(text: str, asked: dict[str, Given]) -> str:
    if "english_capital" in asked:
        return text.upper()
    return text.lower() if "english_lowercase" in asked else text
