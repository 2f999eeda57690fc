"""Averages of adapters: of their factors, or of what they change.

A layer's adapter changes it by ``scale · B·A``. The average of the products is not the product of the averages:

    Σ wᵢ BᵢAᵢ = B̄Ā + Σ wᵢ (Bᵢ − B̄)(Aᵢ − Ā)

so averages of factors (FedIT: Zhang et al. 2024) leave out how the two vary together from site to site. The average of
the products is known exactly as ``[w₁B₁ … wₙBₙ]·[A₁; …; Aₙ]``, of up to n times the rank (FLoRA: Wang et al. 2024); the
nearest change of the adapters' own rank is its truncated singular value decomposition (FlexLoRA: Bai et al. 2024).

Which factors that product is written as is OUR READING: B and A are ``U S Q / c`` and ``c Qᵀ Vᵀ``, with the orthogonal
Q that brings A nearest to Ā and with Ā's norm. So a site's optimizer, whose moments are of the factors, goes on in
nearly the same coordinates; A is as well-conditioned as at a start; and a site that goes on from its own alone keeps
its factors, to the bit. Where all have the same A, it stays, and B is averaged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

LEAST_OF_A = 1e-3  # of the average A's size against that of single ones: sites may send A that cancel out

Adapter = Mapping[str, Tensor]  # by the names that peft gives: …lora_A.weight [r, in], …lora_B.weight [out, r]
HALF_A, HALF_B = ".lora_A.weight", ".lora_B.weight"


def mixed(adapters: Sequence[Adapter], weights: Sequence[float], of: Literal["products", "factors"]) -> Adapter:
    """The average of one policy's adapters.

    Args:
        adapters: of the same layers and shapes.
        weights: of each, which add up to 1.
    """
    assert math.isclose(sum(weights), 1, abs_tol=1e-9), weights
    heard = [(adapter, weight) for adapter, weight in zip(adapters, weights, strict=True) if weight]
    if len(heard) == 1:
        return dict(heard[0][0])
    parts, weights = [adapter for adapter, _ in heard], [weight for _, weight in heard]
    if of == "factors":
        return {name: _average([part[name] for part in parts], weights).float() for name in parts[0]}
    found: dict[str, Tensor] = {}
    for name in parts[0]:
        if name.endswith(HALF_A):
            other = name.removesuffix(HALF_A) + HALF_B
            ours, theirs = [part[name] for part in parts], [part[other] for part in parts]
            if all(torch.equal(ours[0], each) for each in ours[1:]):  # the average of their products is one of its own
                found[name], found[other] = ours[0], _average(theirs, weights).float()
                continue
            a, b = product_of_rank(ours, theirs, weights)
            found[name], found[other] = a.float().contiguous(), b.float().contiguous()
    return {name: found[name] for name in parts[0]}


def product_of_rank(a: Sequence[Tensor], b: Sequence[Tensor], weights: Sequence[float]) -> tuple[Tensor, Tensor]:
    """The change of rank r that is nearest to Σ wᵢ BᵢAᵢ, in the Frobenius norm → its A and B, in float64.

    Args:
        a: [r, in] of each.
        b: [out, r] of each.
    """
    rank, mean = a[0].shape[0], _average(a, weights)
    wide = torch.cat([weight * each.double() for each, weight in zip(b, weights, strict=True)], 1)  # [out, n·r]
    tall = torch.cat([each.double() for each in a])  # [n·r, in]
    q_wide, r_wide = torch.linalg.qr(wide)
    q_tall, r_tall = torch.linalg.qr(tall.T)  # tall = r_tallᵀ·q_tallᵀ
    u, s, v = torch.linalg.svd(r_wide @ r_tall.T, full_matrices=False)
    left, right = (
        q_wide @ u[:, :rank] * s[:rank],
        v[:rank] @ q_tall.T,
    )  # [out, r], [r, in]; fewer where the layer is small
    spread = math.sqrt(sum(weight * float(each.double().norm()) ** 2 for each, weight in zip(a, weights, strict=True)))
    scale = max(float(mean.norm()), LEAST_OF_A * spread) / math.sqrt(rank) or 1.0
    p, _, q = torch.linalg.svd(mean @ right.T, full_matrices=False)
    turn = p @ q  # [r, r], or [r, fewer]: its columns are orthonormal
    return scale * turn @ right, left @ turn.T / scale


def distance(adapters: Sequence[Adapter]) -> float:
    """How far apart sites are: the root mean square, over them, of the L2 norm of the factors' difference from their
    average."""
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
