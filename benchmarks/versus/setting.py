"""What both sides are given: a model, prompts, and how much is sampled. Imports neither of the two frameworks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
INSTRUCTIONS = "Work out the sum of the two numbers. Answer in one short sentence that ends with the sum."


@dataclass(frozen=True, slots=True)
class Setting:
    """A step: ``tasks`` prompts, ``samples`` completions of each, ``tokens`` long; LoRA of ``rank``, one update."""

    name: str
    model: str  # a folder
    tasks: int = 4
    samples: int = 8
    tokens: int = 64
    rank: int = 8
    learning_rate: float = 3e-4
    threads: int = 2
    words: bool = False  # whether its tokenizer takes words apart and no more

    @property
    def completions(self) -> int:
        return self.tasks * self.samples

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(path: Path) -> Setting:
        given: dict[str, Any] = json.loads(path.read_text())
        return Setting(**given)


def questions(words: bool) -> list[str]:
    """One a task: sums that differ in both numbers, or as many words as the small model's prompts have."""
    if words:
        return [" ".join(str((7 * task + 13 * word) % 4000) for word in range(100)) for task in range(64)]
    return [f"What is {3 + task % 17} + {19 - task % 16}?" for task in range(64)]


def coin(text: str) -> float:
    """A reward that teaches nothing and differs between attempts."""
    return float(sum(text.encode()) % 2)
