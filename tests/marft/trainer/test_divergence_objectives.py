"""DPPO and DRPO against slow float64 references, their gradients, and what they refuse."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from marft.common.errors import UserError
from marft.config import load_recipe
from marft.config.interfaces.objective import LossInputs, LossOutput
from marft.trainer.objectives.dppo import DPPO
from marft.trainer.objectives.drpo import DRPO

PROBABILITIES = st.floats(1e-6, 1 - 1e-6)
ADVANTAGES = st.floats(-5, 5).filter(lambda a: abs(a) > 1e-3)


def inputs(pi: list[float], mu: list[float], advantages: list[float]) -> LossInputs:
    """Return float64 inputs from probabilities; π_old is far away, because neither objective may read it."""
    log_probs = torch.tensor(np.log(pi), dtype=torch.float64, requires_grad=True)
    far = torch.full_like(log_probs, -7.0)
    return LossInputs(log_probs, far, torch.tensor(advantages, dtype=torch.float64), torch.tensor(np.log(mu)))


def gradient(given: LossInputs, output: LossOutput) -> Tensor:
    (found,) = torch.autograd.grad(output.terms.sum(), given.log_probs)
    return found


def divergence(kind: str, p: float, mu: float) -> float:
    if kind == "tv":
        return abs(p - mu)
    return mu * math.log(mu / p) + (1 - mu) * math.log((1 - mu) / (1 - p))


@given(
    st.lists(st.tuples(PROBABILITIES, PROBABILITIES, ADVANTAGES), min_size=1, max_size=8),
    st.sampled_from(["tv", "kl"]),
    st.floats(1e-3, 0.9),
)
def test_dppo_drops_what_is_beyond_delta_and_moves_away(
    rows: list[tuple[float, float, float]], kind: str, delta: float
) -> None:
    pi, mu, advantages = (list(column) for column in zip(*rows, strict=True))
    of = inputs(pi, mu, advantages)
    output = DPPO(divergence=kind, delta=delta)(of)
    found = gradient(of, output)
    for number, (p, m, advantage) in enumerate(rows):
        measured = divergence(kind, p, m)
        if abs(measured - delta) < 1e-9:
            continue
        dropped = measured > delta and (p > m) == (advantage > 0)
        expected = 0.0 if dropped else -p / m * advantage
        assert output.terms[number].item() == pytest.approx(expected, rel=1e-9)
        assert found[number].item() == pytest.approx(expected, rel=1e-9)
        assert output.metrics["clip_fraction"][number].item() == float(dropped)


@pytest.mark.parametrize(("pi", "mu", "advantage", "dropped"), [
    (0.9, 0.6, 1.0, True), (0.3, 0.6, 1.0, False), (0.3, 0.6, -1.0, True), (0.9, 0.6, -1.0, False),
    (0.79, 0.6, 1.0, False), (1e-3, 1e-6, 1.0, False),
])  # fmt: skip
def test_a_rare_token_may_multiply_its_probability_and_a_frequent_one_may_not_move_far(
    pi: float, mu: float, advantage: float, dropped: bool
) -> None:
    """PPO would clip the last: its ratio is 1000."""
    output = DPPO()(inputs([pi], [mu], [advantage]))
    assert output.metrics["clip_fraction"].item() == float(dropped)


def test_dppos_upper_delta_is_for_advantages_above_0() -> None:
    of = inputs([0.9, 0.3], [0.6, 0.6], [1.0, -1.0])
    assert DPPO(delta=0.2, delta_high=0.4)(of).metrics["clip_fraction"].tolist() == [0.0, 1.0]
    assert DPPO(delta=0.4, delta_high=0.2)(of).metrics["clip_fraction"].tolist() == [1.0, 0.0]


def test_a_certain_token_has_a_finite_kl() -> None:
    of = inputs([1.0, 1.0], [1.0, 0.5], [1.0, 1.0])
    output = DPPO(divergence="kl")(of)
    assert torch.isfinite(gradient(of, output)).all()
    assert output.metrics["clip_fraction"].tolist() == [0.0, 1.0]


@given(st.lists(st.tuples(PROBABILITIES, PROBABILITIES, ADVANTAGES), min_size=1, max_size=8), st.floats(0.05, 20))
def test_drpos_gradient_is_weighted_by_the_distance(rows: list[tuple[float, float, float]], delta: float) -> None:
    pi, mu, advantages = (list(column) for column in zip(*rows, strict=True))
    of = inputs(pi, mu, advantages)
    output = DRPO(delta=delta)(of)
    found = gradient(of, output)
    for number, (p, m, advantage) in enumerate(rows):
        ratio = p / m
        if ratio > 1e8:
            continue  # beyond the limit of log-ratios
        loss = -ratio * advantage + abs(advantage) * m * (ratio - 1) ** 2 / (2 * delta)
        weight = 1 - math.copysign(1.0, advantage * (p - m)) * abs(p - m) / delta
        assert output.terms[number].item() == pytest.approx(loss, rel=1e-8, abs=1e-8)
        assert found[number].item() == pytest.approx(-ratio * advantage * weight, rel=1e-8, abs=1e-8)


def test_drpo_turns_back_beyond_delta() -> None:
    of = inputs([0.7, 0.8, 0.9], [0.5, 0.5, 0.5], [1.0, 1.0, 1.0])
    slower, stopped, back = gradient(of, DRPO(delta=0.3)(of)).tolist()
    assert slower < 0
    assert stopped == pytest.approx(0, abs=1e-12)
    assert back > 0


@pytest.mark.parametrize("objective", ["dppo", "drpo"])
@pytest.mark.parametrize(("change", "value", "message"), [
    ("algorithm.level", "action", "use level = 'token'"),
    ("algorithm.sampler_correction.level", "token", "to that policy already"),
    ("algorithm.schedule.name", "sequential", "no room for that"),
])  # fmt: skip
def test_what_the_trust_region_cannot_mean_is_refused(objective: str, change: str, value: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_recipe("demo_token", changes={"algorithm": {"name": objective}, change: value})


@pytest.mark.parametrize("objective", ["dppo", "drpo"])
def test_other_engines_add_no_weights_of_their_own(objective: str, tmp_path: Path) -> None:
    changes = {"algorithm": {"name": objective}, "engine.kind": "process", "output": str(tmp_path)}
    assert load_recipe("demo_token", changes=changes).algorithm.sampler_correction.level == "none"
