"""Instruction types by id: text, checker and parameters; and grading by several instructions.

Families: length, keywords, case and commas, visible format, JSON with or without a schema, language, start and end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple

from marft.common.errors import UserError
from marft.common.packages import install_command
from marft_envs.instructions.texts import (
    LANGUAGE_NAMES,
    SAMPLE_TEXTS,
    find_capital_words,
    may_be_language,
    split_paragraphs,
    split_sentences,
    split_words,
)

Parameters = Mapping[str, Any]  # parameters under IFEval's names, as plain values
DrawnParameters = dict[str, Any]
LIST_PARAMETERS, TABLE_PARAMETERS = ("keywords", "forbidden_words"), ("schema",)  # parameters that are not texts
RELATIONS = ("at least", "less than", "exactly")


@dataclass(frozen=True)
class Topic:
    """Topic with related words."""

    name: str
    words: tuple[str, ...]

    @property
    def request(self) -> str:
        """Return the basic request, without instructions."""
        return f"Write about {self.name}."


ParameterDraw = Callable[[Random, Topic], DrawnParameters]


@dataclass(frozen=True)
class InstructionKind:
    """Type for an instruction.

    A text gets at most one instruction from a ``group``. An instruction with ``is_exclusive`` is never combined with
    another.
    """

    id: str
    format_text: Callable[[Parameters], str]
    check_text: Callable[[str, Parameters], bool]  # checker for a nonempty text
    draw_parameters: ParameterDraw = lambda *_: {}
    required_keys: tuple[str, ...] = ()  # required parameters
    group: str = ""
    is_exclusive: bool = False
    find_error: Callable[[Parameters], str] = lambda _: ""  # further validation of parameters; returns the error, or ""

    def parameter_error(self, parameters: Parameters) -> str:
        """Return the error in the parameters; "" if valid."""
        missing = [key for key in self.required_keys if parameters.get(key) is None]
        if missing:
            return f"lacks {', '.join(missing)}"
        for key, value in parameters.items():
            if key.endswith("relation") and value not in RELATIONS:
                return f"{key} is {value!r}, and not one of {', '.join(RELATIONS)}"
            is_count = key.startswith(("num_", "nth_")) or key.endswith("frequency")
            if is_count and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**6):
                return f"{key} is {value!r}, and no count"
            if not is_count and key in self.required_keys and key not in TABLE_PARAMETERS and not _is_text(value, key):
                return f"{key} is {value!r:.80}, and no {'list of texts' if key in LIST_PARAMETERS else 'text'}"
        return self.find_error(parameters)


def _is_text(value: object, key: str) -> bool:
    """Return True for a nonblank text, or for a nonempty list with nonblank texts."""
    if key in LIST_PARAMETERS:
        return isinstance(value, list) and bool(value) and all(_is_text(text_item, "") for text_item in value)
    return isinstance(value, str) and bool(value.strip())


def satisfies_relation(count: int, relation: str, target: int) -> bool:
    """Return True if a count satisfies a relation.

    >>> satisfies_relation(3, "at least", 3), satisfies_relation(3, "less than", 3), satisfies_relation(3, "exactly", 4)
    (True, False, False)
    """
    if relation == "exactly":
        return count == target
    return count >= target if relation == "at least" else count < target


def _draw_word_count(random: Random, topic: Topic) -> DrawnParameters:  # noqa: ARG001
    relation = random.choice(("exactly", "at least", "less than"))
    count = random.randint(3, 9) if relation == "exactly" else random.choice((20, 30, 40, 60))
    return {"num_words": count, "relation": relation}


def _draw_sentence_count(random: Random, topic: Topic) -> DrawnParameters:  # noqa: ARG001
    relation = random.choice(("at least", "less than", "exactly"))
    return {"num_sentences": random.randint(2, 6), "relation": relation}


def _draw_first_word(random: Random, topic: Topic) -> DrawnParameters:
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


LETTERS = "aeinorst"


def _draw_words(key: str) -> ParameterDraw:
    return lambda random, topic: {key: sorted(random.sample(topic.words, random.randint(1, 2)))}


def _draw_frequency(random: Random, topic: Topic) -> DrawnParameters:
    relation = random.choice(("at least", "at least", "less than"))
    return {"keyword": random.choice(topic.words), "frequency": random.randint(2, 3), "relation": relation}


def _draw_letter(random: Random, topic: Topic) -> DrawnParameters:  # noqa: ARG001
    relation = random.choice(("at least", "less than"))
    return {"letter": random.choice(LETTERS), "let_frequency": random.randint(3, 8), "let_relation": relation}


def _has_keywords(text: str, parameters: Parameters) -> bool:
    return all(word.strip().lower() in text.lower() for word in parameters["keywords"])


def _has_no_forbidden(text: str, parameters: Parameters) -> bool:
    return not any(
        re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in parameters["forbidden_words"]
    )


def _format_words(words: list[str]) -> str:
    """Format a word list: ``the word a``, ``the words a, b and c``."""
    return f"the words {', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else f"the word {words[0]}"


FIXED_RESPONSES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
POSTSCRIPT_PATTERNS = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}


def _draw_few(key: str, limit: int = 4) -> ParameterDraw:
    return lambda random, _: {key: random.randint(2, limit)}


def _count_bullets(text: str) -> int:
    stars = re.findall(r"^[^\S\n]*+\*[^\*].*$", text, re.MULTILINE)
    return len(stars) + len(re.findall(r"^[^\S\n]*+-.*$", text, re.MULTILINE))


def _is_numbered(text: str, parameters: Parameters) -> bool:
    """Check for lines numbered from 1 to the requested count, without other numbered lines."""
    numbers = re.findall(r"^[ \t]*(\d+)[.)][ \t]+\S", text, re.MULTILINE)
    return numbers == [str(number) for number in range(1, parameters["num_items"] + 1)]


def _count_highlights(text: str) -> int:
    """Count highlights between single stars and between double stars.

    A double-star highlight also contains a single-star highlight (IFEval's rule).
    """
    single = [part for part in re.findall(r"\*[^\n\*]*\*", text) if part.strip("*").strip()]
    double = [part for part in re.findall(r"\*\*[^\n\*]*\*\*", text) if part[2:-2].strip()]
    return len(single) + len(double)


def _count_sections(text: str, marker: str) -> int:
    return len(re.findall(rf"{re.escape(marker)}\s?\d+", text))


def _has_title(text: str) -> bool:
    lines = [line.partition("<<")[2].rpartition(">>")[0] for line in text.split("\n")]
    return any(title.strip("<>").strip() for title in lines)


def _has_postscript(text: str, parameters: Parameters) -> bool:
    marker = parameters["postscript_marker"].strip()
    return re.search(POSTSCRIPT_PATTERNS.get(marker, re.escape(marker.lower())), text.lower()) is not None


SCHEMA_FIELDS = {
    "name": {"type": "string", "minLength": 1},
    "count": {"type": "integer", "minimum": 1, "maximum": 9},
    "known": {"type": "boolean"},
    "words": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 3},
    "size": {"enum": ["small", "large"]},
}


def parse_json(text: str) -> Any:
    """Parse the JSON in a text, with or without a code fence.

    Raises:
        UserError: the text is not JSON.
    """
    stripped = re.sub(r"^```(?:json|Json|JSON)?|```$", "", text.strip()).strip()
    try:
        return json.loads(stripped)
    except RecursionError as error:
        raise UserError("too deep") from error


def _is_json(text: str) -> bool:
    try:
        parse_json(text)
    except ValueError:
        return False
    return True


def _fits_schema(text: str, parameters: Parameters) -> bool:
    try:
        value = parse_json(text)
    except ValueError:
        return False
    return bool(_make_validator(json.dumps(parameters["schema"], sort_keys=True)).is_valid(value))


@lru_cache(1000)
def _make_validator(schema: str) -> Any:
    """Build a validator from a JSON schema.

    Raises:
        UserError: the jsonschema package is missing, or the schema is invalid.
    """
    try:
        import jsonschema
    except ImportError as error:
        raise UserError(
            f"environment: instructions of JSON schemas need the jsonschema package: {install_command('instructions')}"
        ) from error
    schema_dict = json.loads(schema)
    try:
        cls = jsonschema.validators.validator_for(schema_dict, jsonschema.Draft202012Validator)
        cls.check_schema(schema_dict)
    except jsonschema.SchemaError as error:
        raise UserError(f"environment: no JSON schema: {error.message}") from error
    return cls(schema_dict)


def _schema_error(parameters: Parameters) -> str:
    """Return the error in a schema, or a missing package; "" if valid."""
    try:
        _make_validator(json.dumps(parameters["schema"], sort_keys=True))
    except (ValueError, TypeError, RecursionError) as error:
        return str(error).removeprefix("environment: ")
    return ""


def _draw_schema(random: Random, topic: Topic) -> DrawnParameters:  # noqa: ARG001
    names = sorted(random.sample(sorted(SCHEMA_FIELDS), random.randint(1, 3)))
    properties = {name: SCHEMA_FIELDS[name] for name in names}
    schema = {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
    return {"schema": schema}


END_PHRASES = ("That is all.", "Thank you.", "The end.", "What do you think?", "See you soon.")


def _is_two_responses(text: str) -> bool:
    """Return True for two different texts separated by six stars; stars at both ends are optional."""
    parts = text.split("******")
    if any(not part.strip() for part in parts[1:-1]):
        return False
    responses = [part.strip() for part in parts if part.strip()]
    return len(responses) == 2 and responses[0] != responses[1]


ALL_KINDS = (
    InstructionKind(
        "length_constraints:number_words",
        lambda given: f"Use {given['relation']} {given['num_words']} words.",
        lambda text, given: satisfies_relation(len(split_words(text)), given["relation"], given["num_words"]),
        _draw_word_count,
        ("num_words", "relation"),
        "words",
    ),
    InstructionKind(
        "length_constraints:number_sentences",
        lambda given: f"Write {given['relation']} {given['num_sentences']} sentences.",
        lambda text, given: satisfies_relation(len(split_sentences(text)), given["relation"], given["num_sentences"]),
        _draw_sentence_count,
        ("num_sentences", "relation"),
        "sentences",
    ),
    InstructionKind(
        "length_constraints:number_paragraphs",
        lambda given: f"Write {given['num_paragraphs']} paragraphs, divided by lines of ***.",
        _has_paragraph_count,
        lambda random, _: {"num_paragraphs": random.randint(2, 5)},
        ("num_paragraphs",),
        "parts",
    ),
    InstructionKind(
        "length_constraints:nth_paragraph_first_word",
        lambda given: (
            f"Write {given['num_paragraphs']} paragraphs with an empty line between them, and begin paragraph "
            f"{given['nth_paragraph']} with the word {given['first_word']}."
        ),
        _has_first_word,
        _draw_first_word,
        ("num_paragraphs", "nth_paragraph", "first_word"),
        "parts",
    ),
    InstructionKind(
        "keywords:existence",
        lambda given: f"Use {_format_words(given['keywords'])}.",
        _has_keywords,
        _draw_words("keywords"),
        ("keywords",),
        "keywords",
    ),
    InstructionKind(
        "keywords:forbidden_words",
        lambda given: f"Do not use {_format_words(given['forbidden_words'])}.",
        _has_no_forbidden,
        _draw_words("forbidden_words"),
        ("forbidden_words",),
        "forbidden",
    ),
    InstructionKind(
        "keywords:frequency",
        lambda given: f"Use the word {given['keyword']} {given['relation']} {given['frequency']} times.",
        lambda text, given: satisfies_relation(
            text.lower().count(given["keyword"].strip().lower()), given["relation"], given["frequency"]
        ),
        _draw_frequency,
        ("keyword", "frequency", "relation"),
        "keywords",
    ),
    InstructionKind(
        "keywords:letter_frequency",
        lambda given: f"Use the letter {given['letter']} {given['let_relation']} {given['let_frequency']} times.",
        lambda text, given: satisfies_relation(
            text.lower().count(given["letter"].lower()), given["let_relation"], given["let_frequency"]
        ),
        _draw_letter,
        ("letter", "let_frequency", "let_relation"),
        "letters",
    ),
    InstructionKind(
        "change_case:english_capital",
        lambda _: "Write in English, in capital letters alone.",
        lambda text, _: text.isupper() and may_be_language(text, "en"),
        group="case",
    ),
    InstructionKind(
        "change_case:english_lowercase",
        lambda _: "Write in English, in small letters alone.",
        lambda text, _: text.islower() and may_be_language(text, "en"),
        group="case",
    ),
    InstructionKind(
        "change_case:capital_word_frequency",
        lambda given: f"Write {given['capital_relation']} {given['capital_frequency']} words in capitals.",
        lambda text, given: satisfies_relation(
            len(find_capital_words(text)), given["capital_relation"], given["capital_frequency"]
        ),
        lambda random, _: {
            "capital_frequency": random.randint(1, 4),
            "capital_relation": random.choice(("at least", "less than")),
        },
        ("capital_frequency", "capital_relation"),
        "case",
    ),
    InstructionKind(
        "punctuation:no_comma",
        lambda _: "Use no commas.",
        lambda text, _: "," not in text,
        group="commas",
    ),
    InstructionKind(
        "detectable_format:number_bullet_lists",
        lambda given: f"Write exactly {given['num_bullets']} bullet points, lines that begin with a dash.",
        lambda text, given: _count_bullets(text) == given["num_bullets"],
        _draw_few("num_bullets"),
        ("num_bullets",),
        "list",
    ),
    InstructionKind(
        "detectable_format:numbered_list",
        lambda given: f"Write a numbered list of exactly {given['num_items']} items.",
        _is_numbered,
        _draw_few("num_items"),
        ("num_items",),
        "list",
    ),
    InstructionKind(
        "detectable_format:number_highlighted_sections",
        lambda given: f"Highlight at least {given['num_highlights']} parts with stars, such as *this*.",
        lambda text, given: _count_highlights(text) >= given["num_highlights"],
        _draw_few("num_highlights", 3),
        ("num_highlights",),
        "highlights",
    ),
    InstructionKind(
        "detectable_format:multiple_sections",
        lambda given: (
            f"Write {given['num_sections']} sections, and begin each with {given['section_spliter']} and its number."
        ),
        lambda text, given: _count_sections(text, given["section_spliter"].strip()) >= given["num_sections"],
        lambda random, _: {"section_spliter": random.choice(("Section", "PART")), "num_sections": random.randint(2, 4)},
        ("section_spliter", "num_sections"),
        "parts",
    ),
    InstructionKind(
        "detectable_format:title",
        lambda _: "Give it a title in double angular brackets, such as <<title>>.",
        lambda text, _: _has_title(text),
        group="title",
    ),
    InstructionKind(
        "detectable_format:constrained_response",
        lambda _: f"Answer with one of these: {' '.join(FIXED_RESPONSES)}",
        lambda text, _: any(choice in text for choice in FIXED_RESPONSES),
        is_exclusive=True,
    ),
    InstructionKind(
        "detectable_content:number_placeholders",
        lambda given: f"Use at least {given['num_placeholders']} placeholders in square brackets, such as [name].",
        lambda text, given: len(re.findall(r"\[[^\[\]\n]*+\]", text)) >= given["num_placeholders"],
        _draw_few("num_placeholders"),
        ("num_placeholders",),
        "placeholders",
    ),
    InstructionKind(
        "detectable_content:postscript",
        lambda given: f"Add a postscript that begins with {given['postscript_marker']}",
        _has_postscript,
        lambda random, _: {"postscript_marker": random.choice(tuple(POSTSCRIPT_PATTERNS))},
        ("postscript_marker",),
        "postscript",
    ),
    InstructionKind(
        "detectable_format:json_format",
        lambda _: "Write nothing but JSON.",
        lambda text, _: _is_json(text),
        is_exclusive=True,
    ),
    InstructionKind(
        "detectable_format:json_schema",
        lambda given: f"Write nothing but JSON that fits this schema: {json.dumps(given['schema'])}",
        _fits_schema,
        _draw_schema,
        ("schema",),
        is_exclusive=True,
        find_error=_schema_error,
    ),
    InstructionKind(
        "language:response_language",
        lambda given: f"Write in {LANGUAGE_NAMES.get(given['language'], given['language'])} alone.",
        lambda text, given: may_be_language(text, given["language"]),
        lambda random, _: {"language": random.choice(sorted(SAMPLE_TEXTS))},
        ("language",),
        is_exclusive=True,
        find_error=lambda given: (
            "" if given["language"] in LANGUAGE_NAMES else f"is in {given['language']!r}, which nobody tells"
        ),
    ),
    InstructionKind(
        "startend:end_checker",
        lambda given: f"End with these words and nothing after them: {given['end_phrase']}",
        lambda text, given: text.strip().strip('"').lower().endswith(given["end_phrase"].strip().lower()),
        lambda random, _: {"end_phrase": random.choice(END_PHRASES)},
        ("end_phrase",),
        "end",
    ),
    InstructionKind(
        "startend:quotation",
        lambda _: "Put the whole text in double quotation marks.",
        lambda text, _: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"',
        group="start",
    ),
    InstructionKind(
        "combination:repeat_prompt",
        lambda given: f"First repeat this, word for word: {given['prompt_to_repeat']}",
        lambda text, given: text.strip().lower().startswith(given["prompt_to_repeat"].strip().lower()),
        lambda _, topic: {"prompt_to_repeat": topic.request},
        ("prompt_to_repeat",),
        "start",
    ),
    InstructionKind(
        "combination:two_responses",
        lambda _: "Write two different texts with ****** between them.",
        lambda text, _: _is_two_responses(text),
        group="parts",
    ),
)
KINDS: dict[str, InstructionKind] = {kind.id: kind for kind in ALL_KINDS}
JSON_SCHEMA_KIND = "detectable_format:json_schema"


class Instruction(NamedTuple):
    """Instruction in a task: id and parameters."""

    id: str
    parameters: Parameters

    def format_text(self) -> str:
        """Return the instruction's text."""
        return KINDS[self.id].format_text(self.parameters)


def check_instructions(instructions: Sequence[Instruction], text: str, loose: bool = False) -> list[bool]:
    """Check a text by each instruction. An empty text follows no instruction.

    Args:
        instructions: instructions to check.
        text: text to check.
        loose: True to accept a text if any of eight variants follows the instruction. The variants omit the first line,
            the last line or both, each with and without stars (IFEval's loose accuracy).
    """
    texts = [version for version in (loose_variants(text) if loose else [text]) if version.strip()]
    return [
        any(KINDS[instruction.id].check_text(version, instruction.parameters) for version in texts)
        for instruction in instructions
    ]


def loose_variants(text: str) -> list[str]:
    """Return the text's variants for IFEval's loose accuracy.

    >>> loose_variants("Sure:\\n*a*")
    ['Sure:\\n*a*', '*a*', 'Sure:', '', 'Sure:\\na', 'a', 'Sure:', '']
    """
    lines = text.split("\n")
    line_variants = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*line_variants, *(version.replace("*", "") for version in line_variants)]


def to_dicts(instructions: Sequence[Instruction]) -> list[dict[str, Any]]:
    """Convert instructions to plain values."""
    return [{"id": instruction.id, "given": dict(instruction.parameters)} for instruction in instructions]


def from_dicts(rows: Any) -> list[Instruction]:
    """Create instructions from plain values."""
    return [Instruction(str(row["id"]), row["given"]) for row in rows]
