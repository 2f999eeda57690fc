"""What is done to an update before it leaves: its norm is limited, and noise hides what is left (DP-FedAvg: McMahan et
al. 2018).

ε is of one site against all that ever see what it sends: whether it learned from its data, or sent what it was given.
Its update of a round is at most ``clip`` long, so the noise of deviation ``noise · clip`` makes a round a Gaussian
mechanism with Rényi divergence α / (2 noise²) at every order α, and R rounds one with R times that (Mironov 2017,
Corollary 3 and Proposition 1). Nothing is sampled, so nothing is amplified.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from marft.seeds import derive_seed

Tensors = Mapping[str, Tensor]


def norm_of(change: Tensors) -> float:
    """The L2 norm of all numbers together."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in change.values()))


def hidden(before: Tensors, after: Tensors, clip: float, noise: float, seed: int, stream: str) -> tuple[Tensors, float]:
    """What may leave in the place of ``after`` → that, and how long the change was before.

    Args:
        clip: the longest that a change may be, in the L2 norm; 0: any, and nothing is done.
        noise: deviation of the noise on each number, over ``clip``.
        seed: the site's secret: whoever knows it takes the noise off again.
        stream: of which round the noise is.
    """
    change = {name: after[name].double() - before[name].double() for name in after}
    norm = norm_of(change)
    if not clip:
        return after, norm
    factor = min(1.0, clip / norm) if norm else 1.0
    found = {}
    for name in sorted(change):
        generator = torch.Generator().manual_seed(derive_seed(seed, "noise", stream, name))
        drawn = torch.randn(change[name].shape, generator=generator, dtype=torch.float64) * (noise * clip)
        found[name] = (before[name].double() + factor * change[name] + drawn).float()
    return found, norm


def epsilon(rounds: int, noise: float, delta: float) -> float:
    """ε of (ε, δ)-differential privacy after so many rounds; infinite without noise.

    The least of R·α / (2σ²) + log(1/δ) / (α − 1) over all orders α > 1 (Mironov 2017, Proposition 3), which is found at
    α = 1 + σ·√(2 log(1/δ) / R).

    >>> round(epsilon(1, 1.0, 1e-5), 3)
    5.299
    """
    if not noise:
        return math.inf if rounds else 0.0
    spent = rounds / (2 * noise**2)
    return spent + 2 * math.sqrt(spent * math.log(1 / delta))
