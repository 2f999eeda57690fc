"""What is done to an update before it leaves: its norm is limited, and noise hides what is left (DP-FedAvg: McMahan et
al. 2018).

ε is of one site against all that ever see what it sends: whether it learned from its data, or sent what it was given.
Its update of a round is at most ``clip`` long, so the noise of deviation ``noise · clip`` makes a round a Gaussian
mechanism, and R rounds one with a change √R times as long (μ-GDP with μ = √R / noise: Dong, Roth and Su 2022, Corollary
2). Nothing is sampled, so nothing is amplified.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


def norm_of(change: Tensors) -> float:
    """The L2 norm of all numbers together."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in change.values()))


def hidden(
    before: Tensors, after: Tensors, clip: float, noise: float, key: bytes, stream: str
) -> tuple[Tensors, float]:
    """What may leave in the place of ``after`` → that, and how long the change was before.

    Args:
        clip: the longest that a change may be, in the L2 norm; 0: any, and nothing is done.
        noise: deviation of the noise on each number, over ``clip``.
        key: the site's secret: whoever knows it takes the noise off again. Noise is drawn with it and with all that is
            hidden: the same round done again sends the same, and no two updates ever have the same noise, which the
            difference of both would be without.
        stream: of which round the noise is.

    Raises:
        ValueError: the change is not finite.
    """
    change = {name: after[name].double() - before[name].double() for name in after}
    norm = norm_of(change)
    if not clip:
        return after, norm
    if not math.isfinite(norm):
        raise ValueError("the change holds what is no number, and cannot be limited")
    factor = min(1.0, clip / norm) if norm else 1.0
    found, what = {}, _digest(before, after)
    for name in sorted(change):
        drawn = gaussian(change[name].numel(), key, stream, what, name).reshape(change[name].shape)
        found[name] = (before[name].double() + factor * change[name] + noise * clip * drawn).float()
    return found, norm


def gaussian(count: int, key: bytes, *words: str) -> Tensor:
    """So many standard normal numbers, in float64, which nobody foretells who lacks the key: of SHAKE-256's stream, by
    the inverse of the distribution. (A generator that is seeded with 64 bits is tried out in hours.)
    """
    if not count:
        return torch.zeros(0, dtype=torch.float64)
    stream = hashlib.shake_256(hashlib.sha256(key).digest() + "\x1f".join(words).encode()).digest(8 * count)
    places = (np.frombuffer(stream, "<u8") >> np.uint64(12)).astype(np.float64)  # 52 bits
    found: Tensor = torch.special.ndtri(torch.from_numpy((places + 0.5) / 2.0**52))
    return found


def _digest(*updates: Tensors) -> str:
    """Return a digest of the tensors' names and values."""
    found = hashlib.sha256()
    for tensors in updates:
        for name in sorted(tensors):
            found.update(f"{name} {tuple(tensors[name].shape)}".encode())
            found.update(tensors[name].contiguous().cpu().numpy().tobytes())
    return found.hexdigest()


def epsilon(rounds: int, noise: float, delta: float) -> float:
    """ε of (ε, δ)-differential privacy after so many rounds; infinite without noise.

    The least at which ``Φ(−ε/μ + μ/2) − e^ε·Φ(−ε/μ − μ/2) ≤ δ`` with ``μ = √R / noise``, which is exact (Balle and Wang
    2018, Theorem 8), by bisection.

    >>> round(epsilon(1, 1.0, 1e-5), 3), round(epsilon(100, 30.0, 1e-5), 3)
    (4.377, 1.271)
    """
    if not noise:
        return math.inf if rounds else 0.0
    if not rounds or _delta(0.0, math.sqrt(rounds) / noise) <= delta:
        return 0.0
    spent = rounds / (2 * noise**2)
    low, high = 0.0, spent + 2 * math.sqrt(spent * math.log(1 / delta))  # Mironov 2017: enough, and not exact
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(middle, math.sqrt(rounds) / noise) > delta else (low, middle)
    return high


def _delta(epsilon: float, mu: float) -> float:
    """δ of a Gaussian mechanism at an ε."""
    places = torch.tensor([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu], dtype=torch.float64)
    near, far = torch.special.log_ndtr(places).tolist()
    return math.exp(near) - math.exp(epsilon + far)
