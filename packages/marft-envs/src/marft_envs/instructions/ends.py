"""Instructions on the start and end of a text, and on its parts."""

from __future__ import annotations

from random import Random
from typing import Any

from marft_envs.instructions.kinds import Kind, Topic, nothing

PHRASES = ("That is all.", "Thank you.", "The end.", "What do you think?", "See you soon.")


def _end(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    return {"end_phrase": random.choice(PHRASES)}


def _request(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    return {"prompt_to_repeat": topic.request}


def _two(text: str) -> bool:
    """Return True for two different texts separated by six stars; stars at both ends are optional."""
    parts = text.split("******")
    if any(not part.strip() for part in parts[1:-1]):
        return False
    found = [part.strip() for part in parts if part.strip()]
    return len(found) == 2 and found[0] != found[1]


KINDS = (
    Kind(
        "startend:end_checker", lambda given: f"End with these words and nothing after them: {given['end_phrase']}",
        lambda text, given: text.strip().strip('"').lower().endswith(given["end_phrase"].strip().lower()),
        _end, ("end_phrase",), "end",
    ),
    Kind(
        "startend:quotation", lambda _: "Put the whole text in double quotation marks.",
        lambda text, _: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"', nothing, group="start",
    ),
    Kind(
        "combination:repeat_prompt", lambda given: f"First repeat this, word for word: {given['prompt_to_repeat']}",
        lambda text, given: text.strip().lower().startswith(given["prompt_to_repeat"].strip().lower()),
        _request, ("prompt_to_repeat",), "start",
    ),
    Kind(
        "combination:two_responses", lambda _: "Write two different texts with ****** between them.",
        lambda text, _: _two(text), nothing, group="parts",
    ),
)  # fmt: skip
