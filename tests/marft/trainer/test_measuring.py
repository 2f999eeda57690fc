"""What a training step reports: means and maxima of the team and of each agent, in numbers worked out by hand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from marft.common.types import Sample
from marft.models.devices import DeferredReads
from marft.trainer.learner_metrics import (
    MetricAccumulator,
    MicroBatchMetrics,
    advantage_metrics,
    advantage_sizes,
    compute_gradient_shares,
    compute_relative_ess,
    measure_base_kl,
    measure_kl,
    sample_per_agent,
    select_first_per_agent,
)
from marft.trainer.loss import k3_estimate
from marft.trainer.micro_batch import MicroBatch
from tests.episodes import make_action

NAN = math.nan
PLANNED, CODED = make_action("planner").key, make_action("coder").key


def batch(engine: tuple[float, ...] = (-1.0, -2.0, -3.0, -4.0)) -> MicroBatch:
    """Four tokens, of a planner, a coder, the planner again, and the coder; a judge said nothing."""
    return cast(
        MicroBatch,
        SimpleNamespace(
            engine_log_probs=torch.tensor(engine, dtype=torch.float64),
            agents=np.array([0, 1, 0, 1]),
            agent_names=("planner", "coder"),
            unit_agents=lambda: np.array([0, 1, 1]),
            split_by_action=lambda flat: {PLANNED: flat[:1], CODED: flat[1:]},
        ),
    )


def sample(agent: str, *advantages: float, policy: str = "") -> Sample:
    return Sample(make_action(agent, policy=policy), 1.0, np.array(advantages))


class TestTheMeter:
    def test_one_observation_is_what_counts_unless_told_otherwise(self) -> None:
        meter = MetricAccumulator()
        meter.add("rollbacks", 1.0)
        meter.add("rollbacks", 0.0)
        assert meter.means() == {"rollbacks": 0.5}
        assert meter.total("rollbacks") == 1.0

    def test_sums_without_a_count_have_no_mean(self) -> None:
        meter = MetricAccumulator()
        meter.add("gradient_share", 3.0, 0.0)
        assert meter.means() == {}
        assert meter.total("gradient_share") == 3.0

    @pytest.mark.parametrize("values", [(-3.0, NAN, -1.0), (-3.0, -1.0, NAN), (NAN, -3.0, -1.0)])
    def test_the_largest_is_kept_and_what_is_not_a_number_shows(self, values: tuple[float, ...]) -> None:
        meter, plain = MetricAccumulator(), MetricAccumulator()
        for value in values:
            meter.update_max("difference", value)
            if not math.isnan(value):
                plain.update_max("difference", value)
        assert math.isnan(meter.means()["difference"])
        assert plain.means() == {"difference": -1.0}

    def test_what_another_has_added_up_joins_with_its_counts(self) -> None:
        meter, other = MetricAccumulator(), MetricAccumulator()
        meter.add("kl", 1.0, 1)
        meter.update_max("most", 2.0)
        other.add("kl", 5.0, 3)
        other.update_max("most", 1.0)
        other.update_max("more", 7.0)
        meter.merge(other)
        assert meter.means() == {"kl": 1.5, "most": 2.0, "more": 7.0}

    def test_the_gradient_of_an_action_adds_up_over_minibatches_and_ranks(self) -> None:
        meter, other = MetricAccumulator(), MetricAccumulator()
        for size in (1.0, 0.5):
            meter.add_gradient(PLANNED, size)
        other.add_gradient(PLANNED, 2.0)
        other.add_gradient(CODED, 4.0)
        meter.merge(other)
        assert meter.gradients == {PLANNED: 3.5, CODED: 4.0}

    def test_entropies_of_the_actions_of_another_rank_join(self) -> None:
        meter, other = MetricAccumulator(), MetricAccumulator()
        meter.entropies[PLANNED] = np.array([0.5])
        other.entropies[CODED] = np.array([1.5])
        meter.merge(other)
        assert {key: row.tolist() for key, row in meter.entropies.items()} == {PLANNED: [0.5], CODED: [1.5]}


def test_tokens_and_units_have_means_of_the_team_and_of_each_agent() -> None:
    meter, awaited = MetricAccumulator(), DeferredReads()
    MicroBatchMetrics(batch(), meter, awaited).add_tokens(
        entropy=torch.tensor([1.0, 2.0, 4.0, 8.0], requires_grad=True)
    )
    MicroBatchMetrics(batch(), meter, awaited).add_units(clip_fraction=torch.tensor([1.0, 0.0, 1.0]))
    awaited.read_pending()
    assert meter.means() == pytest.approx({
        "entropy": 15 / 4, "agents/planner/entropy": 5 / 2, "agents/coder/entropy": 10 / 2,
        "clip_fraction": 2 / 3, "agents/planner/clip_fraction": 1.0, "agents/coder/clip_fraction": 1 / 2,
    })  # fmt: skip
    assert meter.total("entropy") == 15.0
    assert meter.total("agents/planner/entropy") == 5.0


def test_an_agent_without_a_unit_has_no_mean() -> None:
    meter, awaited, alone = MetricAccumulator(), DeferredReads(), batch()
    alone.unit_agents = lambda: np.array([0, 0, 0])  # type: ignore[method-assign, misc]
    MicroBatchMetrics(alone, meter, awaited).add_units(clip_fraction=torch.tensor([1.0, 0.0, 1.0]))
    awaited.read_pending()
    assert meter.means() == pytest.approx({"clip_fraction": 2 / 3, "agents/planner/clip_fraction": 2 / 3})


def test_the_difference_from_the_engine_has_a_mean_and_a_largest_by_agent() -> None:
    """Of sizes: what is above and what is below do not cancel."""
    meter, awaited = MetricAccumulator(), DeferredReads()
    MicroBatchMetrics(batch(), meter, awaited).add_mismatch(torch.tensor([-1.5, -2.1, -2.0, -4.3], dtype=torch.float64))
    awaited.read_pending()
    assert meter.means() == pytest.approx({
        "log_prob_difference": 1.9 / 4, "log_prob_difference_max": 1.0,
        "agents/planner/log_prob_difference": 1.5 / 2, "agents/planner/log_prob_difference_max": 1.0,
        "agents/coder/log_prob_difference": 0.4 / 2, "agents/coder/log_prob_difference_max": 0.3,
    })  # fmt: skip


def test_shares_of_the_gradient_are_of_sizes_and_add_up() -> None:
    meter, awaited = MetricAccumulator(), DeferredReads()
    MicroBatchMetrics(batch(), meter, awaited).add_gradients(torch.tensor([1.0, -2.0, -3.0, 2.0]))
    awaited.read_pending()
    assert meter.means() == {}  # a sum, and no mean of anything
    assert meter.gradients == {PLANNED: 1.0, CODED: 7.0}
    shares = compute_gradient_shares(meter, ("planner", "coder", "judge"))
    names = ("planner", "coder", "judge")
    assert [shares[f"agents/{name}/gradient_share"] for name in names] == [0.5, 0.5, 0.0]


def test_entropies_are_kept_by_action_and_decision() -> None:
    meter, awaited = MetricAccumulator(), DeferredReads()
    MicroBatchMetrics(batch(), meter, awaited).add_entropies(torch.tensor([1.0, 2.0, 4.0, 8.0]))
    awaited.read_pending()
    assert {key: row.tolist() for key, row in meter.entropies.items()} == {PLANNED: [1.0], CODED: [2.0, 4.0, 8.0]}


def test_weights_of_teammate_text_have_a_mean_over_tokens() -> None:
    """Not over micro-batches."""
    meter, awaited = MetricAccumulator(), DeferredReads()
    for weights in ([1.0, 3.0, 2.0], [0.0]):
        MicroBatchMetrics(batch(), meter, awaited).add_teammate_weights(torch.tensor(weights))
    awaited.read_pending()
    assert meter.means() == {"teammate_weight": 6 / 4}


def test_effective_sizes_are_of_all_micro_batches_for_the_team_and_each_agent_that_has_any_weight() -> None:
    """(1 + 1/2 + 3/2 + 2)² / (5 · (1 + 1/4 + 9/4 + 4)); the judge's only one, the fifth, is masked."""
    meter, awaited, more = MetricAccumulator(), DeferredReads(), batch()
    more.unit_agents = lambda: np.array([0, 2])  # type: ignore[method-assign, misc]
    more.agent_names = ("planner", "coder", "judge")  # type: ignore[misc]
    MicroBatchMetrics(batch(), meter, awaited).add_weights(torch.tensor([1.0, 0.5, 1.5]))
    MicroBatchMetrics(more, meter, awaited).add_weights(torch.tensor([2.0, 0.0]))
    awaited.read_pending()
    assert compute_relative_ess(meter, ("planner", "coder", "judge")) == pytest.approx({
        "ess": 25 / (5 * 7.5), "agents/planner/ess": 9 / (2 * 5), "agents/coder/ess": 4 / (2 * 2.5),
    })  # fmt: skip
    assert meter.means() == {}, "sums, and no mean of anything"


def test_nobody_has_a_share_of_no_gradient() -> None:
    assert math.isnan(compute_gradient_shares(MetricAccumulator(), ("planner",))["agents/planner/gradient_share"])


class TestAdvantages:
    SAMPLES = (
        sample("planner", 0.0, 1.0, policy="shared"),
        sample("coder", 0.0, policy="shared"),
        sample("judge", -3.0, 2.0, policy="other"),
        sample("planner", -1.0, 2.0, policy="shared"),
    )
    RAW = tuple(s.advantages for s in SAMPLES)

    def test_those_of_exactly_0_are_counted_by_decisions(self) -> None:
        assert advantage_metrics(self.SAMPLES, self.RAW) == pytest.approx({
            "zero_advantage_fraction": 2 / 7, "agents/planner/zero_advantage_fraction": 1 / 4,
            "agents/coder/zero_advantage_fraction": 1.0, "agents/judge/zero_advantage_fraction": 0.0,
        })  # fmt: skip

    def test_agents_are_reported_in_the_order_of_their_names(self) -> None:
        samples = [sample(agent, 0.0) for agent in "hgfedcba"]
        _, *names = advantage_metrics(samples, [s.advantages for s in samples])
        assert names == [f"agents/{agent}/zero_advantage_fraction" for agent in "abcdefgh"]

    def test_none_are_no_fraction(self) -> None:
        (name,) = (found := advantage_metrics((), ()))
        assert name == "zero_advantage_fraction"
        assert math.isnan(found[name])

    def test_their_size_is_a_mean_over_the_decisions_of_a_policy(self) -> None:
        assert advantage_sizes(self.SAMPLES, self.RAW) == pytest.approx({"shared": 4 / 5, "other": 5 / 2})


def test_of_each_agent_the_first_few_are_taken() -> None:
    samples = [sample(agent, float(n)) for n, agent in enumerate("abaaba")]
    assert [float(s.advantages[0]) for s in select_first_per_agent(samples, 2)] == [0.0, 1.0, 2.0, 4.0]
    assert select_first_per_agent(samples, 0) == []


class TestWhatTheKLOfAnUpdateIsMeasuredOn:
    @staticmethod
    def batch(sizes: Mapping[str, Sequence[int]]) -> list[Sample]:
        return [
            Sample(make_action(agent, sample=n, tokens=tuple(range(size))), 1.0, np.zeros(1))
            for agent, mine in sizes.items()
            for n, size in enumerate(mine)
        ]

    def test_whole_actions_of_each_agent_are_drawn_until_they_hold_256_tokens(self) -> None:
        batch = self.batch({"planner": [30] * 40, "coder": [7] * 20})
        chosen = sample_per_agent(batch, 4, 0, 3)
        assert Counter(s.action.agent for s in chosen) == {"planner": 9, "coder": 20}
        assert [s.action.key for s in chosen] == [s.action.key for s in sample_per_agent(batch, 4, 0, 3)]
        assert {s.action.key for s in chosen} != {s.action.key for s in sample_per_agent(batch, 4, 0, 4)}
        assert {s.action.key for s in chosen} != {s.action.key for s in sample_per_agent(batch, 4, 1, 3)}

    def test_of_long_ones_there_are_four(self) -> None:
        assert len(sample_per_agent(self.batch({"planner": [2000] * 9}), 4, 0, 0)) == 4
        assert sample_per_agent([], 4, 0, 0) == []
        assert sample_per_agent(self.batch({"planner": [2000] * 9}), 0, 0, 0) == []

    def test_of_several_actions_as_many_are_taken_as_reach_256_tokens_and_none_beyond(self) -> None:
        assert len(sample_per_agent(self.batch({"planner": [64] * 9}), 4, 0, 0)) == 4
        assert len(sample_per_agent(self.batch({"planner": [51] * 20}), 4, 0, 0)) == 6, "five have 255"

    def test_the_draw_is_the_same_in_every_version_and_another_for_each_agent(self) -> None:
        """Agents come in the order of their names."""
        batch = self.batch(dict.fromkeys("hgfedcba", [500] * 6))
        chosen = sample_per_agent(batch, 4, 3, 2)
        drawn = {agent: [s.action.key.sample for s in chosen if s.action.agent == agent] for agent in "abcdefgh"}
        assert [s.action.agent for s in chosen] == sorted(s.action.agent for s in chosen)
        assert drawn["a"] == [0, 3, 1, 2]
        assert len(set(map(tuple, drawn.values()))) > 4

    def test_the_team_weighs_agents_by_all_of_their_tokens(self) -> None:
        batch = self.batch({"a": [1, 1, 1], "b": [1]})
        old = {sample.action.key: np.full(1, -2.0) for sample in batch}
        after = {sample.action.key: np.full(1, d - 2.0) for sample, d in zip(batch, (0.5, 0.5, 0.0, 1.0), strict=True)}
        del after[batch[2].action.key]
        meter = MetricAccumulator()
        measure_kl(meter, batch, old, after)
        a, b = (math.exp(d) - 1 - d for d in (0.5, 1.0))
        assert meter.means() == pytest.approx({"agents/a/kl": a, "agents/b/kl": b, "kl": (3 * a + b) / 4})
        assert meter.total("kl") == pytest.approx(3 * a + b)


def test_kl_to_the_base_is_a_mean_of_k3_over_tokens() -> None:
    one, two, other = (Sample(make_action(a, sample=n), 1.0, np.zeros(1)) for n, a in enumerate("aab"))
    old = {one.action.key: np.array([-1.0, -2.0]), two.action.key: np.array([-1.0]), other.action.key: np.array([-3.0])}
    base = {
        one.action.key: np.array([-1.5, -1.0]),
        two.action.key: np.array([-1.0]),
        other.action.key: np.array([-5.0]),
    }
    meter = MetricAccumulator()
    measure_base_kl(meter, [one, two, other], old, base)
    a, b = (sum(math.exp(d) - 1 - d for d in rows) for rows in ((-0.5, 1.0, 0.0), (-2.0,)))
    assert meter.means() == pytest.approx(
        {"kl_to_base": (a + b) / 4, "agents/a/kl_to_base": a / 3, "agents/b/kl_to_base": b}
        | {"base_surprisal": 8.5 / 4, "agents/a/base_surprisal": 3.5 / 3, "agents/b/base_surprisal": 5.0}
    )


def test_k3_is_cut_at_20_nats_on_both_sides() -> None:
    far = torch.tensor([-50.0, 50.0], dtype=torch.float64)
    assert k3_estimate(far).tolist() == pytest.approx([19.0 + math.exp(-20.0), math.exp(20.0) - 21.0])
