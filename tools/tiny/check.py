"""What the tiny model can do and what it tends to do: skills and habits, measured on held-out questions.

python tools/tiny/check.py [FOLDER]
"""

from __future__ import annotations

import sys
from collections import defaultdict
from random import Random

import numpy as np
import torch
from demonstrations import INSTRUCTIONS, QUESTION, Demonstration, Expression, act, reason, solve
from train import encode

from marft.agents.prompt_messages import build_messages
from marft.common.types import AgentProfile
from marft.config.interfaces.channel import Message
from marft.config.models import ModelSettings
from marft.envs.splits import assign_split
from marft.models.backbone import Backbone
from marft.models.loader import load_backbone
from marft.models.log_probs import OutputHead, scaled_logits
from marft.models.packed_rows import PackedRows
from marft.models.tokenizer_format import load_tokenizer


def held_out(random: Random, terms: int) -> Expression:
    while True:
        first, *others = (random.randint(10, 99) for _ in range(terms))
        expression = Expression(first, tuple(random.choice((1, -1)) * term for term in others))
        if terms < 3 or assign_split(QUESTION.format(expression)) == "test":
            return expression


def probes(random: Random, terms: int, count: int) -> list[Demonstration]:
    """Good replies of each role on held-out questions, after good messages."""
    found = []
    for _ in range(count):
        question = held_out(random, terms)
        chat = build_messages(AgentProfile("", INSTRUCTIONS["reasoner"][0]), QUESTION.format(question), [])
        text, left, _ = reason(random, question, terms, works=True)
        found.append(Demonstration(chat, text, "reasoner", True))
        seen = [Message("reasoner", text)]
        for number in range(2, terms - 1):
            chat = build_messages(AgentProfile("", INSTRUCTIONS["reasoner"][0]), QUESTION.format(question), seen[-1:])
            text, left, _ = reason(random, left, terms, works=True)
            found.append(Demonstration(chat, text, "reasoner", True))
            seen.append(Message(f"reasoner_{number}", text))
        chat = build_messages(AgentProfile("", INSTRUCTIONS["actor"][0]), QUESTION.format(question), seen[-1:])
        found.append(Demonstration(chat, act(random, left, terms, works=True)[0], "actor", True))
        chat = build_messages(AgentProfile("", INSTRUCTIONS["solver"][0]), QUESTION.format(question), [])
        for _ in range(50):
            text, works = solve(random, question)
            if works:
                found.append(Demonstration(chat, text, "solver", True))
                break
    return found


@torch.inference_mode()
def skills(backbone: Backbone, tokenizer, demos: list[Demonstration]) -> dict[str, float]:  # type: ignore[no-untyped-def]
    """How often every token of a good reply after its first is the likeliest one, and the first token's probability."""
    right: dict[str, list[bool]] = defaultdict(list)
    habit: dict[str, list[float]] = defaultdict(list)
    for start in range(0, len(demos), 64):
        part = demos[start : start + 64]
        rows, prompts = encode(tokenizer, part)
        packed = PackedRows.from_rows(rows, [None] * len(rows), backbone.device)
        hidden = backbone.hidden_states(packed)
        logits = scaled_logits(hidden, OutputHead(backbone.head.weight), torch.ones(len(hidden)))
        best, probability = logits.argmax(-1).numpy(), logits.softmax(-1)
        for demo, first, prompt, row in zip(part, packed.starts(), prompts, rows, strict=True):
            positions = np.arange(first + prompt - 1, first + len(row) - 1)
            targets = row[prompt:]
            right[demo.role].append(bool((best[positions[1:]] == targets[1:]).all()))
            habit[demo.role].append(float(probability[positions[0], int(targets[0])]))
    report = {f"{role} skill": float(np.mean(values)) for role, values in right.items()}
    return report | {f"{role} habit": float(np.mean(values)) for role, values in habit.items()}


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "packages/marft/src/marft/models/tiny"
    settings = ModelSettings(path=folder)
    model, words = load_backbone(settings, torch.device("cpu"), torch.float32), load_tokenizer(settings)
    for terms in (2, 3, 4, 6, 12):
        numbers = skills(model, words, probes(Random(1), terms, 300))
        print(terms, "terms:", "  ".join(f"{name} {value:.3f}" for name, value in numbers.items()), flush=True)
