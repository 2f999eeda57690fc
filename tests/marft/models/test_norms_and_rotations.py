"""Written gradients of norms and rotations are those of autograd through what they are made of."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from marft.models.fused_decoder import apply_rms_norm, apply_rope


def weighed(out: Tensor) -> Tensor:
    """A sum in which every number has a weight of its own."""
    return (out * torch.arange(out.numel(), dtype=out.dtype).view_as(out).sin()).sum()


def plain_norm(norm: SimpleNamespace, x: Tensor) -> Tensor:
    return norm.weight * x / (x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()


def plain_rotation(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, two = x.chunk(2, -1)
    return x * cos + torch.cat((-two, one), -1) * sin


@pytest.mark.parametrize("shape", [(5, 8), (5, 3, 8)])
@pytest.mark.parametrize("trained", [False, True])
def test_norms(shape: tuple[int, ...], trained: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    norm = SimpleNamespace(weight=torch.rand(8, dtype=torch.float64) + 0.5, variance_epsilon=0.1)
    norm.weight.requires_grad_(trained)
    wanted = [x, norm.weight] if trained else [x]
    expected, found = plain_norm(norm, x), apply_rms_norm(norm, x)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for one, other in zip(*(torch.autograd.grad(weighed(out), wanted) for out in (found, expected)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_norms_of_half_precision_are_taken_in_float32() -> None:
    x = torch.randn(4, 64, requires_grad=True)
    norm = SimpleNamespace(weight=torch.rand(64), variance_epsilon=1e-5)
    half = SimpleNamespace(weight=norm.weight.bfloat16(), variance_epsilon=1e-5)
    rounded = x.detach().bfloat16().requires_grad_()
    found = apply_rms_norm(half, rounded)
    assert found.dtype == torch.bfloat16
    exact = SimpleNamespace(weight=half.weight.float(), variance_epsilon=1e-5)
    upcast = rounded.detach().float().requires_grad_()
    torch.testing.assert_close(found, plain_norm(exact, upcast).bfloat16())
    (mine,) = torch.autograd.grad(found.float().sum(), rounded)
    (expected,) = torch.autograd.grad(plain_norm(exact, upcast).sum(), upcast)
    torch.testing.assert_close(mine, expected.bfloat16(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("alike", [True, False])
def test_rotations(alike: bool) -> None:
    """Of several heads at once; also where the halves of a head have angles of their own."""
    torch.manual_seed(0)
    q, k = (torch.randn(5, heads, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2))
    angles = torch.rand(5, 1, 8, dtype=torch.float64)
    angles = torch.cat([angles[..., :4]] * 2, -1) if alike else angles
    cos, sin = angles.cos(), angles.sin()
    turned = torch.cat((-sin[..., :4], sin[..., 4:]), -1)
    found = apply_rope(q, k, cos, turned)
    expected = [plain_rotation(x, cos, sin) for x in (q, k)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(sum(map(weighed, out)), (q, k)) for out in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_what_is_not_learned_from_is_the_same_to_the_bit() -> None:
    x, norm = torch.randn(6, 3, 8), SimpleNamespace(weight=torch.rand(8), variance_epsilon=1e-5)
    cos, turned = torch.rand(6, 1, 8), torch.rand(6, 1, 8)
    learned = apply_rms_norm(norm, x.clone().requires_grad_()), *apply_rope(x.clone().requires_grad_(), x, cos, turned)
    with torch.no_grad():
        read = apply_rms_norm(norm, x), *apply_rope(x, x, cos, turned)
    assert all(torch.equal(one, other) for one, other in zip(learned, read, strict=True))
