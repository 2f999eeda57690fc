"""Log-probabilities and entropies from the model's own forward: one row, no packing, the whole vocabulary at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call
from transformers import AutoModelForCausalLM

from marft.common.types import Action

Weights = Mapping[str, Tensor]


class Base:
    """An untuned model as Hugging Face computes it, in float64."""

    def __init__(self, folder: str) -> None:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
        self.model = model.eval().requires_grad_(False)
        self.own: dict[str, Tensor] = dict(model.named_parameters())
        self._read: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def read(self, ids: Sequence[int], weights: Weights) -> tuple[Tensor, Tensor]:
        """Last hidden states [T, D] and logits [T, V] of one row, with ``weights`` in place of the base's."""
        key = tuple(ids)
        if not weights and key in self._read:
            return self._read[key]
        out = functional_call(
            self.model, dict(weights), (torch.tensor([key]),), {"output_hidden_states": True, "use_cache": False}
        )
        read = out.hidden_states[-1][0], out.logits[0]
        if not weights:  # the base alone never changes
            self._read[key] = read
        return read


@dataclass
class Policy:
    """π_θ: what is trained of it, and the whole weights that this makes.

    Args:
        parameters: by the names under which the learner keeps them: ``<layer>.lora_A``, ``<layer>.lora_B``, or the
            names of whole weights.
        scale: α / r of the adapter (Hu et al. 2021); 0 where ``parameters`` are whole weights.
    """

    base: Base
    parameters: dict[str, Tensor]
    scale: float

    def weights(self) -> Weights:
        """W + (α / r) B A on every layer with an adapter."""
        return merged(self.base, self.parameters, self.scale) if self.scale else self.parameters


def merged(base: Base, parameters: Mapping[str, Tensor], scale: float) -> Weights:
    layers = [name.removesuffix(".lora_A") for name in parameters if name.endswith(".lora_A")]
    return {
        f"{layer}.weight": base.own[f"{layer}.weight"]
        + scale * parameters[f"{layer}.lora_B"] @ parameters[f"{layer}.lora_A"]
        for layer in layers
    }


@dataclass
class Scores:
    """Of each decision of an action: a sampled token, or the one choice from a list. And of a teammate's tokens."""

    log_probs: list[Tensor]
    entropies: list[Tensor]
    teammates: list[Tensor]

    def numbers(self) -> list[float]:
        return [x.item() for x in self.log_probs]


def score(base: Base, weights: Weights, action: Action, temperature: float) -> Scores:
    """log π of what the agent did, at the temperature that it was sampled with."""
    if action.choice is not None:
        return _score_choice(base, weights, action, temperature)
    parts = [
        _predictions(base, weights, before, action.tokens[first:last].tolist(), temperature)
        for before, first, last in stretches(action)
    ]
    log_p = torch.cat(parts)
    scores = Scores([], [], [])
    for j, (token, mark) in enumerate(zip(action.tokens.tolist(), action.marks.tolist(), strict=True)):
        if mark == 0:  # sampled by the agent
            scores.log_probs.append(log_p[j, token])
            scores.entropies.append(-(log_p[j].exp() * log_p[j]).sum())
        elif mark == 2:  # written by a teammate
            scores.teammates.append(log_p[j, token])
    return scores


def stretches(action: Action) -> list[tuple[list[int], int, int]]:
    """What an action's tokens were sampled after: the ids in context, and the first and behind the last token of each
    stretch of tokens that follows on such ids."""
    found, before, first = [], action.prompt.tolist(), 0
    for restart in action.restarts:
        found.append((before, first, restart.at))
        before, first = restart.context.tolist(), restart.at
    return [*found, (before, first, len(action.tokens))]


def _score_choice(base: Base, weights: Weights, action: Action, temperature: float) -> Scores:
    """TWOSOME (Tan et al. 2024): log softmax over the options of log P(option) / Z."""
    assert action.choice is not None
    worth = []
    for option in action.choice.options:
        tokens = option.tokens.tolist()
        log_p = _predictions(base, weights, action.prompt.tolist(), tokens, temperature)
        worth.append(sum(log_p[j, token] for j, token in enumerate(tokens)) / option.normaliser)
    log_pi = torch.stack(worth).log_softmax(0)
    return Scores([log_pi[action.choice.chosen]], [-(log_pi.exp() * log_pi).sum()], [])


def _predictions(base: Base, weights: Weights, prompt: list[int], tokens: list[int], temperature: float) -> Tensor:
    """log p over the vocabulary for each token of an action, [T, V]: row j is read where token j is predicted."""
    _, logits = base.read([*prompt, *tokens], weights)
    return (logits[len(prompt) - 1 : -1] / temperature).log_softmax(-1)
