"""Instructions on visible format: lists, titles, sections and more."""

from __future__ import annotations

import re
from random import Random
from typing import Any

from marft_envs.instructions.kinds import Given, Kind, Topic, nothing

FAMILY = "detectable_format"
CHOICES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
MARKERS = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}


def _few(key: str, most: int = 4) -> Any:
    return lambda random, topic: {key: random.randint(2, most)}  # noqa: ARG005


def _sections(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    return {"section_spliter": random.choice(("Section", "PART")), "num_sections": random.randint(2, 4)}


def _marker(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    return {"postscript_marker": random.choice(tuple(MARKERS))}


def _bullets(text: str) -> int:
    stars = re.findall(r"^[^\S\n]*+\*[^\*].*$", text, re.MULTILINE)
    return len(stars) + len(re.findall(r"^[^\S\n]*+-.*$", text, re.MULTILINE))


def _numbered(text: str, given: Given) -> bool:
    """Check for lines numbered from 1 to the requested count, without other numbered lines."""
    found = re.findall(r"^[ \t]*(\d+)[.)][ \t]+\S", text, re.MULTILINE)
    return found == [str(number) for number in range(1, given["num_items"] + 1)]


def _highlights(text: str) -> int:
    """Count highlights between single stars and between double stars.

    A double-star highlight also contains a single-star highlight (IFEval's rule).
    """
    single = [part for part in re.findall(r"\*[^\n\*]*\*", text) if part.strip("*").strip()]
    double = [part for part in re.findall(r"\*\*[^\n\*]*\*\*", text) if part[2:-2].strip()]
    return len(single) + len(double)


def _marked(text: str, marker: str) -> int:
    return len(re.findall(rf"{re.escape(marker)}\s?\d+", text))


def _has_title(text: str) -> bool:
    lines = [line.partition("<<")[2].rpartition(">>")[0] for line in text.split("\n")]
    return any(title.strip("<>").strip() for title in lines)


def _postscript(text: str, given: Given) -> bool:
    marker = given["postscript_marker"].strip()
    return re.search(MARKERS.get(marker, re.escape(marker.lower())), text.lower()) is not None


KINDS = (
    Kind(
        f"{FAMILY}:number_bullet_lists",
        lambda given: f"Write exactly {given['num_bullets']} bullet points, lines that begin with a dash.",
        lambda text, given: _bullets(text) == given["num_bullets"], _few("num_bullets"), ("num_bullets",), "list",
    ),
    Kind(
        f"{FAMILY}:numbered_list", lambda given: f"Write a numbered list of exactly {given['num_items']} items.",
        _numbered, _few("num_items"), ("num_items",), "list",
    ),
    Kind(
        f"{FAMILY}:number_highlighted_sections",
        lambda given: f"Highlight at least {given['num_highlights']} parts with stars, such as *this*.",
        lambda text, given: _highlights(text) >= given["num_highlights"], _few("num_highlights", 3),
        ("num_highlights",), "highlights",
    ),
    Kind(
        f"{FAMILY}:multiple_sections",
        lambda given: (
            f"Write {given['num_sections']} sections, and begin each with {given['section_spliter']} and its number."
        ),
        lambda text, given: _marked(text, given["section_spliter"].strip()) >= given["num_sections"],
        _sections, ("section_spliter", "num_sections"), "parts",
    ),
    Kind(
        f"{FAMILY}:title", lambda _: "Give it a title in double angular brackets, such as <<title>>.",
        lambda text, _: _has_title(text), nothing, group="title",
    ),
    Kind(
        f"{FAMILY}:constrained_response", lambda _: f"Answer with one of these: {' '.join(CHOICES)}",
        lambda text, _: any(choice in text for choice in CHOICES), nothing, alone=True,
    ),
    Kind(
        "detectable_content:number_placeholders",
        lambda given: f"Use at least {given['num_placeholders']} placeholders in square brackets, such as [name].",
        lambda text, given: len(re.findall(r"\[[^\[\]\n]*+\]", text)) >= given["num_placeholders"],
        _few("num_placeholders"), ("num_placeholders",), "placeholders",
    ),
    Kind(
        "detectable_content:postscript",
        lambda given: f"Add a postscript that begins with {given['postscript_marker']}",
        _postscript, _marker, ("postscript_marker",), "postscript",
    ),
)  # fmt: skip
