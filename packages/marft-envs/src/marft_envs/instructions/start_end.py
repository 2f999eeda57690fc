"""Instructions on the start and end of a text, and on its parts."""

from __future__ import annotations

from random import Random
from typing import Any

from marft_envs.instructions.kinds import InstructionKind, Topic, no_parameters

END_PHRASES = ("That is all.", "Thank you.", "The end.", "What do you think?", "See you soon.")


def _draw_end(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    return {"end_phrase": random.choice(END_PHRASES)}


def _prompt_parameters(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    return {"prompt_to_repeat": topic.request}


def _is_two_responses(text: str) -> bool:
    """Return True for two different texts separated by six stars; stars at both ends are optional."""
    parts = text.split("******")
    if any(not part.strip() for part in parts[1:-1]):
        return False
    responses = [part.strip() for part in parts if part.strip()]
    return len(responses) == 2 and responses[0] != responses[1]


KINDS = (
    InstructionKind(
        "startend:end_checker",
        lambda given: f"End with these words and nothing after them: {given['end_phrase']}",
        lambda text, given: text.strip().strip('"').lower().endswith(given["end_phrase"].strip().lower()),
        _draw_end,
        ("end_phrase",),
        "end",
    ),
    InstructionKind(
        "startend:quotation",
        lambda _: "Put the whole text in double quotation marks.",
        lambda text, _: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"',
        no_parameters,
        group="start",
    ),
    InstructionKind(
        "combination:repeat_prompt",
        lambda given: f"First repeat this, word for word: {given['prompt_to_repeat']}",
        lambda text, given: text.strip().lower().startswith(given["prompt_to_repeat"].strip().lower()),
        _prompt_parameters,
        ("prompt_to_repeat",),
        "start",
    ),
    InstructionKind(
        "combination:two_responses",
        lambda _: "Write two different texts with ****** between them.",
        lambda text, _: _is_two_responses(text),
        no_parameters,
        group="parts",
    ),
)
