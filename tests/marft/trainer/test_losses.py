"""Objective, action normalization, value loss and advantage normalization against slow references."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.config.interfaces.objective import LossInputs
from marft.trainer.batching import normalize, normalizer
from marft.trainer.critic import compute_explained_variance, value_losses
from marft.trainer.loss import k3_estimate
from marft.trainer.objectives.ppo import PPO
from tests import references
from tests.episodes import make_action
from tests.nights import MANY

NUMBER = st.floats(-3, 3, allow_nan=False)
UNITS = st.lists(st.tuples(NUMBER, NUMBER, NUMBER), min_size=1, max_size=8)


def inputs(units: list[tuple[float, float, float]]) -> LossInputs:
    log_probs, old, advantages = (torch.tensor(column, dtype=torch.float64) for column in zip(*units, strict=True))
    return LossInputs(log_probs.requires_grad_(), old, advantages, old)


@pytest.mark.slow
@given(units=UNITS, low=st.floats(0.05, 0.5), high=st.none() | st.floats(0.05, 0.5), dual=st.sampled_from([0.0, 3.0]))
@settings(max_examples=MANY)
def test_ppo_equals_the_slow_reference(units: list, low: float, high: float | None, dual: float) -> None:  # type: ignore[type-arg]
    terms = PPO(clip=low, clip_high=high, dual_clip=dual)(inputs(units)).terms
    expected = [references.ppo_term(*unit, low, high or low, dual) for unit in units]
    np.testing.assert_allclose(terms.detach().numpy(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@given(units=UNITS, dual=st.sampled_from([0.0, 3.0]))
@settings(max_examples=MANY)
def test_ppo_gradients_are_right_by_finite_differences(units: list, dual: float) -> None:  # type: ignore[type-arg]
    low, h = 0.2, 1e-6
    given_inputs = inputs(units)
    PPO(clip=low, dual_clip=dual)(given_inputs).terms.sum().backward()
    assert given_inputs.log_probs.grad is not None
    for (log_prob, old, advantage), slope in zip(units, given_inputs.log_probs.grad.tolist(), strict=True):
        ratio = math.exp(log_prob - old)
        if min(abs(ratio - bound) for bound in (1 - low, 1 + low, 3.0)) < 1e-4:
            continue  # a kink
        up = references.ppo_term(log_prob + h, old, advantage, low, low, dual)
        down = references.ppo_term(log_prob - h, old, advantage, low, low, dual)
        assert slope == pytest.approx((up - down) / (2 * h), rel=1e-4, abs=1e-6)


@given(units=st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=8))
def test_the_first_ppo_gradient_is_reinforces(units: list) -> None:  # type: ignore[type-arg]
    """With old = new, d(−surrogate) / d log π = −A."""
    on_policy = inputs([(log_prob, log_prob, advantage) for log_prob, advantage in units])
    PPO(dual_clip=3.0)(on_policy).terms.sum().backward()
    assert on_policy.log_probs.grad is not None
    np.testing.assert_allclose(on_policy.log_probs.grad.numpy(), [-a for _, a in units], atol=1e-12)


def test_the_clip_fraction_counts_where_the_clip_binds() -> None:
    units = [(1.0, 0.0, 1.0), (1.0, 0.0, -0.1), (0.05, 0.0, 1.0), (-1.0, 0.0, -1.0)]
    assert PPO()(inputs(units)).metrics["clip_fraction"].tolist() == [1.0, 0.0, 0.0, 1.0]


def test_ratios_are_clamped_before_they_overflow() -> None:
    terms = PPO()(inputs([(500.0, 0.0, 1.0), (-500.0, 0.0, 1.0)])).terms
    assert torch.isfinite(terms).all()


@given(value=NUMBER, old=NUMBER, target=NUMBER, clip=st.sampled_from([0.0, 0.2]), delta=st.none() | st.floats(0.1, 2))
@settings(max_examples=MANY)
def test_value_loss_equals_the_slow_reference(
    value: float, old: float, target: float, clip: float, delta: float | None
) -> None:
    tensors = (torch.tensor([x], dtype=torch.float64) for x in (value, old, target))
    loss = value_losses(*tensors, clip, delta)
    assert loss.item() == pytest.approx(references.value_term(value, old, target, clip, delta), rel=1e-9, abs=1e-12)


@given(value=NUMBER, old=NUMBER, target=NUMBER, clip=st.sampled_from([0.0, 0.2]), delta=st.none() | st.floats(0.1, 2))
@settings(max_examples=MANY)
def test_value_loss_gradients_are_right_by_finite_differences(
    value: float, old: float, target: float, clip: float, delta: float | None
) -> None:
    h, given_value = 1e-6, torch.tensor([value], dtype=torch.float64, requires_grad=True)
    value_losses(given_value, torch.tensor([old]).double(), torch.tensor([target]).double(), clip, delta).backward()
    assert given_value.grad is not None
    here, up, down = (references.value_term(value + x, old, target, clip, delta) for x in (0.0, h, -h))
    if abs(up + down - 2 * here) > 1e-9:
        return  # a kink, where clipped and unclipped error change places
    assert given_value.grad.item() == pytest.approx((up - down) / (2 * h), rel=1e-4, abs=1e-5)


@given(error=st.floats(1.5, 100))
def test_the_huber_loss_is_symmetric_and_never_zero_for_large_errors(error: float) -> None:
    """A Huber loss that is 0 for large negative errors once taught nothing to a critic that was far too low."""
    zero = torch.zeros(1, dtype=torch.float64)
    up = value_losses(zero + error, zero, zero, 0.0, 1.0)
    down = value_losses(zero - error, zero, zero, 0.0, 1.0)
    assert up.item() == down.item() == pytest.approx(error - 0.5)


@given(values=st.lists(st.lists(NUMBER, min_size=1, max_size=4), min_size=1, max_size=6))
@settings(max_examples=MANY)
def test_advantage_normalisation_equals_the_slow_reference(values: list[list[float]]) -> None:
    mine = normalize([np.array(row) for row in values])
    expected = references.normalised([v for row in values for v in row])
    np.testing.assert_allclose(np.concatenate(mine), expected, rtol=1e-7, atol=1e-7)


def test_an_advantage_of_exactly_zero_is_not_padding() -> None:
    """Dropping exact zeros once changed mean and spread of everything else."""
    with_zeros = normalize([np.array([1.0]), np.array([0.0]), np.array([0.0]), np.array([-1.0])])
    assert np.concatenate(with_zeros) == pytest.approx(np.array([1.0, 0.0, 0.0, -1.0]) / math.sqrt(2 / 3))


def test_a_single_decision_has_advantage_zero() -> None:
    assert normalize([np.array([7.0])])[0].tolist() == [0.0]


def test_z_counts_sampled_tokens_or_words() -> None:
    action = make_action(tokens=(1, 2, 3), marks=(0, 1, 0), text=" two  words ")
    assert [normalizer(action, n) for n in ("none", "tokens", "words")] == [1.0, 2.0, 2.0]  # type: ignore[arg-type]
    assert normalizer(make_action(text=""), "words") == 1.0


def test_explained_variance_is_one_for_the_truth_and_nan_without_variance() -> None:
    returns = np.array([0.0, 1.0, 3.0])
    assert compute_explained_variance(returns, returns) == 1.0
    assert compute_explained_variance(np.zeros(3), returns) == 0.0
    assert math.isnan(compute_explained_variance(returns, np.ones(3)))


@given(difference=st.floats(-100, 100))
def test_k3_is_never_negative_and_finite(difference: float) -> None:
    value = k3_estimate(torch.tensor([difference], dtype=torch.float64)).item()
    assert value >= -1e-15
    assert math.isfinite(value)
