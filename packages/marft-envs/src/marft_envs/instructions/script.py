"""Scripted policy for generated tasks: drafter, editor, and solver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from marft.envs.scripted_policy import PolicyInput
from marft_envs.instructions.kinds import Topic
from marft_envs.instructions.registry import Instruction, check_instructions, from_dicts
from marft_envs.instructions.topics import TOPICS
from marft_envs.instructions.writer import write_text

EDITOR_ROLE = "editor"
DRAFT_PREFIX = "Message from drafter:\n"
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
            draft_text = cue.last_message.partition(DRAFT_PREFIX)[2].strip()
            if draft_text and (not is_good or all(check_instructions(instructions, draft_text))):
                return draft_text
        return _write_text(topic, instructions if is_good else instructions[:-1], cue.random)


def _write_text(topic: Topic, instructions: Sequence[Instruction], random: Random) -> str:
    return write_text(topic, instructions, random) or " ".join(topic.words[:4])
