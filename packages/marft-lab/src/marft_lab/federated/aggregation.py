"""Average adapters by their factors, or by their weight changes.

The adapter of a layer changes the layer's weight by ``scale · B·A``. The average of the products differs from the
product of the averages:

    Σ wᵢ BᵢAᵢ = B̄Ā + Σ wᵢ (Bᵢ − B̄)(Aᵢ − Ā)

Averages of factors (FedIT: Zhang et al. 2024) therefore ignore the covariance of the two factors across sites. The
average of the products is exactly ``[w₁B₁ … wₙBₙ]·[A₁; …; Aₙ]``, with up to n times the rank (FLoRA: Wang et al. 2024).
Its best approximation of the adapters' own rank is the truncated singular value decomposition (FlexLoRA: Bai et al.
2024).

The factors of that product are not unique. OUR READING: B and A are ``U S Q / c`` and ``c Qᵀ Vᵀ``. The orthogonal Q
brings A nearest to Ā, and c gives A the norm of Ā. The choice has three reasons. A site's optimizer moments belong to
the factors, so the site continues in nearly the same coordinates. A is as well-conditioned as at the start. A site that
mixes with no other site keeps its factors, bit for bit. If all sites have the same A, A stays and B is averaged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

# minimum norm of the average A, relative to the norm of single A's, because A's of sites may cancel out
MIN_A_NORM = 1e-3

Adapter = Mapping[str, Tensor]  # tensors by peft's names: …lora_A.weight [r, in], …lora_B.weight [out, r]
SUFFIX_A, SUFFIX_B = ".lora_A.weight", ".lora_B.weight"


def average_adapters(
    adapters: Sequence[Adapter], weights: Sequence[float], of: Literal["products", "factors"]
) -> Adapter:
    """Return the weighted average over a policy's adapters.

    Args:
        adapters: adapters with the same layers and shapes.
        weights: weight of each adapter, shape [adapters]; the sum is 1.
        of: average of the products, or of the factors.
    """
    assert math.isclose(sum(weights), 1, abs_tol=1e-9), weights
    weighted = [(adapter, weight) for adapter, weight in zip(adapters, weights, strict=True) if weight]
    if len(weighted) == 1:
        return dict(weighted[0][0])
    parts, weights = [adapter for adapter, _ in weighted], [weight for _, weight in weighted]
    if of == "factors":
        return {name: _average([part[name] for part in parts], weights).float() for name in parts[0]}
    averaged: dict[str, Tensor] = {}
    for name in parts[0]:
        if name.endswith(SUFFIX_A):
            b_name = name.removesuffix(SUFFIX_A) + SUFFIX_B
            a_factors, b_factors = [part[name] for part in parts], [part[b_name] for part in parts]
            # with a shared A, the average product has the same A
            if all(torch.equal(a_factors[0], factor) for factor in a_factors[1:]):
                averaged[name], averaged[b_name] = a_factors[0], _average(b_factors, weights).float()
                continue
            a, b = average_products(a_factors, b_factors, weights)
            averaged[name], averaged[b_name] = a.float().contiguous(), b.float().contiguous()
    return {name: averaged[name] for name in parts[0]}


def average_products(a: Sequence[Tensor], b: Sequence[Tensor], weights: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return the best rank-r approximation of Σ wᵢ BᵢAᵢ in the Frobenius norm, as factors A and B in float64.

    Args:
        a: A of each adapter, shape [r, in].
        b: B of each adapter, shape [out, r].
        weights: weight of each adapter, shape [adapters].

    Returns:
        A of shape [r, in] and B of shape [out, r].
    """
    rank, mean = a[0].shape[0], _average(a, weights)
    wide = torch.cat([weight * factor.double() for factor, weight in zip(b, weights, strict=True)], 1)  # [out, n·r]
    tall = torch.cat([factor.double() for factor in a])  # [n·r, in]
    q_wide, r_wide = torch.linalg.qr(wide)
    q_tall, r_tall = torch.linalg.qr(tall.T)  # tall = r_tallᵀ·q_tallᵀ
    u, s, v = torch.linalg.svd(r_wide @ r_tall.T, full_matrices=False)
    # [out, r], [r, in]; a smaller rank for small layers
    left, right = q_wide @ u[:, :rank] * s[:rank], v[:rank] @ q_tall.T
    spread = math.sqrt(
        sum(weight * float(factor.double().norm()) ** 2 for factor, weight in zip(a, weights, strict=True))
    )
    scale = max(float(mean.norm()), MIN_A_NORM * spread) / math.sqrt(rank) or 1.0
    p, _, q = torch.linalg.svd(mean @ right.T, full_matrices=False)
    turn = p @ q  # [r, r], or [r, k] with k < r; orthonormal columns
    return scale * turn @ right, left @ turn.T / scale


def rms_distance(adapters: Sequence[Adapter]) -> float:
    """Return the root mean square, over sites, of the L2 distance between a site's factors and the average factors."""
    weights = [1 / len(adapters)] * len(adapters)
    mean = {name: _average([adapter[name] for adapter in adapters], weights) for name in adapters[0]}
    squares = [
        sum(float((adapter[name].double() - mean[name]).square().sum()) for name in mean) for adapter in adapters
    ]
    return math.sqrt(sum(squares) / len(squares))


def _average(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    total = torch.zeros_like(tensors[0], dtype=torch.float64)
    for tensor, weight in zip(tensors, weights, strict=True):
        total += weight * tensor.double()
    return total
