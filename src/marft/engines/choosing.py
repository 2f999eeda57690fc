"""Choosing from given options: all of them scored in one batched forward, then one number drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marft.engines.decoding import PREFILL_TOKENS
from marft.engines.sampling import allowed_tokens, inverse
from marft.models.backbone import Backbone, PackedRows
from marft.models.batches import in_batches
from marft.models.choices import Menus
from marft.models.log_probs import token_scores
from marft.types import Choice, Option, Sampling, TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class Menu:
    """One request: what to choose from, and the uniform number to choose with."""

    adapter: str | None
    prompt: TokenIds  # [P]
    options: Sequence[Option]
    sampling: Sampling  # temperature 0 takes the likeliest; top-p and top-k count options
    uniform: float

    @property
    def temperature(self) -> float:
        """What scores are divided by."""
        return self.sampling.temperature or 1.0

    @property
    def tokens(self) -> int:
        return sum(len(self.prompt) + len(option.tokens) - 1 for option in self.options)


@torch.inference_mode()
def choose(backbone: Backbone, menus: Sequence[Menu]) -> list[Choice]:
    """Choose for every request → the choices in the same order. Equal menus are scored once."""
    same: dict[tuple[object, ...], list[Menu]] = {}
    for menu in sorted(menus, key=lambda menu: menu.adapter or ""):
        words = tuple((option.tokens.tobytes(), option.normaliser) for option in menu.options)
        limits = menu.temperature, menu.sampling.top_p, menu.sampling.top_k
        same.setdefault((menu.adapter, menu.prompt.tobytes(), words, *limits), []).append(menu)
    chosen: dict[int, Choice] = {}
    for group in in_batches(list(same.values()), lambda alike: alike[0].tokens, PREFILL_TOKENS):
        table = _score(backbone, [alike[0] for alike in group])
        for log_probs, alike in zip(table, group, strict=True):
            options = tuple(alike[0].options)
            logs = log_probs[: len(options)].float()
            uniforms = torch.tensor([menu.uniform for menu in alike], device=logs.device)
            allowed = allowed_tokens(logs[None], [alike[0].sampling])
            weights = logs.exp()[None] if allowed is None else logs.exp() * allowed
            drawn = inverse(weights.expand(len(alike), -1), uniforms).tolist()
            best = int(logs.argmax())
            for menu, index in zip(alike, drawn, strict=True):
                chosen[id(menu)] = Choice(options, index if menu.sampling.temperature else best, logs.cpu().numpy())
    return [chosen[id(menu)] for menu in menus]


def _score(backbone: Backbone, menus: Sequence[Menu]) -> Tensor:
    """``log π`` of every option of every menu, [C, longest menu]."""
    pairs = [(menu, option) for menu in menus for option in menu.options]
    sizes = [len(option.tokens) for _, option in pairs]
    packed = PackedRows.of(
        [np.concatenate([menu.prompt, option.tokens[:-1]]) for menu, option in pairs],
        [menu.adapter for menu, _ in pairs],
        backbone.device,
    )
    positions = np.concatenate(
        [
            start + len(menu.prompt) - 1 + np.arange(size)
            for start, (menu, _), size in zip(packed.starts(), pairs, sizes, strict=True)
        ]
    )
    targets = np.concatenate([option.tokens for _, option in pairs]).astype(np.int64)
    temperatures = np.repeat(np.array([menu.temperature for menu, _ in pairs], np.float32), sizes)
    at, wanted, scales = (torch.from_numpy(array).to(backbone.device) for array in (positions, targets, temperatures))
    head = backbone.head
    scores = token_scores(backbone.hidden_states(packed)[at], head.weight, head.bias, wanted, scales)
    return Menus.of(
        [[len(option.tokens) for option in menu.options] for menu in menus],
        [[option.normaliser for option in menu.options] for menu in menus],
        backbone.device,
    ).log_softmax(scores.log_probs)
