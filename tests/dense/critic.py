"""V_φ: where it reads, what its head computes, and how it is fitted (formulas §1, §8)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, silu

from marft.common.types import Action
from tests.dense.model import Base, merged, stretches
from tests.dense.optimizer import AdamW, Gradients, clipped, norm_of

Reading = tuple[tuple[int, ...], int]  # ids of a row, and the position whose hidden state is read


def reading(action: Action, level: str, independent: bool) -> list[Reading]:
    """Where each decision of an action is valued: at the token before it, never at what it judges. Where its chat was
    rendered anew, that token is the last of what it was sampled after then."""
    state = action.prompt if independent or action.state is None else action.state
    state, tokens, marks = state.tolist(), action.tokens.tolist(), action.marks.tolist()
    if action.choice is not None:
        return [(tuple(state), len(state) - 1)]
    own = [j for j, mark in enumerate(marks) if mark == 0]
    own = own[:1] if level == "action" else own
    reads: list[Reading] = []
    for j in own:
        before, begun = next((before, first) for before, first, last in stretches(action) if first <= j < last)
        before = state if begun == 0 else before
        reads.append(((*before, *tokens[begun:j]), len(before) + j - begun - 1))
    return reads


class Scale:
    """MAPPO's value normalisation (Yu et al. 2022): exponential means of the targets and of their squares, less the bias
    of their start at 0; a variance of at least 0.01."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.batches: list[tuple[float, float]] = []  # mean, mean of squares

    def take(self, targets: Sequence[float]) -> None:
        if targets:
            self.batches.append((sum(targets) / len(targets), sum(t * t for t in targets) / len(targets)))

    def _moments(self) -> tuple[float, float]:
        if not self.batches:
            return 0.0, 1.0
        weights = [self.decay ** (len(self.batches) - 1 - n) for n in range(len(self.batches))]
        mean, square = (
            sum(w * b[i] for w, b in zip(weights, self.batches, strict=True)) / sum(weights) for i in (0, 1)
        )
        return mean, math.sqrt(max(square - mean * mean, 0.01))

    def normalize(self, value: float) -> float:
        mean, deviation = self._moments()
        return (value - mean) / deviation

    def denormalize(self, value: float) -> float:
        mean, deviation = self._moments()
        return value * deviation + mean


class Critic:
    """Heads on the untuned base's hidden states.

    Args:
        parameters: ``<head>.layers.<0|2|4>.<weight|bias>``, and ``<base>.<layer>.lora_<A|B>`` of a body of its own.
        base_names: of each head.
    """

    def __init__(
        self, bases: Mapping[str, Base], settings: Any, parameters: dict[str, Tensor], base_names: Mapping[str, str]
    ) -> None:
        self.bases, self.settings, self.parameters, self.base_names = bases, settings, parameters, base_names
        self.scales = {head: Scale(settings.value_decay) for head in base_names}
        self.adam = AdamW(0.9, 0.999, settings.epsilon, 0.0)
        self.rates = {
            name: settings.lora_learning_rate if ".lora_" in name else settings.learning_rate for name in parameters
        }

    def worth(self, head: str, read: Reading) -> float:
        """V, in the units of rewards."""
        with torch.no_grad():
            value = self.value(head, read).item()
        return self.scales[head].denormalize(value) if self.settings.normalize_values else value

    def value(self, head: str, read: Reading) -> Tensor:
        """What a head says: two hidden layers on the normalised hidden state."""
        ids, position = read
        weight = {
            name.removeprefix(f"{head}."): p for name, p in self.parameters.items() if name.startswith(f"{head}.layers")
        }
        features = self._read_features(self.base_names[head], ids)[position]
        x = layer_norm(features, features.shape)
        for layer in (0, 2, 4):
            x = weight[f"layers.{layer}.weight"] @ x + weight[f"layers.{layer}.bias"]
            x = silu(x) if layer < 4 else x
        return x[0]

    def _read_features(self, name: str, ids: tuple[int, ...]) -> Tensor:
        base = self.bases[name]
        mine = {
            n.removeprefix(f"{name}."): p
            for n, p in self.parameters.items()
            if ".lora_" in n and n.startswith(f"{name}.")
        }
        return base.read(ids, merged(base, mine, 2.0))[0]

    def fit(
        self, reads: Sequence[tuple[str, Reading]], old: Sequence[float], targets: Sequence[float],
        minibatches: Sequence[Sequence[np.ndarray]],
    ) -> tuple[list[tuple[Gradients, Gradients]], dict[str, float]]:  # fmt: skip
        """Step on every minibatch of every epoch → gradients before and after clipping, metrics."""
        steps, losses = [], []
        said, goals = list(old), list(targets)
        if self.settings.normalize_values:
            for head, scale in self.scales.items():
                mine = [i for i, (owner, _) in enumerate(reads) if owner == head]
                for i in mine:
                    said[i] = scale.normalize(old[i])
                scale.take([targets[i] for i in mine])
                for i in mine:
                    goals[i] = scale.normalize(targets[i])
        for epoch in minibatches:
            for part in epoch:
                loss = torch.zeros((), dtype=torch.float64)
                for i in part.tolist():
                    loss = loss + value_loss(self.value(*reads[i]), said[i], goals[i], self.settings) / len(part)
                names = list(self.parameters)
                found = torch.autograd.grad(
                    self.settings.coefficient * loss, [self.parameters[n] for n in names], allow_unused=True
                )
                gradients = {n: g for n, g in zip(names, found, strict=True) if g is not None}
                steps.append((gradients, clipped(gradients, self.settings.max_gradient_norm)))
                self.adam.step(self.parameters, steps[-1][1], self.rates)
                losses.append(loss.item())
        mean = sum(targets) / len(targets)
        residual = [t - v for t, v in zip(targets, old, strict=True)]
        center = sum(residual) / len(residual)
        unexplained = sum((r - center) ** 2 for r in residual) / sum((t - mean) ** 2 for t in targets)
        return steps, {
            "critic/loss": sum(losses) / len(losses),
            "critic/gradient_norm": sum(norm_of(raw) for raw, _ in steps) / len(steps),
            "critic/explained_variance": 1 - unexplained,
            "critic/value": sum(old) / len(old),
        }


def value_loss(value: Tensor, old: float, target: float, s: Any) -> Tensor:
    """The larger error of V and of V kept within ``value_clip`` of what it was (PPO's code), Huber's or squared."""
    errors = [value - target]
    if s.value_clip:
        errors.append(old + (value - old).clamp(-s.value_clip, s.value_clip) - target)
    losses = []
    for error in errors:
        size = error.abs()
        linear = s.loss == "huber" and size.item() > s.huber_delta
        losses.append(s.huber_delta * (size - s.huber_delta / 2) if linear else error * error / 2)
    return max(losses, key=Tensor.item)
