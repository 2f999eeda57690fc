"""Differential privacy of updates: norm clipping and Gaussian noise (DP-FedAvg: McMahan et al. 2018).

The budget ε protects one site against all observers of its updates. It bounds the evidence that the site trained on its
data instead of returning the given adapters. The update of a round has a norm of at most ``clip``. With noise of
standard deviation ``noise · clip`` a round is a Gaussian mechanism. R rounds are one Gaussian mechanism with √R times
the norm (μ-GDP with μ = √R / noise: Dong, Roth and Su 2022, Corollary 2). Without sampling there is no privacy
amplification.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from marft.common.errors import UserError

Tensors = Mapping[str, Tensor]


def global_norm(change: Tensors) -> float:
    """Return the L2 norm over all tensors together."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in change.values()))


def privatize_update(
    before: Tensors, after: Tensors, clip: float, noise: float, key: bytes, stream: str
) -> tuple[Tensors, float]:
    """Return the privatized update and the norm of the raw change.

    Args:
        before: given adapters.
        after: trained adapters.
        clip: maximum L2 norm of the change; 0 returns ``after`` unchanged.
        noise: standard deviation of the noise per number, relative to ``clip``.
        key: secret of the site; the key reveals the noise. The noise depends on the key and on the update. A repeated
            round therefore sends the same update, and different updates never share noise. Shared noise would cancel in
            their difference.
        stream: identifier of the round.

    Raises:
        UserError: the change is not finite.
    """
    change = {name: after[name].double() - before[name].double() for name in after}
    norm = global_norm(change)
    if not clip:
        return after, norm
    if not math.isfinite(norm):
        raise UserError("the change holds what is no number, and cannot be limited")
    factor = min(1.0, clip / norm) if norm else 1.0
    private, digest = {}, _digest(before, after)
    for name in sorted(change):
        sample = gaussian_noise(change[name].numel(), key, stream, digest, name).reshape(change[name].shape)
        private[name] = (before[name].double() + factor * change[name] + noise * clip * sample).float()
    return private, norm


def gaussian_noise(count: int, key: bytes, *labels: str) -> Tensor:
    """Return ``count`` standard normal numbers in float64, shape [count], unpredictable without the key.

    The numbers come from a SHAKE-256 stream through the inverse normal distribution. The 64-bit seed of a usual
    generator could be found by brute force within hours.
    """
    if not count:
        return torch.zeros(0, dtype=torch.float64)
    stream = hashlib.shake_256(hashlib.sha256(key).digest() + "\x1f".join(labels).encode()).digest(8 * count)
    quantiles = (np.frombuffer(stream, "<u8") >> np.uint64(12)).astype(np.float64)  # 52 bits
    numbers: Tensor = torch.special.ndtri(torch.from_numpy((quantiles + 0.5) / 2.0**52))
    return numbers


def _digest(*updates: Tensors) -> str:
    """Return a digest of the tensors' names and values."""
    digest = hashlib.sha256()
    for tensors in updates:
        for name in sorted(tensors):
            digest.update(f"{name} {tuple(tensors[name].shape)}".encode())
            digest.update(tensors[name].contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()


def compute_epsilon(rounds: int, noise: float, delta: float) -> float:
    """Return ε of (ε, δ)-differential privacy after ``rounds`` rounds; infinite without noise, and 0 without rounds.

    ε is the smallest value with ``Φ(−ε/μ + μ/2) − e^ε·Φ(−ε/μ − μ/2) ≤ δ`` for ``μ = √R / noise``. This condition is
    exact (Balle and Wang 2018, Theorem 8). ε is found by bisection.

    >>> round(compute_epsilon(1, 1.0, 1e-5), 3), round(compute_epsilon(100, 30.0, 1e-5), 3)
    (4.377, 1.271)
    """
    if not noise:
        return math.inf if rounds else 0.0
    if not rounds or _compute_delta(0.0, math.sqrt(rounds) / noise) <= delta:
        return 0.0
    spent = rounds / (2 * noise**2)
    low, high = 0.0, spent + 2 * math.sqrt(spent * math.log(1 / delta))  # Mironov 2017: a valid upper bound, not tight
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _compute_delta(middle, math.sqrt(rounds) / noise) > delta else (low, middle)
    return high


def _compute_delta(epsilon: float, mu: float) -> float:
    """Return δ of a Gaussian mechanism for a given ε."""
    places = torch.tensor([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu], dtype=torch.float64)
    log_upper, log_lower = torch.special.log_ndtr(places).tolist()
    return math.exp(log_upper) - math.exp(epsilon + log_lower)
