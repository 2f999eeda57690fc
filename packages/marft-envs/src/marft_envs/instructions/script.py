"""Scripted policy for generated tasks: drafter, editor, and solver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from marft.envs.scripts import Cue
from marft_envs.instructions.kinds import Topic
from marft_envs.instructions.registry import Instruction, followed, of_plain
from marft_envs.instructions.topics import TOPICS
from marft_envs.instructions.writing import write

EDITOR = "editor"
FROM_DRAFTER = "Message from drafter:\n"
REQUEST = re.compile(r"Write about ([a-z ]+)\.")


@dataclass(frozen=True, slots=True)
class Writer:
    """Scripted writer; with probability ``skill`` it follows every instruction.

    Else it forgets the last instruction, and an editor returns the draft unchanged. An editor always keeps a right
    draft.
    """

    skill: float = 1.0

    def __call__(self, cue: Cue) -> str:
        text = "\n".join(str(message["content"]) for message in cue.chat)
        asked = REQUEST.search(text)
        topic = next((one for one in TOPICS if asked and one.name == asked[1]), None)
        if topic is None:
            return "I do not see what to write about."
        instructions = of_plain(cue.task.data["instructions"])  # the same instructions as in the prompt
        well = cue.random.random() < self.skill
        if cue.role == EDITOR:
            draft = cue.shown.partition(FROM_DRAFTER)[2].strip()
            if draft and (not well or all(followed(instructions, draft))):
                return draft
        return _text(topic, instructions if well else instructions[:-1], cue.random)


def _text(topic: Topic, instructions: Sequence[Instruction], random: Random) -> str:
    return write(topic, instructions, random) or " ".join(topic.words[:4])
