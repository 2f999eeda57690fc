"""Settings of both sides: a model, prompts, and the amount of sampling. Imports neither of the two frameworks."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
INSTRUCTIONS = "Work out the sum of the two numbers. Answer in one short sentence that ends with the sum."


@dataclass(frozen=True, slots=True)
class Setting:
    """A step: ``tasks`` prompts, ``samples`` completions per prompt, ``tokens`` long; LoRA of ``rank``, one update."""

    name: str
    model: str  # a folder
    tasks: int = 4
    samples: int = 8
    tokens: int = 64
    rank: int = 8
    learning_rate: float = 3e-4
    threads: int = 2
    dtype: str = "float32"  # dtype of MARFT's frozen weights
    words: bool = False  # True: the tokenizer only separates words
    probes: int = 0  # actions that MARFT scores again in each step to measure what TRL does not measure
    ends: bool = False  # True: the model ends completions, and the reward is 1 for the right sum

    @property
    def completions(self) -> int:
        return self.tasks * self.samples

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(path: Path) -> Setting:
        given: dict[str, Any] = json.loads(path.read_text())
        return Setting(**given)


def questions(setting: Setting) -> list[str]:
    """Return the questions, one per task.

    If completions end, these are four in five of the sums up to 19 + 19. The small model gets prompts of 100 words.
    """
    if setting.words:
        return [" ".join(str((7 * task + 13 * word) % 4000) for word in range(100)) for task in range(64)]
    if setting.ends:
        return [f"What is {a} + {b}?" for a in range(20) for b in range(20) if (3 * a + b) % 5]
    return [f"What is {3 + task % 17} + {19 - task % 16}?" for task in range(64)]


def right(question: str, text: str) -> float:
    """Return 1 if the last number of a text is the sum of the question's last two, else 0.

    >>> right("What is 3 + 4?", "3 and 4 make 7."), right("What is 3 + 4?", "7, for 3 + 4")
    (1.0, 0.0)
    """
    said = re.findall(r"\d+", text)
    a, b = map(int, re.findall(r"\d+", question)[-2:])
    return float(bool(said) and said[-1] == str(a + b))


def coin(text: str) -> float:
    """Return a reward that teaches nothing and differs between attempts."""
    return float(sum(text.encode()) % 2)
