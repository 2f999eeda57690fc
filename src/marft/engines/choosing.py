"""Choosing from given options: all of them scored in one batched forward, then one number drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from marft.engines.decoding import PREFILL_TOKENS
from marft.engines.sampling import inverse
from marft.models.backbone import Backbone, PackedRows
from marft.models.batches import in_batches
from marft.models.choices import Menus
from marft.models.log_probs import token_scores
from marft.types import Choice, Option, TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class Menu:
    """One request: what to choose from, and the uniform number to choose with."""

    adapter: str | None
    prompt: TokenIds  # [P]
    options: Sequence[Option]
    temperature: float  # 0 takes the likeliest
    uniform: float

    @property
    def tokens(self) -> int:
        return sum(len(self.prompt) + len(option.tokens) - 1 for option in self.options)


@torch.inference_mode()
def choose(backbone: Backbone, menus: Sequence[Menu]) -> list[Choice]:
    """Choose for every request → the choices in the same order."""
    chosen: dict[int, Choice] = {}
    by_adapter = sorted(menus, key=lambda menu: menu.adapter or "")
    for group in in_batches(by_adapter, lambda menu: menu.tokens, PREFILL_TOKENS):
        pairs = [(menu, option) for menu in group for option in menu.options]
        packed = PackedRows.of(
            [np.concatenate([menu.prompt, option.tokens[:-1]]) for menu, option in pairs],
            [menu.adapter for menu, _ in pairs],
            backbone.device,
        )
        positions = [
            start + len(menu.prompt) - 1 + np.arange(len(option.tokens))
            for start, (menu, option) in zip(packed.starts(), pairs, strict=True)
        ]
        targets = np.concatenate([option.tokens for _, option in pairs]).astype(np.int64)
        temperatures = np.repeat(
            [menu.temperature or 1.0 for menu, _ in pairs], [len(option.tokens) for _, option in pairs]
        )
        hidden = backbone.hidden_states(packed)[torch.from_numpy(np.concatenate(positions)).to(backbone.device)]
        scores = token_scores(
            hidden, backbone.head.weight, backbone.head.bias, torch.from_numpy(targets).to(backbone.device),
            torch.from_numpy(temperatures.astype(np.float32)).to(backbone.device),
        )  # fmt: skip
        table = Menus.of(
            [[len(option.tokens) for option in menu.options] for menu in group],
            [[option.normaliser for option in menu.options] for menu in group],
            backbone.device,
        ).log_softmax(scores.log_probs)
        uniforms = torch.tensor([menu.uniform for menu in group], dtype=torch.float32, device=backbone.device)
        drawn = inverse(table.float().exp(), uniforms).tolist()
        best = table.argmax(-1).tolist()
        for row, menu in enumerate(group):
            index = drawn[row] if menu.temperature else best[row]
            log_probs = table[row, : len(menu.options)].float().cpu().numpy()
            chosen[id(menu)] = Choice(tuple(menu.options), index, log_probs)
    return [chosen[id(menu)] for menu in menus]
