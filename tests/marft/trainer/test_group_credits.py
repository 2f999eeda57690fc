"""MaxRL and GDPO against slow references, and what they refuse."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.common.errors import UserError
from marft.common.types import Episode, Observation, Task, Transition
from marft.config import load_recipe
from marft.config.interfaces.credit import CreditInputs, CreditOutput
from marft.trainer.credit.gdpo import GDPO
from marft.trainer.credit.grpo import GRPO
from marft.trainer.credit.maxrl import MaxRL
from tests.episodes import make_action


def episode(task: str, sample: int, reward: float, terms: Mapping[str, float] = {}) -> Episode:
    action = make_action("solver", sample=sample, tokens=(1, 2))
    transition = Transition(Observation("o"), reward, terms=dict(terms))
    return Episode(Task(task, "…"), "train/0", sample, (action,), "terminated", (transition,))


def rated(credit: MaxRL | GDPO | GRPO, episodes: Sequence[Episode]) -> tuple[list[float], CreditOutput]:
    """Return the advantage of each episode; all of its decisions have the same."""
    output = credit.assign(CreditInputs(episodes, "token"))
    for row in output.advantages:
        assert len(row) == 2
        assert row[0] == row[1]
    return [float(row[0]) for row in output.advantages], output


class TestMaxRL:
    @given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=6), min_size=1, max_size=4))
    def test_an_advantage_is_the_distance_from_the_mean_in_units_of_it(self, tasks: list[list[float]]) -> None:
        batch = [episode(str(t), n, reward) for t, group in enumerate(tasks) for n, reward in enumerate(group)]
        found, _ = rated(MaxRL(), batch)
        for one, advantage in zip(batch, found, strict=True):
            group = tasks[int(one.task.id)]
            mean = sum(group) / len(group)
            if max(group) - min(group) < 1e-7:
                assert advantage == pytest.approx(0, abs=1e-6)
            else:
                assert advantage == pytest.approx((one.total_reward - mean) / mean, rel=1e-9, abs=1e-12)

    def test_a_task_that_is_seldom_solved_weighs_more(self) -> None:
        batch = [episode("hard", n, float(n == 0)) for n in range(8)] + [episode("easy", n, n < 7) for n in range(8)]
        found, output = rated(MaxRL(), batch)
        assert found[0] == pytest.approx(7)
        assert found[8] == pytest.approx(1 / 7)
        assert output.groups == ["hard"] * 8 + ["easy"] * 8

    def test_the_estimate_is_the_gradient_of_the_truncated_likelihood(self) -> None:
        """Of one Bernoulli parameter: E[Σ A ∂ log π] / N over all groups of N is Σ_{k < N − 1} (1 − p)^k.

        These are the first N − 1 terms of ∂ log p = 1 / p. Without a baseline the estimate has one more; groups that
        earn nothing would need advantages of −1 to keep it.
        """
        size, p = 4, 0.3
        total = 0.0
        for outcome in range(2**size):
            rewards = [float(outcome >> n & 1) for n in range(size)]
            weight = float(np.prod([p if reward else 1 - p for reward in rewards]))
            found, _ = rated(MaxRL(), [episode("t", n, reward) for n, reward in enumerate(rewards)])
            scores = [1 / p if reward else -1 / (1 - p) for reward in rewards]
            total += weight * sum(a * s for a, s in zip(found, scores, strict=True)) / size
        assert total == pytest.approx(sum((1 - p) ** k for k in range(size - 1)), rel=1e-9)

    @pytest.mark.parametrize("reward", [-0.5, 1.5])
    def test_rewards_outside_of_0_and_1_are_refused(self, reward: float) -> None:
        with pytest.raises(UserError, match="between 0 and 1"):
            rated(MaxRL(), [episode("t", 0, 1.0), episode("t", 1, reward)])


class TestGDPO:
    def test_combinations_that_earn_the_same_sum_differ(self) -> None:
        """Right and badly formed in an easy task, wrong and well formed: GRPO sees 1 in both."""
        kinds = [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (1.0, 1.0)]
        batch = [episode("t", n, a + b, {"outcome": a, "format": b}) for n, (a, b) in enumerate(kinds)]
        batch += [episode("u", n, float(n), {"outcome": float(n), "format": 0.0}) for n in range(4)]
        same, _ = rated(GRPO(), batch)
        assert same[0] == same[1]
        weighted, _ = rated(GDPO(weights={"format": 0.25}), batch)
        assert weighted[0] > weighted[1]

    @given(st.lists(st.lists(st.tuples(*[st.floats(-3, 3)] * 2), min_size=2, max_size=5), min_size=1, max_size=3))
    def test_each_term_is_normalized_in_its_group_and_the_sum_over_the_batch(
        self, tasks: list[list[tuple[float, float]]]
    ) -> None:
        batch = [
            episode(str(t), n, a + b, {"a": a, "b": b})
            for t, group in enumerate(tasks)
            for n, (a, b) in enumerate(group)
        ]
        sums = []
        for group in tasks:
            columns = []
            for values in zip(*group, strict=True):
                flat = max(values) - min(values) < 1e-8
                spread = statistics.stdev(values) + 1e-8
                columns.append([0.0 if flat else (v - statistics.fmean(values)) / spread for v in values])
            sums += [sum(row) for row in zip(*columns, strict=True)]
        spread = statistics.stdev(sums) + 1e-8
        expected = [(value - statistics.fmean(sums)) / spread for value in sums]
        found, _ = rated(GDPO(), batch)
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)

    def test_terms_of_single_agents_count_with_their_term(self) -> None:
        apart = [episode("t", n, float(n), {"format": 0.0, "format/solver": float(n)}) for n in range(3)]
        joint = [episode("t", n, float(n), {"format": float(n)}) for n in range(3)]
        assert rated(GDPO(), apart)[0] == rated(GDPO(), joint)[0]

    def test_without_terms_the_whole_reward_is_one(self) -> None:
        batch = [episode("t", n, reward) for n, reward in enumerate((0.0, 1.0, 5.0))]
        found, _ = rated(GDPO(), batch)
        assert found == pytest.approx(rated(GRPO(), batch)[0], rel=1e-6)
        assert rated(GDPO(), [batch[0]])[0] == [0.0]

    def test_a_term_that_only_some_episodes_have_counts_0_in_the_others(self) -> None:
        batch = [episode("t", 0, 1.0, {"a": 1.0}), episode("t", 1, 2.0, {"b": 2.0})]
        padded = [episode("t", 0, 1.0, {"a": 1.0, "b": 0.0}), episode("t", 1, 2.0, {"a": 0.0, "b": 2.0})]
        assert rated(GDPO(), batch)[0] == rated(GDPO(), padded)[0]


@pytest.mark.parametrize("name", ["maxrl", "gdpo"])
def test_a_cost_of_single_actions_has_no_place(name: str) -> None:
    kl = {"coefficient": 0.1, "apply_to": "reward", "estimator": "k1"}
    with pytest.raises(UserError, match="no place for a cost"):
        load_recipe("demo_token", changes={"algorithm": {"name": name, "kl": kl}})


def test_episodes_are_not_changed() -> None:
    batch = [episode("t", n, float(n), {"a": float(n)}) for n in range(2)]
    before = [replace(one) for one in batch]
    rated(GDPO(), batch)
    assert [one.total_reward for one in batch] == [one.total_reward for one in before]
