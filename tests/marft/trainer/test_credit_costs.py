"""What costs do to each credit, what is counted beside the advantages, and groups too small or too alike to compare."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from marft.common.token_data import TokenSource
from marft.common.types import Episode, Fork, Observation, Task, Transition
from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput, Values
from marft.trainer.credit.agent_group import AgentGroup
from marft.trainer.credit.batch import Batch
from marft.trainer.credit.comam import CoMAM
from marft.trainer.credit.counterfactual import Counterfactual
from marft.trainer.credit.grpo import GRPO
from marft.trainer.credit.magrpo import MAGRPO
from marft.trainer.credit.preference_tree import PreferenceTree
from marft.trainer.credit.rae import RAE
from marft.trainer.credit.rloo import RLOO
from marft.trainer.credit.step_gae import StepGAE
from marft.trainer.credit.tree import Tree
from tests.episodes import make_action

COSTS = [(0.1, 0.2), (0.4, 0.8), (1.6, 3.2)]  # of a's and b's action in each of three episodes
REWARDS = (1.0, 0.0, 5.0)


def pair(sample: int, reward: float, fork: Fork | None = None) -> Episode:
    actions = tuple(make_action(agent, index=k, sample=sample) for k, agent in enumerate("ab"))
    transitions = (Transition(Observation("o"), reward),)
    return Episode(Task("t", "o"), "train/0", sample, actions, "terminated", transitions, fork=fork)


def inputs(rewards: tuple[float, ...] = REWARDS) -> CreditInputs:
    costs = [np.array([cost]) for row in COSTS[: len(rewards)] for cost in row]
    return CreditInputs([pair(n, reward) for n, reward in enumerate(rewards)], "action", costs=costs)


def numbers(credits: CreditOutput) -> list[float]:
    return [float(x) for row in credits.advantages for x in row]


class TestCosts:
    NET = [reward - sum(costs) for reward, costs in zip(REWARDS, COSTS, strict=True)]

    def test_an_episode_pays_for_its_own_actions_and_no_others(self) -> None:
        mean = sum(self.NET) / 3
        expected = [net - mean for net in self.NET for _ in "ab"]
        assert numbers(GRPO(scale_rewards=False).assign(inputs())) == pytest.approx(expected, rel=1e-12)

    def test_leaving_one_out_the_others_have_paid_as_well(self) -> None:
        expected = [net - (sum(self.NET) - net) / 2 for net in self.NET for _ in "ab"]
        assert numbers(RLOO().assign(inputs())) == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize(
        "credit", [AgentGroup(scale_rewards=False), Tree(scale_rewards=False), CoMAM(scale_rewards=False)]
    )
    def test_an_agent_judged_by_itself_pays_for_its_own_actions(self, credit: Credit) -> None:
        of_a, of_b = ([reward - costs[k] for reward, costs in zip(REWARDS, COSTS, strict=True)] for k in (0, 1))
        expected = [x for a, b in zip(of_a, of_b, strict=True) for x in (a - sum(of_a) / 3, b - sum(of_b) / 3)]
        assert numbers(credit.assign(inputs())) == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("compared", ["state", "agent", "turn"])
    def test_a_candidate_pays_its_own_costs_where_others_are_no_candidates(self, compared: str) -> None:
        """b's actions are the candidates; a's, which come before them, were carried over."""
        forks = [pair(n, reward, Fork("root", "0/b/0")) for n, reward in enumerate(REWARDS)]
        costs = [np.array([cost]) for row in COSTS for cost in row]
        credits = Tree(scale_rewards=False, group_by=compared).assign(CreditInputs(forks, "action", costs=costs))  # type: ignore[arg-type]
        left = [reward - costs[1] for reward, costs in zip(REWARDS, COSTS, strict=True)]
        expected = [x for one in left for x in (0.0, one - sum(left) / 3)]
        assert numbers(credits) == pytest.approx(expected, rel=1e-12)

    def test_a_pair_of_candidates_is_ordered_by_their_own_costs(self) -> None:
        """Of b's two best candidates, which earned the same, the cheaper one is preferred, whatever a's cost."""
        forks = [pair(n, reward, Fork("root", "0/b/0")) for n, reward in enumerate((1.0, 1.0, 0.0))]
        costs = [np.array([cost]) for cost in (0.1, 0.8, 0.4, 0.2, 0.0, 0.0)]
        credits = PreferenceTree().assign(CreditInputs(forks, "action", costs=costs))
        assert numbers(credits) == [0.0, 0.0, 0.0, 1.0, 0.0, -1.0]

    def test_it_pays_in_whole_whatever_the_teams_reward_weighs(self) -> None:
        weights = (0.5, 0.25)
        left = [
            [w * reward - costs[k] for reward, costs in zip(REWARDS, COSTS, strict=True)] for k, w in enumerate(weights)
        ]
        credit = CoMAM(scale_rewards=False, fixed_weights=dict(zip("ab", weights, strict=True)))
        expected = [x for a, b in zip(*left, strict=True) for x in (a - sum(left[0]) / 3, b - sum(left[1]) / 3)]
        assert numbers(credit.assign(inputs())) == pytest.approx(expected, rel=1e-12)

    def test_rewards_that_differ_by_rounding_alone_have_no_weight(self) -> None:
        assert "global_weight" in CoMAM().assign(inputs((1.0, 2.0))).metrics
        assert "global_weight" not in CoMAM().assign(inputs((1.0, 1.0 + 1e-13))).metrics

    def test_candidates_that_earned_the_same_are_not_told_apart_by_their_costs(self) -> None:
        assert numbers(Tree().assign(inputs((1.0, 1.0, 1.0)))) == [0.0] * 6

    def test_a_running_baseline_is_that_of_what_was_left(self) -> None:
        credit = RAE(decay=0.5)
        assert numbers(credit.assign(inputs((1.0,)))) == pytest.approx([0.9, 0.8])
        assert credit.state_dict() == pytest.approx({"a": 0.45, "b": 0.4})
        again = credit.assign(inputs((1.0,)))
        assert numbers(again) == pytest.approx([0.9 - 0.45, 0.8 - 0.4])
        assert again.metrics == pytest.approx({"agents/a/baseline": 0.675, "agents/b/baseline": 0.6})

    def test_steps_pay_for_their_own_actions(self) -> None:
        """Two episodes of two steps, in the second of which both agents act; without values and discounts the
        advantage is what is left from the step on, whatever the critic's λ."""
        batch, costs = [], []
        for n in range(2):
            said = [("a", 0), ("a", 1), ("b", 1)]
            actions = tuple(make_action(agent, step=step, index=k, sample=n) for k, (agent, step) in enumerate(said))
            paid = (Transition(Observation("o"), 1.0 + n), Transition(Observation("o"), 10.0, {"b": 0.5}))
            batch.append(Episode(Task("t", "o"), "train/0", n, actions, "terminated", paid))
            costs += [np.array([0.1 * 2 ** (3 * n + k)]) for k in range(3)]
        zeros = Values([np.zeros(1)] * 6)
        credits = StepGAE(gamma_step=1.0, lambda_step=1.0, lambda_critic=0.0).assign(
            CreditInputs(batch, "action", zeros, costs=costs)
        )
        first, second = 10.5 - 0.2 - 0.4, 10.5 - 1.6 - 3.2
        left = [1.0 - 0.1 + first, first, first, 2.0 - 0.8 + second, second, second]
        assert numbers(credits) == pytest.approx(left, rel=1e-12)
        assert [float(row[0]) for row in credits.monte_carlo] == pytest.approx(left, rel=1e-12)
        assert [float(row[0]) for row in credits.returns] == pytest.approx(
            [0.9, first, first, 1.2, second, second], rel=1e-12
        )


def test_whole_returns_are_what_was_earned_whatever_the_critic_thinks() -> None:
    """With λ = 1 and nothing discounted values telescope: what an advantage takes off, its return puts back."""
    actions = tuple(make_action("a", step=step, index=step) for step in range(2))
    paid = (Transition(Observation("o"), 1.0), Transition(Observation("o"), 10.0))
    episode = Episode(Task("t", "o"), "train/0", 0, actions, "terminated", paid)
    values = Values([np.array([0.25]), np.array([4.0])])
    credits = StepGAE(gamma_step=1.0, lambda_step=0.0).assign(CreditInputs([episode], "action", values))
    assert [float(row[0]) for row in credits.returns] == pytest.approx([11.0, 10.0])
    assert [float(row[0]) for row in credits.monte_carlo] == pytest.approx([11.0, 10.0])
    assert numbers(credits) == pytest.approx([1.0 + 4.0 - 0.25, 10.0 - 4.0])


class TestCounted:
    def test_groups_are_counted_with_their_sizes(self) -> None:
        batch = [pair(0, 1.0), pair(1, 0.0), pair(2, 1.0), replace(pair(3, 1.0), task=Task("alone", "o"))]
        assert GRPO().assign(CreditInputs(batch, "action")).metrics == {
            "groups": 2.0, "singleton_groups": 1.0, "zero_variance_groups": 0.0, "group_size": 2.0, "group_size_min": 1.0
        }  # fmt: skip

    @pytest.mark.parametrize("credit", [GRPO(), RLOO(), AgentGroup(), MAGRPO(), CoMAM(), Tree(), Batch()])
    def test_where_nothing_was_played_nothing_is_counted(self, credit: Credit) -> None:
        credits = credit.assign(CreditInputs([], "action"))
        assert set(credits.metrics.values()) == {0.0}
        assert len(credits.advantages) == 0

    def test_whitened_and_crossed_credits_count_their_groups_too(self) -> None:
        assert Batch().assign(inputs()).metrics["group_size"] == 3.0
        crossed = [pair(0, 1.0), pair(1, 0.0), replace(pair(0, 0.0), fork=Fork("x", ""))]
        assert MAGRPO(joint_mode="cross").assign(CreditInputs(crossed, "action")).metrics["groups"] == 2.0

    def test_an_action_whose_re_samples_all_failed_is_counted_and_one_that_nobody_re_sampled_is_not(self) -> None:
        """a is re-sampled in both episodes, of which one fork was lost; b is frozen."""
        first, second = pair(0, 1.0), pair(1, 1.0)
        fork = pair(0, 0.0, Fork(first.name, "0/a/0"))
        credits = Counterfactual().assign(CreditInputs([first, second, fork], "action"))
        assert credits.metrics["singleton_groups"] == 1.0
        assert numbers(credits) == [1.0, 0.0, 0.0, 0.0, -1.0, 0.0]
        assert credits.trained == [True, True, True, True, True, False]

    def test_what_a_teammate_said_after_a_fork_has_nothing_to_be_compared_with_and_is_not_counted(self) -> None:
        """Both agents are re-sampled, a twice; b's answers to the new messages are nobody's re-samples."""
        first = pair(0, 1.0)
        forks = [pair(0, reward, Fork(first.name, f"0/{at}/0")) for at, reward in (("a", 0.0), ("a", 0.5), ("b", 0.75))]
        credits = Counterfactual().assign(CreditInputs([first, *forks], "action"))
        assert credits.metrics["singleton_groups"] == 0.0
        assert numbers(credits) == [1.0 - 0.25, 1.0 - 0.75, 0.0 - 0.75, 0.0, 0.5 - 0.5, 0.0, 0.0, 0.75 - 1.0]


class TestSmallGroups:
    @pytest.mark.parametrize("credit", [GRPO(), AgentGroup(), Tree()])
    def test_differences_that_are_hardly_more_than_rounding_are_damped(self, credit: Credit) -> None:
        """Over their own deviation they would be as large as any: ±0.7071."""
        advantages = numbers(credit.assign(CreditInputs([pair(0, 0.0), pair(1, 4e-8)], "action")))
        deviation = 4e-8 / math.sqrt(2)
        assert advantages == pytest.approx([-2e-8 / (deviation + 1e-8)] * 2 + [2e-8 / (deviation + 1e-8)] * 2)

    def test_whitening_damps_them_too(self) -> None:
        alike = CreditInputs([pair(0, 0.0), pair(1, 4e-8)], "action", trained={"a"})
        expected = 2e-8 / (4e-8 / math.sqrt(2) + 1e-8)
        assert numbers(Batch().assign(alike)) == pytest.approx([-expected] * 2 + [expected] * 2)

    def test_a_lone_trained_decision_is_nothing_to_whiten_by_and_two_are(self) -> None:
        batch = [pair(0, 1.0), pair(1, 0.0)]
        silent = [batch[0], replace(batch[1], actions=batch[1].actions[1:])]
        lone = Batch().assign(CreditInputs(silent, "action", trained={"a"}))
        assert float(lone.advantages[0][0]) == 0.0
        two = Batch().assign(CreditInputs(batch, "action", trained={"a"}))
        assert numbers(two)[0] == pytest.approx(math.sqrt(0.5))


def test_candidates_that_go_on_from_different_beginnings_are_not_compared() -> None:
    """Same prompt, but a teammate began their turns with other words."""
    batch = []
    for number, (begun, reward) in enumerate([(1, 1.0), (1, 1.0), (2, 0.0), (2, 0.0)]):
        marks = (TokenSource.TEAMMATE, TokenSource.SAMPLED, TokenSource.SAMPLED)
        action = make_action("a", tokens=(begun, 7 + number, 3), marks=marks, sample=number)
        paid = (Transition(Observation("o"), reward),)
        batch.append(
            Episode(Task("t", "o"), "train/0", number, (action,), "terminated", paid, fork=Fork("root", "0/a/0"))
        )
    credits = Tree().assign(CreditInputs(batch, "action"))
    assert numbers(credits) == [0.0] * 4
    assert (credits.metrics["groups"], credits.metrics["zero_variance_groups"]) == (2.0, 2.0)
