"""Log-ratios are cut to ±20 wherever they are exponentiated, and bounds are where a recipe says."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from marft.config.algorithm import KLSettings, SamplerCorrectionSettings
from marft.config.interfaces.objective import LossInputs
from marft.trainer.loss import kl_terms, sampler_weights
from marft.trainer.objectives.cispo import CISPO
from marft.trainer.objectives.ppo import PPO
from marft.trainer.teammate_weights import Truncated

LIMIT = math.exp(20.0)


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


FAR, NEAR = column(300.0, -300.0), column(0.0, 0.0)


class TestLimits:
    def test_of_ppos_ratio(self) -> None:
        terms = PPO(clip_high=1e9)(LossInputs(FAR, NEAR, column(-1.0, 1.0), NEAR)).terms
        assert terms.tolist() == pytest.approx([LIMIT, -1 / LIMIT], rel=1e-12)

    def test_of_cispos_weight(self) -> None:
        terms = CISPO(clip_high=1e9)(LossInputs(FAR, NEAR, column(1.0, 1.0), NEAR)).terms
        assert terms.tolist() == pytest.approx([-300.0 * LIMIT, 300.0 / LIMIT], rel=1e-12)

    @pytest.mark.parametrize(
        ("estimator", "expected"),
        [
            ("k2", [200.0, 200.0]),
            ("k3", [math.exp(-20.0) - 1 + 20, LIMIT - 1 - 20]),
            ("k3-corrected", [LIMIT * (math.exp(-20.0) - 1 + 20), (LIMIT - 1 - 20) / LIMIT]),
        ],
    )
    def test_of_the_kl(self, estimator: str, expected: list[float]) -> None:
        terms = kl_terms(KLSettings(coefficient=1.0, estimator=estimator), FAR, NEAR, NEAR)  # type: ignore[arg-type]
        assert terms.tolist() == pytest.approx(expected, rel=1e-9)

    def test_of_a_teammates_text(self) -> None:
        weights = Truncated(cap=1e9).compute_weights(FAR, NEAR, column(1.0, 2.0))
        assert weights.tolist() == pytest.approx([LIMIT, 1 / LIMIT], rel=1e-12)

    @pytest.mark.parametrize("level", ["token", "action", "geometric"])
    def test_of_the_samplers_weight(self, level: str) -> None:
        correction = SamplerCorrectionSettings(level=level, cap=1e9)  # type: ignore[arg-type]
        weights = sampler_weights(correction, FAR, NEAR, torch.tensor([0, 1]))
        assert weights.tolist() == pytest.approx([LIMIT, 1 / LIMIT], rel=1e-12)


class TestBounds:
    @pytest.mark.parametrize("band", [{"mask_low": 0.5, "mask_high": 1.0}, {"mask_low": 1.0, "mask_high": 2.0}])
    def test_a_weight_on_the_edge_of_the_band_is_in_it(self, band: dict[str, float]) -> None:
        """Where engine and learner agree the weight is 1, and nothing is masked."""
        weights = sampler_weights(SamplerCorrectionSettings(level="token", **band), NEAR, NEAR, torch.tensor([0, 1]))  # type: ignore[arg-type]
        assert weights.tolist() == [1.0, 1.0]

    def test_a_teammates_text_weighs_at_most_the_cap_and_its_weight_has_no_gradient(self) -> None:
        log_probs = column(-1.0, -2.0).requires_grad_()
        weights = Truncated(cap=2.0).compute_weights(log_probs, column(-3.0, -1.5), column(0.5, -0.25))
        assert not weights.requires_grad
        assert weights.tolist() == pytest.approx([2.0, math.exp(-0.5)], rel=1e-12)

    @pytest.mark.parametrize("dual_clip", [1e-6, 0.5, 1.0])
    def test_a_dual_clip_that_would_leave_no_gradient_is_refused(self, dual_clip: float) -> None:
        with pytest.raises(ValidationError, match="must be above 1, else no bad action is unlearned; 0 is off"):
            PPO(dual_clip=dual_clip)

    def test_a_dual_clip_just_above_1_leaves_a_gradient(self) -> None:
        terms = PPO(dual_clip=1.5)(LossInputs(column(1.0, 0.1), NEAR, column(-1.0, -1.0), NEAR)).terms
        assert terms.tolist() == pytest.approx([1.5, math.exp(0.1)])

    def test_where_the_dual_clip_binds_is_counted(self) -> None:
        """An advantage of 0 is bound by nothing."""
        units = LossInputs(
            column(2.0, 0.1, 2.0, 0.0),
            column(0.0, 0.0, 0.0, 0.0),
            column(-1.0, -1.0, 0.0, 1.0),
            column(0.0, 0.0, 0.0, 0.0),
        )
        assert PPO(dual_clip=3.0)(units).metrics["clip_fraction"].tolist() == [1.0, 0.0, 0.0, 0.0]
        cut = LossInputs(column(2.0, -2.0, 0.5), NEAR.new_zeros(3), column(1.0, -1.0, -1.0), NEAR.new_zeros(3))
        assert PPO(dual_clip=3.0)(cut).metrics["clip_fraction"].tolist() == [1.0, 1.0, 0.0]
