"""Instructions on visible format: lists, titles, sections and more."""

from __future__ import annotations

import re
from random import Random
from typing import Any

from marft_envs.instructions.kinds import InstructionKind, Parameters, Topic, no_parameters

FAMILY = "detectable_format"
FIXED_RESPONSES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
POSTSCRIPT_PATTERNS = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}


def _draw_few(key: str, limit: int = 4) -> Any:
    return lambda random, topic: {key: random.randint(2, limit)}  # noqa: ARG005


def _draw_sections(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    return {"section_spliter": random.choice(("Section", "PART")), "num_sections": random.randint(2, 4)}


def _draw_marker(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    return {"postscript_marker": random.choice(tuple(POSTSCRIPT_PATTERNS))}


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


KINDS = (
    InstructionKind(
        f"{FAMILY}:number_bullet_lists",
        lambda given: f"Write exactly {given['num_bullets']} bullet points, lines that begin with a dash.",
        lambda text, given: _count_bullets(text) == given["num_bullets"],
        _draw_few("num_bullets"),
        ("num_bullets",),
        "list",
    ),
    InstructionKind(
        f"{FAMILY}:numbered_list",
        lambda given: f"Write a numbered list of exactly {given['num_items']} items.",
        _is_numbered,
        _draw_few("num_items"),
        ("num_items",),
        "list",
    ),
    InstructionKind(
        f"{FAMILY}:number_highlighted_sections",
        lambda given: f"Highlight at least {given['num_highlights']} parts with stars, such as *this*.",
        lambda text, given: _count_highlights(text) >= given["num_highlights"],
        _draw_few("num_highlights", 3),
        ("num_highlights",),
        "highlights",
    ),
    InstructionKind(
        f"{FAMILY}:multiple_sections",
        lambda given: (
            f"Write {given['num_sections']} sections, and begin each with {given['section_spliter']} and its number."
        ),
        lambda text, given: _count_sections(text, given["section_spliter"].strip()) >= given["num_sections"],
        _draw_sections,
        ("section_spliter", "num_sections"),
        "parts",
    ),
    InstructionKind(
        f"{FAMILY}:title",
        lambda _: "Give it a title in double angular brackets, such as <<title>>.",
        lambda text, _: _has_title(text),
        no_parameters,
        group="title",
    ),
    InstructionKind(
        f"{FAMILY}:constrained_response",
        lambda _: f"Answer with one of these: {' '.join(FIXED_RESPONSES)}",
        lambda text, _: any(choice in text for choice in FIXED_RESPONSES),
        no_parameters,
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
        _draw_marker,
        ("postscript_marker",),
        "postscript",
    ),
)
