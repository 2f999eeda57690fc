"""AdamW with gradient clipping and a rate schedule, parameter by parameter (Loshchilov & Hutter 2019)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Gradients = dict[str, Tensor]


def norm_of(gradients: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float((g * g).sum()) for g in gradients.values()))


def clipped(gradients: Mapping[str, Tensor], largest: float) -> Gradients:
    """g · min(1, largest / ‖g‖), the norm taken over all of them together (Pascanu et al. 2013)."""
    factor = min(1.0, largest / max(norm_of(gradients), 1e-30))
    return {name: g * factor for name, g in gradients.items()}


def rate_at(settings: Any, step: int, steps: int) -> float:
    """Fraction of the learning rate at a policy's ``step``-th training step of ``steps``: warm-up, then a decay."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return 1.0
    done = (step - settings.warmup_steps) / max(1, steps - settings.warmup_steps)
    left = 1 - done if settings.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return settings.min_lr_ratio + (1 - settings.min_lr_ratio) * left


class AdamW:
    def __init__(self, beta1: float, beta2: float, epsilon: float, decay: float) -> None:
        self.beta1, self.beta2, self.epsilon, self.decay = beta1, beta2, epsilon, decay
        self.first: dict[str, Tensor] = {}
        self.second: dict[str, Tensor] = {}
        self.steps: dict[str, int] = {}

    def copy(self) -> AdamW:
        other = AdamW(self.beta1, self.beta2, self.epsilon, self.decay)
        other.first = {name: m.clone() for name, m in self.first.items()}
        other.second = {name: v.clone() for name, v in self.second.items()}
        other.steps = dict(self.steps)
        return other

    @torch.no_grad()
    def step(
        self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], rates: Mapping[str, float]
    ) -> None:
        """Move every parameter that has a gradient.

        Args:
            rates: the learning rate of each parameter.
        """
        for name, g in gradients.items():
            t = self.steps[name] = self.steps.get(name, 0) + 1
            m = self.first[name] = self.beta1 * self.first.get(name, torch.zeros_like(g)) + (1 - self.beta1) * g
            v = self.second[name] = self.beta2 * self.second.get(name, torch.zeros_like(g)) + (1 - self.beta2) * g * g
            m_hat, v_hat = m / (1 - self.beta1**t), v / (1 - self.beta2**t)
            parameters[name].mul_(1 - rates[name] * self.decay)
            parameters[name].sub_(rates[name] * m_hat / (v_hat.sqrt() + self.epsilon))
