"""Chunked log-probs: values, gradients, entropies, and what they hold in memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from marft.models import log_probs
from marft.models.log_probs import token_scores


def reference(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperatures: Tensor
) -> tuple[Tensor, Tensor]:
    logits = (hidden @ weight.T + (0 if bias is None else bias)) / temperatures[:, None]
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


@pytest.mark.parametrize("chunk", [50, 7 * 50, 10**6])
@pytest.mark.parametrize("trained_head", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_scores_and_gradients_equal_the_dense_reference(
    problem: tuple[Tensor, ...], chunk: int, trained_head: bool, with_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_probs, "CHUNK_ELEMENTS", chunk)
    hidden, weight, bias_, targets, temperatures = problem
    bias = bias_ if with_bias else None
    upstream, entropy_upstream = torch.randn(23, dtype=torch.float64), torch.randn(23, dtype=torch.float64)
    gradients = []
    for function in (reference, lambda *a: token_scores(*a, entropy_gradient=True)):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_(trained_head)
        scores, entropies = function(h, w, bias, targets, temperatures)
        ((scores * upstream) + entropies * entropy_upstream).sum().backward()
        gradients.append((scores.detach(), entropies.detach(), h.grad, w.grad))
    for expected, mine in zip(*gradients, strict=True):
        if expected is not None:
            torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-10)


def test_finite_differences_agree(problem: tuple[Tensor, ...]) -> None:
    hidden, weight, _, targets, temperatures = problem

    def both(h: Tensor) -> tuple[Tensor, Tensor]:
        scores = token_scores(h, weight, None, targets, temperatures, entropy_gradient=True)
        return scores.log_probs, scores.entropies

    assert torch.autograd.gradcheck(both, (hidden[:, :].clone().requires_grad_(),))


def test_without_a_gradient_nothing_is_kept_for_one(problem: tuple[Tensor, ...]) -> None:
    hidden, weight, _, targets, temperatures = problem
    scores = token_scores(hidden, weight, None, targets, temperatures)
    assert not scores.log_probs.requires_grad


def test_a_token_that_cannot_be_leaves_the_entropy_finite() -> None:
    weight = torch.tensor([[1.0], [2.0], [float("-inf")]])
    scores = token_scores(torch.ones(1, 1), weight, None, torch.tensor([1]), torch.ones(1))
    assert torch.isfinite(scores.entropies).all()
