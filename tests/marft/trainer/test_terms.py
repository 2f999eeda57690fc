"""KL terms, the sampler's correction, CISPO, the ratios of policies updated before, and what rewards become."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.common.types import Episode, Observation, Sample, Task, Transition
from marft.config.algorithm import KLSettings, SamplerCorrectionSettings
from marft.config.interfaces.objective import LossInputs
from marft.rewards import shaping
from marft.trainer.loss import kl_terms, sampler_weights
from marft.trainer.objectives.cispo import CISPO
from marft.trainer.objectives.ppo import PPO
from marft.trainer.objectives.reinforce import Reinforce
from marft.trainer.update_schedules import TeamRatios
from tests.episodes import episodes, make_action
from tests.nights import MANY

NUMBER = st.floats(-3, 3, allow_nan=False)
TRIPLES = st.lists(st.tuples(NUMBER, NUMBER, NUMBER), min_size=1, max_size=8)
ESTIMATORS = st.sampled_from(["k2", "k3", "k3-corrected"])


def columns(rows: list[tuple[float, float, float]]) -> list[torch.Tensor]:
    return [torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True)]


def slow_kl(estimator: str, log_prob: float, base: float, old: float) -> float:
    d = max(-20.0, min(20.0, base - log_prob))
    if estimator == "k2":
        return d * d / 2
    k3 = math.exp(d) - 1 - d
    return math.exp(log_prob - old) * k3 if estimator == "k3-corrected" else k3


class TestKL:
    @given(rows=TRIPLES, estimator=ESTIMATORS)
    @settings(max_examples=MANY)
    def test_terms_equal_the_slow_reference(self, rows: list[tuple[float, float, float]], estimator: str) -> None:
        terms = kl_terms(KLSettings(coefficient=1.0, estimator=estimator), *columns(rows))  # type: ignore[arg-type]
        np.testing.assert_allclose(terms.numpy(), [slow_kl(estimator, *row) for row in rows], rtol=1e-9, atol=1e-12)

    @given(rows=TRIPLES, estimator=ESTIMATORS)
    @settings(max_examples=MANY)
    def test_gradients_are_right_by_finite_differences(
        self, rows: list[tuple[float, float, float]], estimator: str
    ) -> None:
        log_probs, base, old = columns(rows)
        log_probs.requires_grad_()
        kl_terms(KLSettings(coefficient=1.0, estimator=estimator), log_probs, base, old).sum().backward()  # type: ignore[arg-type]
        assert log_probs.grad is not None
        h = 1e-6
        for (p, b, o), slope in zip(rows, log_probs.grad.tolist(), strict=True):
            expected = (slow_kl(estimator, p + h, b, o) - slow_kl(estimator, p - h, b, o)) / (2 * h)
            assert slope == pytest.approx(expected, rel=1e-4, abs=1e-6)

    def test_on_policy_the_expected_gradient_is_the_kls(self) -> None:
        """Over all tokens of a small distribution: E[∇ term + term · ∇ log π] needs no sampling. GRPO's k3, without the ratio, has the
        gradient of KL(base ‖ π)."""
        theta = torch.tensor([0.3, -0.2, 0.7], dtype=torch.float64, requires_grad=True)
        base = torch.tensor([0.1, 0.5, -0.4], dtype=torch.float64).log_softmax(0)
        log_p = theta.log_softmax(0)
        (log_p.exp() * (log_p - base)).sum().backward()
        exact = theta.grad.clone()  # type: ignore[union-attr]
        for estimator in ("k2", "k3-corrected"):
            theta.grad = None
            log_p = theta.log_softmax(0)
            old = log_p.detach()
            terms = kl_terms(KLSettings(coefficient=1.0, estimator=estimator), log_p, base, old)  # type: ignore[arg-type]
            (old.exp() * terms).sum().backward()
            torch.testing.assert_close(theta.grad, exact)
        theta.grad = None
        (base.exp() * (base - theta.log_softmax(0))).sum().backward()
        other_way = theta.grad.clone()  # type: ignore[attr-defined]
        theta.grad = None
        log_p = theta.log_softmax(0)
        terms = kl_terms(KLSettings(coefficient=1.0, estimator="k3"), log_p, base, log_p.detach())
        (log_p.detach().exp() * terms).sum().backward()
        torch.testing.assert_close(theta.grad, other_way)


class TestSamplerCorrection:
    @given(
        actions=st.lists(st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=4), min_size=1, max_size=4),
        level=st.sampled_from(["token", "action", "geometric"]),
        band=st.sampled_from([(0.0, 0.0), (0.5, 3.0)]),
    )
    @settings(max_examples=MANY)
    def test_weights_equal_the_slow_reference(
        self, actions: list[list[tuple[float, float]]], level: str, band: tuple[float, float]
    ) -> None:
        old, engine = (torch.tensor([t[i] for a in actions for t in a], dtype=torch.float64) for i in (0, 1))
        owner = torch.tensor([n for n, a in enumerate(actions) for _ in a])
        setting = SamplerCorrectionSettings(level=level, cap=2.0, mask_low=band[0], mask_high=band[1])  # type: ignore[arg-type]
        expected = []
        for action in actions:
            differences = [o - e for o, e in action]
            for d in differences:
                log = {"token": d, "action": sum(differences), "geometric": sum(differences) / len(differences)}[level]
                weight = math.exp(max(-20.0, min(20.0, log)))
                masked = bool(band[1]) and not band[0] <= weight <= band[1]
                expected.append(0.0 if masked else min(2.0, weight))
        np.testing.assert_allclose(sampler_weights(setting, old, engine, owner).numpy(), expected, rtol=1e-9)

    def test_without_a_difference_nothing_is_weighed(self) -> None:
        scores = torch.randn(5, dtype=torch.float64)
        setting = SamplerCorrectionSettings(level="geometric")
        assert sampler_weights(setting, scores, scores, torch.zeros(5, dtype=torch.long)).tolist() == [1.0] * 5


class TestObjectives:
    @pytest.mark.slow
    @given(rows=TRIPLES, high=st.floats(0.1, 5.0))
    @settings(max_examples=MANY)
    def test_cispo_equals_the_slow_reference_and_clips_the_weight_alone(
        self, rows: list[tuple[float, float, float]], high: float
    ) -> None:
        log_probs, old, advantages = columns(rows)
        log_probs.requires_grad_()
        terms = CISPO(clip_high=high)(LossInputs(log_probs, old, advantages, old)).terms
        weights = [min(math.exp(p - o), 1 + high) for p, o, _ in rows]
        expected = [-w * a * p for w, (p, _, a) in zip(weights, rows, strict=True)]
        np.testing.assert_allclose(terms.detach().numpy(), expected, rtol=1e-9, atol=1e-12)
        terms.sum().backward()
        assert log_probs.grad is not None
        slopes = [-w * a for w, (_, _, a) in zip(weights, rows, strict=True)]
        np.testing.assert_allclose(log_probs.grad.numpy(), slopes, rtol=1e-9, atol=1e-12)

    @given(rows=TRIPLES)
    @settings(max_examples=MANY)
    def test_reinforce_equals_the_slow_reference_and_finite_differences(
        self, rows: list[tuple[float, float, float]]
    ) -> None:
        log_probs, old, advantages = columns(rows)
        log_probs.requires_grad_()
        terms = Reinforce()(LossInputs(log_probs, old, advantages, old)).terms
        terms.sum().backward()
        assert log_probs.grad is not None
        for (p, _, a), term, slope in zip(rows, terms.tolist(), log_probs.grad.tolist(), strict=True):
            assert term == pytest.approx(-a * p)
            assert slope == pytest.approx((-a * (p + 1e-6) + a * (p - 1e-6)) / 2e-6, rel=1e-5, abs=1e-7)

    def test_cispos_width_is_not_ppos(self) -> None:
        """With PPO's ε as its clamp, a ratio of 2 would count 1.2."""
        inputs = LossInputs(torch.tensor([math.log(2.0)]), torch.zeros(1), torch.ones(1), torch.zeros(1))
        assert CISPO()(inputs).terms.item() == pytest.approx(-2.0 * math.log(2.0))
        assert CISPO().clip_high > PPO().clip

    def test_cispo_counts_the_weights_that_it_cuts(self) -> None:
        ratios = torch.tensor([0.5, 1.0, 2.0, 3.5], dtype=torch.float64)
        inputs = LossInputs(
            ratios.log(),
            torch.zeros(4, dtype=torch.float64),
            torch.ones(4, dtype=torch.float64),
            torch.zeros(4, dtype=torch.float64),
        )
        assert CISPO(clip_high=2.0)(inputs).metrics["clip_fraction"].tolist() == [0.0, 0.0, 0.0, 1.0]

    @given(rows=st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=8))
    def test_on_policy_ppo_cispo_and_reinforce_have_one_gradient(self, rows: list[tuple[float, float]]) -> None:
        gradients = []
        for objective in (PPO(), CISPO(), Reinforce()):
            log_probs = torch.tensor([p for p, _ in rows], dtype=torch.float64, requires_grad=True)
            advantages = torch.tensor([a for _, a in rows], dtype=torch.float64)
            objective(LossInputs(log_probs, log_probs.detach(), advantages, log_probs.detach())).terms.sum().backward()
            assert log_probs.grad is not None
            gradients.append(log_probs.grad.numpy())
        np.testing.assert_allclose(gradients[1], gradients[0], atol=1e-12)
        np.testing.assert_allclose(gradients[2], gradients[0], atol=1e-12)


class TestTeamRatios:
    @given(moves=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), NUMBER), max_size=8))
    @settings(max_examples=MANY)
    def test_m_is_the_product_of_the_steps_ratios(self, moves: list[tuple[int, int, float]]) -> None:
        ratios = TeamRatios(limit=4.0)
        logs: dict[tuple[int, int], float] = {}
        for sample, step, moved in moves:
            action = make_action("a", sample=sample, step=step, tokens=(1, 2))
            old = np.array([-1.0, -1.0])
            ratios.add([action], {action.key: old}, {action.key: old + moved})
            logs[sample, step] = logs.get((sample, step), 0.0) + moved
        for sample in (0, 1):
            for step in range(3):
                mine = make_action("b", sample=sample, step=step)
                expected = min(4.0, max(0.25, math.exp(logs.get((sample, step), 0.0))))
                weighed = ratios.scale_advantages([Sample(mine, 1.0, np.array([2.0]))])[0]
                assert weighed.advantages[0] == pytest.approx(2.0 * expected)
                joined = ratios.scale_ratios([Sample(mine, 1.0, np.array([2.0]))], clip=0.1)[0]
                assert math.exp(joined.log_factor) == pytest.approx(min(1.1, max(0.9, expected)))
                assert ratios.traces([mine])[0] == pytest.approx(expected)

    def test_with_one_policy_happo_is_ppo(self) -> None:
        sample = Sample(make_action("a"), 1.0, np.array([0.7]))
        assert TeamRatios(2.0).scale_advantages([sample])[0].advantages[0] == 0.7


class TestRewards:
    @given(episode=episodes(), team=st.floats(0, 2), own=st.floats(0, 2))
    def test_one_switch_mixes_team_and_own_rewards(self, episode: Episode, team: float, own: float) -> None:
        mixed = shaping.mix_rewards([episode], team, own)[0]
        for before, after in zip(episode.transitions, mixed.transitions, strict=True):
            assert after.reward == team * before.reward
            assert after.agent_rewards == {agent: own * r for agent, r in before.agent_rewards.items()}

    @pytest.mark.parametrize(("kind", "expected"), [("margin", [0.5, 1.25]), ("quality", [0.5, 1.25])])
    def test_progress_over_earlier_grades_is_rewarded(self, kind: str, expected: list[float]) -> None:
        """Grades 0.5, 1.0, 0.75: Q is 0.5 before the second and 0.75 before the third."""
        actions = tuple(make_action("a", step=t, index=t) for t in range(3))
        transitions = tuple(Transition(Observation("o"), 0.0, {"a": grade}) for grade in (0.5, 1.0, 0.75))
        episode = Episode(Task("t", "o"), "train/0", 0, actions, "terminated", transitions)
        shaped = shaping.shape_rewards([episode], kind, 0.5)[0]  # type: ignore[arg-type]
        slow, grades = [], []
        for reward in (0.5, 1.0, 0.75):
            if grades:
                q = sum(grades) / len(grades)
                delta = reward - q if kind == "margin" else q * reward - (1 - q) * (1 - reward)
                slow.append(reward + 0.5 * delta)
            else:
                slow.append(reward)
            grades.append(reward)
        assert [t.agent_rewards["a"] for t in shaped.transitions] == pytest.approx(slow)
        assert slow[:2] == pytest.approx(expected)

    @pytest.mark.slow
    @given(episode=episodes(), kind=st.sampled_from(["margin", "quality"]), weight=NUMBER)
    @settings(max_examples=MANY)
    def test_shaping_equals_the_slow_reference(self, episode: Episode, kind: str, weight: float) -> None:
        grades: list[float] = []
        shaped = shaping.shape_rewards([episode], kind, weight)[0]  # type: ignore[arg-type]
        for t, (before, after) in enumerate(zip(episode.transitions, shaped.transitions, strict=True)):
            expected = dict(before.agent_rewards)
            seen: list[str] = []
            for action in episode.actions:
                if action.step != t or action.agent in seen or action.agent not in expected:
                    continue
                seen.append(action.agent)
                r = before.agent_rewards[action.agent]
                if grades:
                    q = sum(grades) / len(grades)
                    expected[action.agent] = r + weight * (r - q if kind == "margin" else q * r - (1 - q) * (1 - r))
                grades.append(r)
            assert dict(after.agent_rewards) == pytest.approx(expected, rel=1e-9, abs=1e-9)
            assert after.reward == before.reward

    def test_length_near_the_limit_costs_its_agent(self) -> None:
        action = make_action("a", tokens=tuple(range(9)))
        episode = Episode(
            Task("t", "o"), "train/0", 0, (action,), "terminated", (Transition(Observation("o"), 1.0, {"b": 1.0}),)
        )
        priced = shaping.penalize_overlong([episode], {"a": 10}, buffer=4)[0]
        assert priced.transitions[0].agent_rewards == {"b": 1.0, "a": -0.75}
        assert priced.transitions[0].reward == 1.0
        short = replace(episode, actions=(make_action("a"),))
        assert shaping.penalize_overlong([short], {"a": 10}, buffer=4)[0].transitions == short.transitions
