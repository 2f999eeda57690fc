"""What models make of texts that a memory gave: the capability floor of ``agents/memories.py``.

A smaller sister of ``tiny-memory``, made by the same tool from the same games in as many steps, comes of

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

TOLD = "You are the answerer. Answer from the notes in few words, or say: not mentioned"  # as the recipe memory has it
NEW_TOKENS = 8


@dataclass(frozen=True)
class Asked:
    """A question, what was read for it, and whether all its facts are in that."""

    texts: tuple[str, ...]
    question: Question
    held: bool


class Reader:
    """A model that answers greedily, each prompt once.

    Args:
        path: a bundled model's name, or a folder.
    """

    def __init__(self, path: str) -> None:
        found = resolve_path(path)
        self.name = path.rstrip("/").rsplit("/", 1)[-1]
        self.tokenizer: Any = AutoTokenizer.from_pretrained(found)
        self.model: Any = AutoModelForCausalLM.from_pretrained(found, dtype=torch.float32).eval()
        self.parameters = sum(one.numel() for one in self.model.parameters())
        self._known: dict[str, str] = {}

    def answer(self, texts: Sequence[str], question: str) -> str:
        """What it says."""
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
    """How many questions a model answers right of those whose facts it was given, by system and budget. An answer that
    holds the right one is right: models say more than asked for."""
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
