"""Chunked log-probs: values, gradients, entropies, and what they hold in memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from marft.models import log_probs
from marft.models.log_probs import IDENTITY, LogitTransform, OutputHead, score_tokens


def reference(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperatures: Tensor,
    shape: LogitTransform = IDENTITY,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    logits = (hidden @ weight.T + (0 if bias is None else bias)) * shape.scale
    logits = logits if shape.softcap is None else shape.softcap * torch.tanh(logits / shape.softcap)
    logits = logits / temperatures[:, None]
    log_p = logits.log_softmax(-1)
    return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


@pytest.fixture
def problem() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(23, 8, dtype=torch.float64)
    weight = torch.randn(50, 8, dtype=torch.float64)
    bias = torch.randn(50, dtype=torch.float64)
    temperatures = torch.rand(23, dtype=torch.float64) + 0.5
    return hidden, weight, bias, torch.randint(0, 50, (23,)), temperatures


def mine(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperatures: Tensor, shape: LogitTransform
) -> tuple[Tensor, Tensor]:
    return score_tokens(hidden, OutputHead(weight, bias, shape), targets, temperatures, entropy_gradient=True)


SHAPES = {"plain": IDENTITY, "scaled": LogitTransform(0.25), "capped": LogitTransform(1.5, 4.0)}


@pytest.mark.parametrize("chunk", [50, 7 * 50, 10**6])
@pytest.mark.parametrize("trained_head", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_scores_and_gradients_equal_the_dense_reference(
    problem: tuple[Tensor, ...],
    chunk: int,
    trained_head: bool,
    with_bias: bool,
    shape: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_probs, "CHUNK_ELEMENTS", chunk)
    hidden, weight, bias_, targets, temperatures = problem
    bias = bias_ if with_bias else None
    upstream, entropy_upstream = torch.randn(23, dtype=torch.float64), torch.randn(23, dtype=torch.float64)
    gradients = []
    for function in (reference, mine):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_(trained_head)
        scores, entropies = function(h, w, bias, targets, temperatures, shape=SHAPES[shape])
        ((scores * upstream) + entropies * entropy_upstream).sum().backward()
        gradients.append((scores.detach(), entropies.detach(), h.grad, w.grad))
    for expected, found in zip(*gradients, strict=True):
        if expected is not None:
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_finite_differences_agree(problem: tuple[Tensor, ...]) -> None:
    hidden, weight, _, targets, temperatures = problem

    def both(h: Tensor) -> tuple[Tensor, Tensor]:
        scores = score_tokens(h, OutputHead(weight), targets, temperatures, entropy_gradient=True)
        return scores.log_probs, scores.entropies

    assert torch.autograd.gradcheck(both, (hidden[:, :].clone().requires_grad_(),))


def test_without_a_gradient_nothing_is_kept_for_one(problem: tuple[Tensor, ...]) -> None:
    hidden, weight, _, targets, temperatures = problem
    scores = score_tokens(hidden, OutputHead(weight), targets, temperatures)
    assert not scores.log_probs.requires_grad


def test_a_token_that_cannot_be_leaves_the_entropy_finite() -> None:
    weight = torch.tensor([[1.0], [2.0], [float("-inf")]])
    scores = score_tokens(torch.ones(1, 1), OutputHead(weight), torch.tensor([1]), torch.ones(1))
    assert torch.isfinite(scores.entropies).all()


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("block", [37, 10**6])
def test_a_half_precision_head_is_multiplied_in_float32(
    with_bias: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From even odds to near certainty: log-probs to 1e-5, derivatives to the rounding of the hidden states' own."""
    monkeypatch.setattr(log_probs, "BLOCK_ROWS", block)
    torch.manual_seed(0)
    vocabulary, width, count = 300, 64, 40
    weight = torch.randn(vocabulary, width).bfloat16()
    bias = torch.randn(vocabulary).bfloat16() if with_bias else None
    targets, temperatures = torch.randint(0, vocabulary, (count,)), torch.rand(count) + 0.7
    pull = torch.linspace(0.0, 0.22, count)[:, None]
    hidden = (torch.randn(count, width) * 0.1 + pull * weight[targets].float()).bfloat16()
    results = []
    for h, w, b, t in (
        (hidden, weight, bias, temperatures),
        (hidden.double(), weight.double(), None if bias is None else bias.double(), temperatures.double()),
    ):
        h = h.clone().requires_grad_()
        scores, entropies = score_tokens(h, OutputHead(w, b), targets, t, entropy_gradient=True)
        (slopes,) = torch.autograd.grad(scores.sum(), h, retain_graph=True)
        (entropy_slopes,) = torch.autograd.grad(entropies.sum(), h)
        results.append([x.detach().double() for x in (scores, entropies, slopes, entropy_slopes)])
    mine, exact = results
    assert exact[0].exp().min() < 0.1
    assert exact[0].exp().max() > 0.999
    for a, b in zip(mine[:2], exact[:2], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    for a, b in zip(mine[2:], exact[2:], strict=True):
        assert ((a - b).norm(dim=1) / b.norm(dim=1)).max() < 0.004


def test_a_split_into_half_precision_parts_keeps_sixteen_bits() -> None:
    """What a GPU multiplies with half-precision kernels that add up in float32."""
    torch.manual_seed(0)
    p, weight = torch.rand(9, 200), torch.randn(200, 32).bfloat16()
    high, rest = log_probs.split_precision(p, torch.bfloat16)
    assert high.dtype == rest.dtype == torch.bfloat16
    product = high.double() @ weight.double() + rest.double() @ weight.double()
    assert (product - p.double() @ weight.double()).abs().max() < 2**-16 * 200


def test_scores_of_full_chunks_are_those_of_any(problem: tuple[Tensor, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_probs, "FIXED_CHUNK_ROWS", 10)
    hidden, weight, bias, targets, temperatures = problem
    plain = score_tokens(hidden, OutputHead(weight, bias), targets, temperatures)
    filled = score_tokens(hidden, OutputHead(weight, bias), targets, temperatures, fixed_size=True)
    for a, b in zip(plain, filled, strict=True):
        assert a.shape == b.shape == (23,)
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_a_second_derivative_is_refused_and_not_zero(problem: tuple[Tensor, ...]) -> None:
    hidden, weight, bias, targets, temperatures = problem
    h = hidden.clone().requires_grad_()
    loss = score_tokens(h, OutputHead(weight, bias), targets, temperatures)[0].square().sum()
    (slope,) = torch.autograd.grad(loss, h, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.square().sum().backward()
