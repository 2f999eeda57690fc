"""Scripted writer that follows instructions, and the scripted drafter, editor and solver.

It lays out the requested parts, fills them with words and checks the result. Its texts have no meaning. They show that
a task is solvable, and give a small model an example.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from marft.agents.prompt_messages import split_messages
from marft.envs.scripted_policy import PolicyInput
from marft_envs.instructions.kinds import (
    FIXED_RESPONSES,
    Instruction,
    Parameters,
    Topic,
    check_instructions,
    from_dicts,
)
from marft_envs.instructions.texts import SAMPLE_TEXTS, split_words

TOPICS = tuple(
    Topic(name, tuple(words.split()))
    for name, words in {
        "the sea": "waves salt blue fish deep storm sand ship",
        "a garden": "rose green soil bees grass plant sun bird",
        "winter": "snow cold ice white coat wind dark frost",
        "a train": "rails fast seat ticket track horn bridge steel",
        "music": "song drum tune voice dance piano loud sing",
        "the kitchen": "bread soup knife oven spoon sugar flour pan",
        "a dog": "bark tail paw fetch run fur bone walk",
        "the city": "street tower bus crowd light shop noise park",
        "a mountain": "peak rock climb trail steep hut view path",
        "school": "book pencil class chalk learn bell desk read",
        "the moon": "night round silver orbit dust glow crater tide",
        "a river": "flow stone boat mud bank swim reed cold",
    }.items()
)
FILLER_WORDS = (
    "old",
    "small",
    "far",
    "calm",
    "good",
    "kind",
    "new",
    "long",
    "full",
    "high",
    "much",
    "guy",
    "jump",
    "why",
    "hymn",
)


MAX_ATTEMPTS = 4  # maximum attempts per text
DEFAULT_LENGTH = 5  # words of a text without a requested length
VALUES: dict[str, Any] = {"string": "sea", "integer": 3, "boolean": True, "array": ["sea", "salt"]}


def write_text(topic: Topic, instructions: Sequence[Instruction], random: Random) -> str | None:
    """Write a text that strictly follows every instruction; None on failure.

    The first attempt uses words in the topic's order. Later attempts shuffle them.
    """
    parameters = {instruction.id.split(":")[1]: instruction.parameters for instruction in instructions}
    for attempt in range(MAX_ATTEMPTS):
        words = tuple(random.sample(topic.words, len(topic.words))) if attempt else topic.words
        text = _fixed_text(parameters) or _compose(replace(topic, words=words), parameters)
        if all(check_instructions(instructions, text)):
            return text
    return None


def _fixed_text(parameters: dict[str, Parameters]) -> str:
    """Return the text if an instruction determines it entirely; else ""."""
    if "json_schema" in parameters:
        return json.dumps(_example_value(parameters["json_schema"]["schema"]))
    if "json_format" in parameters:
        return json.dumps({"text": "sea"})
    if "constrained_response" in parameters:
        return FIXED_RESPONSES[0]
    return (
        SAMPLE_TEXTS.get(parameters["response_language"]["language"], "") if "response_language" in parameters else ""
    )


def _example_value(schema: Any) -> Any:
    """Return an example value for a generated schema."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema["type"] == "object":
        return {name: _example_value(schema["properties"][name]) for name in schema["required"]}
    return VALUES[schema["type"]]


def _compose(topic: Topic, parameters: dict[str, Parameters]) -> str:
    """Compose parts with the requested marks, and fill them to the requested length."""
    words = _allowed_words(topic, parameters)
    parts = _make_parts(parameters, _required_words(topic, parameters, words), words)
    missing = _missing_words(parameters, len(split_words(_join_parts(parameters, parts)))) if words else 0
    for number in range(missing):
        part_index = number % len(parts)
        parts[part_index] = _append_word(parts[part_index], words[(number + len(parts)) % len(words)])
    return _apply_case(_join_parts(parameters, parts), parameters)


def _allowed_words(topic: Topic, parameters: dict[str, Parameters]) -> list[str]:
    """Return words that no instruction forbids, words from the topic first."""
    forbidden = {word.lower() for word in parameters.get("forbidden_words", {}).get("forbidden_words", ())}
    frequency, letter = parameters.get("frequency", {}), parameters.get("letter_frequency", {})
    if frequency.get("relation") == "less than":
        forbidden.add(frequency["keyword"])
    rare_letter = letter["letter"] if letter.get("let_relation") == "less than" else ""
    return [
        word
        for word in (*topic.words, *FILLER_WORDS)
        if word not in forbidden and (not rare_letter or rare_letter not in word)
    ]


def _required_words(topic: Topic, parameters: dict[str, Parameters], words: Sequence[str]) -> list[str]:
    """Return the required words."""
    required = list(parameters.get("existence", {}).get("keywords", ()))
    frequency, letter = parameters.get("frequency", {}), parameters.get("letter_frequency", {})
    if frequency.get("relation") == "at least":
        required += [frequency["keyword"]] * frequency["frequency"]
    if letter.get("let_relation") == "at least":
        best_words = sorted(words, key=lambda word: -word.count(letter["letter"]))[:1]
        required += best_words * letter["let_frequency"]
    capitals = parameters.get("capital_word_frequency", {})
    if capitals.get("capital_relation") == "at least":
        required += [word.upper() for word in topic.words[: capitals["capital_frequency"]]]
    required += [
        f"[{word}]" for word in topic.words[: parameters.get("number_placeholders", {}).get("num_placeholders", 0)]
    ]
    return required or list(words[:1])


def _make_parts(parameters: dict[str, Parameters], wanted: list[str], words: Sequence[str]) -> list[str]:
    """Return paragraphs, sections or texts, each with at least a word. The first has the required content."""
    count = _part_count(parameters)
    parts = [" ".join(wanted), *(words[number % len(words)] for number in range(1, count))]
    if "nth_paragraph_first_word" in parameters:
        first_word = parameters["nth_paragraph_first_word"]
        parts[first_word["nth_paragraph"] - 1] = f"{first_word['first_word']} {parts[first_word['nth_paragraph'] - 1]}"
    if "number_highlighted_sections" in parameters:
        highlights = [f"*{word}*" for word in words[: parameters["number_highlighted_sections"]["num_highlights"]]]
        parts[0] = f"{parts[0]} {' '.join(highlights)}"
    sentences = parameters.get("number_sentences", {})
    if sentences and sentences["relation"] != "less than":
        parts[0] = ". ".join(
            [parts[0], *(words[number % len(words)] for number in range(1, sentences["num_sentences"]))]
        )
    for key, name in (("number_bullet_lists", "num_bullets"), ("numbered_list", "num_items")):
        if key in parameters:
            markers = [
                "-" if key == "number_bullet_lists" else f"{number + 1}." for number in range(parameters[key][name])
            ]
            lines = [f"{sign} {words[number % len(words)]}" for number, sign in enumerate(markers)]
            parts[0] = "\n".join([parts[0], *lines])
    return parts


def _part_count(parameters: dict[str, Parameters]) -> int:
    """Return the number of parts."""
    for key, name in (("number_paragraphs", "num_paragraphs"), ("nth_paragraph_first_word", "num_paragraphs")):
        if key in parameters:
            return int(parameters[key][name])
    return (
        int(parameters["multiple_sections"]["num_sections"])
        if "multiple_sections" in parameters
        else 1 + ("two_responses" in parameters)
    )


def _missing_words(parameters: dict[str, Parameters], current_count: int) -> int:
    """Return the number of missing words."""
    word_count = parameters.get("number_words")
    if word_count is None or word_count["relation"] == "less than":
        return max(0, DEFAULT_LENGTH - current_count)
    return max(0, int(word_count["num_words"]) - current_count)


def _append_word(part: str, word: str) -> str:
    """Append a word to the first line."""
    first, newline, other_lines = part.partition("\n")
    return f"{first} {word}{newline}{other_lines}"


def _join_parts(parameters: dict[str, Parameters], parts: Sequence[str]) -> str:
    """Join the parts into a text, with the requested beginning and end."""
    if "multiple_sections" in parameters:
        name = parameters["multiple_sections"]["section_spliter"]
        text = "\n".join(f"{name} {number}\n{part}" for number, part in enumerate(parts, 1))
    else:
        separators = {"number_paragraphs": "\n***\n", "nth_paragraph_first_word": "\n\n", "two_responses": "\n******\n"}
        text = next((sign for key, sign in separators.items() if key in parameters), "\n").join(parts)
    ends_sentence = "number_sentences" in parameters and parameters["number_sentences"]["relation"] == "exactly"
    beginning = [parameters["repeat_prompt"]["prompt_to_repeat"]] if "repeat_prompt" in parameters else []
    beginning += ["<<sea>>"] if "title" in parameters else []
    ending = [f"{parameters['postscript']['postscript_marker']} bye"] if "postscript" in parameters else []
    ending += [parameters["end_checker"]["end_phrase"]] if "end_checker" in parameters else []
    joined = "\n".join([*beginning, text, *ending]) + ("." if ends_sentence and not ending else "")
    return f'"{joined}"' if "quotation" in parameters else joined


def _apply_case(text: str, parameters: dict[str, Parameters]) -> str:
    if "english_capital" in parameters:
        return text.upper()
    return text.lower() if "english_lowercase" in parameters else text


EDITOR_ROLE = "editor"
REQUEST_PATTERN = re.compile(r"Write about ([a-z ]+)\.")


@dataclass(frozen=True, slots=True)
class InstructionsScript:
    """Scripted writer; with probability ``skill`` it follows every instruction.

    Else it forgets the last instruction, and an editor returns the draft unchanged. An editor always keeps a right
    draft.
    """

    skill: float = 1.0

    def __call__(self, cue: PolicyInput) -> str:
        text = "\n".join(str(message["content"]) for message in cue.messages)
        request_match = REQUEST_PATTERN.search(text)
        topic = next(
            (topic_option for topic_option in TOPICS if request_match and topic_option.name == request_match[1]), None
        )
        if topic is None:
            return "I do not see what to write about."
        instructions = from_dicts(cue.task.data["instructions"])  # the same instructions as in the prompt
        is_good = cue.random.random() < self.skill
        if cue.role == EDITOR_ROLE:
            _, messages = split_messages(cue.last_message)
            draft_text = next((message.text.strip() for message in messages if message.role == "drafter"), "")
            if draft_text and (not is_good or all(check_instructions(instructions, draft_text))):
                return draft_text
        return _write_text(topic, instructions if is_good else instructions[:-1], cue.random)


def _write_text(topic: Topic, instructions: Sequence[Instruction], random: Random) -> str:
    return write_text(topic, instructions, random) or " ".join(topic.words[:4])
