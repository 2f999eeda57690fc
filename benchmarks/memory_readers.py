"""Answers of models from texts that a memory returned: the capability floor of ``benchmarks/memories.py``.

This command makes a smaller variant of ``tiny-memory``, from the same games and in as many steps:

    python tools/tiny/worlds.py memory --layers 2 --intermediate 64 --output memory-shallow
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from marft.config.bundled import resolve_path
from marft_envs.memory.conversations import Question, grade_answer

TOLD = "You are the answerer. Answer from the notes in few words, or say: not mentioned"  # as in the recipe memory
NEW_TOKENS = 8


@dataclass(frozen=True)
class Asked:
    """A question, the texts read for it, and whether they hold all its facts."""

    texts: tuple[str, ...]
    question: Question
    held: bool


class Reader:
    """Model that answers greedily, and answers each prompt only once.

    Args:
        path: name of a bundled model, or a folder.
    """

    def __init__(self, path: str) -> None:
        found = resolve_path(path)
        self.name = path.rstrip("/").rsplit("/", 1)[-1]
        self.tokenizer: Any = AutoTokenizer.from_pretrained(found)
        self.model: Any = AutoModelForCausalLM.from_pretrained(found, dtype=torch.float32).eval()
        self.parameters = sum(one.numel() for one in self.model.parameters())
        self._known: dict[str, str] = {}

    def answer(self, texts: Sequence[str], question: str) -> str:
        """Return the model's answer."""
        view = _view("\n".join(texts) or "(nothing)", question)
        if view not in self._known:
            self._known[view] = self._generated(view)
        return self._known[view]

    def _generated(self, view: str) -> str:
        chat = [{"role": "system", "content": TOLD}, {"role": "user", "content": view}]
        ids = self.tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            out = self.model.generate(**ids, max_new_tokens=NEW_TOKENS, do_sample=False)
        said = self.tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        return str(said).strip().split("\n")[0]


def capability(path: str, asked: Mapping[tuple[str, int], Sequence[Asked]]) -> dict[str, Any]:
    """Count a model's right answers by system and budget, among the questions whose facts it was given.

    An answer is right if it contains the right one, because models add further words.
    """
    reader = Reader(path)
    cells = []
    for (system, budget), some in asked.items():
        held = [one for one in some if one.held]
        right = sum(
            grade_answer(one.question, reader.answer(one.texts, one.question.text), "contains") == 1.0 for one in held
        )
        cells.append({"system": system, "budget": budget, "asked": len(some), "held": len(held), "right": right})
        print(f"{reader.name}: {system}, {budget} tokens: {right} of {len(held)}", flush=True)
    return {"model": reader.name, "parameters": reader.parameters, "cells": cells}


def _view(notes: str, question: str) -> str:
    return f"{notes}\n\nQuestion: {question}"
