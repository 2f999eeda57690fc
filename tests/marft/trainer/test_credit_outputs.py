"""What each credit returns beside its advantages: names of groups, trained actions, weighted pairs and metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import date

import numpy as np
import pytest

from marft.common.token_data import GrammarMasks, single_token_mask
from marft.common.types import ActionKey, Episode, Fork, Observation, Task, Transition
from marft.config.algorithm import AlgorithmSettings
from marft.config.interfaces.credit import Comparison, Credit, CreditInputs
from marft.rollout.fork_plans import CandidateTree
from marft.trainer.credit.agent_group import AgentGroup
from marft.trainer.credit.batch import Batch
from marft.trainer.credit.best import Best
from marft.trainer.credit.comam import CoMAM
from marft.trainer.credit.counterfactual import Counterfactual
from marft.trainer.credit.gae import GAE
from marft.trainer.credit.grpo import GRPO
from marft.trainer.credit.magrpo import MAGRPO
from marft.trainer.credit.monte_carlo import MonteCarlo
from marft.trainer.credit.preference import Preference
from marft.trainer.credit.preference_tree import PreferenceTree
from marft.trainer.credit.rae import RAE
from marft.trainer.credit.rloo import RLOO
from marft.trainer.credit.sides import PairSide, build_pairs, compute_action_weights
from marft.trainer.credit.step_gae import StepGAE
from marft.trainer.credit.tree import Tree
from tests.episodes import make_action


def attempt(
    sample: int, reward: float, *, own: dict[str, float] | None = None, task: str = "t", fork: Fork | None = None
) -> Episode:
    """Agents a and b each act once; no two attempts have the same messages."""
    actions = tuple(
        make_action(agent, index=index, task=task, sample=sample, tokens=(8 + sample, 9))
        for index, agent in enumerate("ab")
    )
    paid = (Transition(Observation("o"), reward, own or {}),)
    return Episode(Task(task, "o"), "train/0", sample, actions, "terminated", paid, success=reward > 0, fork=fork)


def unequal_batch() -> CreditInputs:
    return CreditInputs([attempt(0, 1.0), attempt(1, 0.0)], "action")


class TestGroups:
    @pytest.mark.parametrize("credit", [GRPO(), RLOO(), Best(), Best(select="best"), Preference()])
    def test_whole_attempts_are_grouped_by_task(self, credit: Credit) -> None:
        batch = [attempt(0, 1.0), attempt(1, 0.0), attempt(2, 1.0, task="u")]
        assert credit.assign(CreditInputs(batch, "action")).groups == ["t", "t", "t", "t", "u", "u"]

    @pytest.mark.parametrize(
        "credit",
        [
            AgentGroup(), CoMAM(), Best(select="best", judged_by="own"), Preference(sides="agent"),
            Preference(sides="agent", judged_by="own"),
        ],
    )  # fmt: skip
    def test_parts_of_agents_are_grouped_by_task_and_agent(self, credit: Credit) -> None:
        assert credit.assign(unequal_batch()).groups == ["t a", "t b", "t a", "t b"]

    def test_aligned_magrpo_groups_by_turn_and_crossed_by_agent_and_call(self) -> None:
        assert MAGRPO().assign(unequal_batch()).groups == ["t step 0"] * 4
        assert MAGRPO(joint_mode="cross").assign(unequal_batch()).groups == ["t a 0", "t b 0"] * 2

    def test_whitening_has_one_group_over_all_tasks(self) -> None:
        batch = [attempt(0, 1.0), attempt(1, 0.0, task="u")]
        assert Batch().assign(CreditInputs(batch, "action")).groups == ["batch"] * 4

    def test_resamples_are_grouped_with_the_action_that_they_replace(self) -> None:
        """What b says after a's resample has nothing to be compared with, and is in no group."""
        first = attempt(0, 1.0)
        forks = [attempt(0, 0.0, fork=Fork(first.name, "0/a/0"))]
        credits = Counterfactual().assign(CreditInputs([first, *forks], "action"))
        assert credits.groups == ["train/0 t #0 0/a/0", "train/0 t #0 0/b/0", "train/0 t #0 0/a/0", ""]

    @pytest.mark.parametrize("credit", [Tree(), PreferenceTree()])
    def test_candidates_of_one_state_share_a_group_and_carried_actions_have_none(self, credit: Credit) -> None:
        """a's messages differ, so that b's candidates in the two attempts come from different states."""
        at_a, at_b = ([attempt(n, 1.0 - n, fork=Fork("root", f"0/{role}/0")) for n in range(2)] for role in "ab")
        of_a, of_b = (credit.assign(CreditInputs(batch, "action")).groups for batch in (at_a, at_b))
        assert of_a[1] == of_a[3] == of_b[0] == of_b[2] == ""
        assert of_a[0] == of_a[2]
        assert of_a[0].startswith("t 0/a/0 ")
        assert of_b[1] != of_b[3]
        assert of_b[1].startswith("t 0/b/0 ")

    def test_candidates_compared_by_turn_share_the_group_of_the_turn(self) -> None:
        groups = Tree(group_by="turn").assign(unequal_batch()).groups
        assert len(set(groups)) == 1
        assert groups[0].startswith("t 0 ")

    @pytest.mark.parametrize("credit", [MonteCarlo(), RAE(), Batch(whiten=False)])
    def test_a_credit_that_compares_no_attempts_has_no_groups(self, credit: Credit) -> None:
        assert credit.assign(unequal_batch()).groups == ()


class TestJudgedSeparately:
    """A game between opponents needs a credit in which each agent is judged by its own reward."""

    @pytest.mark.parametrize(
        "credit",
        [
            AgentGroup(), CoMAM(), RAE(), GAE(successor="agent"), MonteCarlo(successor="agent"),
            Best(select="best", judged_by="own"), Preference(sides="agent", judged_by="own"),
        ],
    )  # fmt: skip
    def test_agents_with_their_own_rewards(self, credit: Credit) -> None:
        assert credit.per_agent

    @pytest.mark.parametrize(
        "credit",
        [
            GRPO(), RLOO(), Batch(), MAGRPO(), StepGAE(), Tree(), PreferenceTree(), Counterfactual(), GAE(),
            GAE(successor="graph"), MonteCarlo(), MonteCarlo(successor="graph"),
            Best(), Best(select="best"), Best(judged_by="own"),
            Preference(), Preference(sides="agent"), Preference(judged_by="own"),
        ],
    )  # fmt: skip
    def test_not_agents_that_share_what_the_team_earns(self, credit: Credit) -> None:
        assert not credit.per_agent


class TestSelected:
    def test_groups_are_counted_beside_what_was_kept(self) -> None:
        metrics = Best().assign(unequal_batch()).metrics
        assert (metrics["groups"], metrics["group_size"], metrics["imitation/selected"]) == (1.0, 2.0, 1.0)

    def test_an_attempt_in_which_nobody_is_trained_is_not_kept(self) -> None:
        inputs = CreditInputs([attempt(0, 1.0)], "action", trained={"somebody else"})
        credits = Best().assign(inputs)
        assert credits.metrics["imitation/selected"] == 0.0
        assert not any(credits.trained)

    def test_a_task_keeps_up_to_its_maximum(self) -> None:
        batch = [attempt(n, 1.0) for n in range(4)]
        metrics = Best(max_per_task=3).assign(CreditInputs(batch, "action")).metrics
        assert (metrics["imitation/selected"], metrics["imitation/surplus"]) == (3.0, 1.0)
        assert Best().assign(CreditInputs(batch, "action")).metrics["imitation/selected"] == 4.0

    def test_an_action_without_a_free_decision_is_not_repeated(self) -> None:
        first = attempt(0, 1.0)
        settled = replace(first.actions[1], tokens=np.array([2], np.int32), marks=first.actions[1].marks[:1],
                          masks=GrammarMasks.from_masks([0], [single_token_mask(2)]))  # fmt: skip
        assert settled.is_forced
        batch = [replace(first, actions=(first.actions[0], settled))]
        assert Best().assign(CreditInputs(batch, "action")).trained == [True, False]


def keys_of(count: int) -> list[tuple[ActionKey, ...]]:
    return [(make_action("a", sample=n).key,) for n in range(count)]


def sides_of(rewards: Sequence[float], costs: Sequence[float] | None = None) -> list[PairSide]:
    """Sides of one group, with an action each."""
    counted = costs or [0.0] * len(rewards)
    return [PairSide("t", "", *of) for of in zip(rewards, counted, keys_of(len(rewards)), strict=True)]


class TestPairs:
    def test_gaps_below_one_still_weigh_in_proportion(self) -> None:
        """Pairs 0.5, 0.375 and 0.125 apart weigh 1 on average."""
        found, _ = build_pairs(sides_of([0.5, 0.125, 0.0]), "all", "gap")
        assert [pair.weight for pair in found] == pytest.approx([0.375 * 3, 0.5 * 3, 0.125 * 3])

    def test_a_pair_whose_costs_exceed_its_gap_weighs_nothing_beside_others(self) -> None:
        found, _ = build_pairs(sides_of([3.0, 1.0, 0.0], costs=[0.0, 2.0, 0.0]), "all", "gap")
        assert [pair.weight for pair in found] == pytest.approx([4.0 / (7 / 3), 3.0 / (7 / 3), 0.0])

    def test_where_costs_exceed_every_gap_all_pairs_weigh_one(self) -> None:
        found, _ = build_pairs(sides_of([1.0, 0.5, 0.0], costs=[9.0, 4.0, 0.0]), "all", "gap")
        assert [pair.weight for pair in found] == [1.0, 1.0, 1.0]

    def test_equal_weights_are_one_whatever_the_gap(self) -> None:
        found, _ = build_pairs(sides_of([0.25, 9.0, 0.0]), "all", "equal")
        assert [pair.weight for pair in found] == [1.0, 1.0, 1.0]

    def test_no_sides_make_no_pairs(self) -> None:
        found, metrics = build_pairs([], "all", "gap")
        assert found == []
        assert set(metrics.values()) == {0.0}

    def test_the_weight_of_an_action_is_the_sum_over_its_pairs(self) -> None:
        """The middle attempt is the worse side of one pair and the better side of another."""
        actions = [make_action("a", sample=n) for n in range(4)]
        best, middle, worst, _ = ((action.key,) for action in actions)
        pairs = [Comparison(best, middle, weight=0.5), Comparison(best, worst, weight=1.5),
                 Comparison(middle, worst, weight=0.25)]  # fmt: skip
        weights, paired = compute_action_weights(pairs, actions)
        assert weights.tolist() == [2.0, -0.25, -1.75, 0.0]
        assert paired == [True, True, True, False]

    def test_an_action_without_a_free_decision_is_in_none(self) -> None:
        first, second = attempt(0, 1.0), attempt(1, 0.0)
        settled = replace(first.actions[1], tokens=np.array([2], np.int32), marks=first.actions[1].marks[:1],
                          masks=GrammarMasks.from_masks([0], [single_token_mask(2)]))  # fmt: skip
        batch = [replace(first, actions=(first.actions[0], settled)), second]
        (pair,) = Preference().assign(CreditInputs(batch, "action")).comparisons
        assert [key.agent for key in pair.better] == ["a"]
        assert [key.agent for key in pair.worse] == ["a", "b"]

    def test_what_costs_alone_tell_apart_is_an_equal_pair_of_each_agent(self) -> None:
        batch = [attempt(0, 1.0), attempt(1, 1.0)]
        costs = [np.array([cost]) for cost in (0.5, 0.25, 0.0, 0.0)]
        credits = Preference(sides="agent", judged_by="own").assign(CreditInputs(batch, "action", costs=costs))
        assert credits.comparisons == []
        assert credits.metrics["preference/equal_pairs"] == 2.0

    def test_costs_lessen_the_weight_of_an_agents_pair(self) -> None:
        """Both agents of the better attempt earned 2 more; a paid 1 of it."""
        batch = [attempt(0, 2.0), attempt(1, 0.0)]
        costs = [np.array([cost]) for cost in (1.0, 0.0, 0.0, 0.0)]
        credit = Preference(sides="agent", judged_by="own", weights="gap")
        credits = credit.assign(CreditInputs(batch, "action", costs=costs))
        assert {pair.agent: pair.weight for pair in credits.comparisons} == pytest.approx({"a": 2 / 3, "b": 4 / 3})


class TestPairsOfCandidates:
    def test_a_tree_grows_as_many_candidates_as_asked_and_goes_on_from_the_one_asked(self) -> None:
        assert PreferenceTree(candidates=3, continue_from="first").fork_plan == CandidateTree(3, "first")
        assert Tree(candidates=3, continue_from="first").fork_plan == CandidateTree(3, "first")
        assert PreferenceTree().fork_plan == Tree().fork_plan == CandidateTree(4, "best")

    @pytest.mark.parametrize("credit", ["preference", "preference-tree", "best"])
    def test_weights_of_pairs_are_not_normalized_away(self, credit: str) -> None:
        table = {"name": "marft", "credit": {"name": credit}, "normalize_advantages": True}
        with pytest.raises(ValueError, match="set normalize_advantages = false"):
            AlgorithmSettings.model_validate(table)

    def test_all_pairs_weighted_by_gap(self) -> None:
        """a's three candidates earned 4, 1 and 0; b only completed the step."""
        batch = [attempt(n, reward, fork=Fork("root", "0/a/0")) for n, reward in enumerate((4.0, 1.0, 0.0))]
        credits = PreferenceTree(pairs="all", weights="gap").assign(CreditInputs(batch, "action"))
        found = [(pair.better[0].sample, pair.worse[0].sample, pair.weight) for pair in credits.comparisons]
        mean = (3 + 4 + 1) / 3
        assert found == [(0, 1, 3 / mean), (0, 2, 4 / mean), (1, 2, 1 / mean)]
        assert credits.trained == [True, False] * 3
        assert [float(row[0]) for row in credits.advantages] == pytest.approx([7 / mean, 0, -2 / mean, 0, -5 / mean, 0])

    def test_a_candidate_in_no_pair_is_not_trained(self) -> None:
        """Of three candidates the extremes make the only pair, and pairs and groups are counted."""
        batch = [attempt(n, reward, fork=Fork("root", "0/a/0")) for n, reward in enumerate((4.0, 1.0, 0.0))]
        credits = PreferenceTree().assign(CreditInputs(batch, "action"))
        assert credits.trained == [True, False, False, False, True, False]
        assert (credits.metrics["preference/pairs"], credits.metrics["preference/equal_pairs"]) == (1.0, 0.0)
        assert (credits.metrics["groups"], credits.metrics["group_size"]) == (1.0, 3.0)


class TestBaselines:
    def test_an_agents_baselines_are_averaged_over_its_games(self) -> None:
        credit = RAE(decay=0.0, group_by=("game",))
        batch = [
            replace(attempt(n, reward), task=Task(f"t{n}", "o", data={"game": game}))
            for n, (game, reward) in enumerate([("chess", 1.0), ("go", 0.0), ("hex", 0.5)])
        ]
        metrics = credit.assign(CreditInputs(batch, "action")).metrics
        assert metrics == pytest.approx({"agents/a/baseline": 0.5, "agents/b/baseline": 0.5})

    def test_a_field_that_json_does_not_know_tells_baselines_apart_too(self) -> None:
        credit = RAE(decay=0.0, group_by=("day",))
        batch = [
            replace(attempt(n, float(n)), task=Task("t", "o", data={"day": date(2026, 1, 1 + n)})) for n in range(2)
        ]
        credit.assign(CreditInputs(batch, "action"))
        assert sorted(credit.state_dict().values()) == [0.0, 0.0, 1.0, 1.0]


def test_ndcg_weighs_the_teams_reward_by_its_gain_in_the_order_of_the_agents_own() -> None:
    """a earned most by itself where the team earned least: the team's gains 3, 1, 0 come in reverse."""
    batch = [attempt(n, team, own={"a": own}) for n, (team, own) in enumerate([(0.0, 2.0), (1.0, 1.0), (3.0, 0.0)])]
    metrics = CoMAM(consistency="ndcg").assign(CreditInputs(batch, "action")).metrics
    second = 1 / math.log2(3)
    assert metrics["agents/a/global_weight"] == pytest.approx((second + 3 / 2) / (3 + second))


def test_only_a_credit_with_a_state_of_its_own_keeps_state() -> None:
    assert RAE().keeps_state
    assert not GAE().keeps_state
    assert GAE().state_dict() == {}


def test_only_credits_that_declare_it_follow_policies_updated_before() -> None:
    """A2PO traces advantages through the policies updated before."""
    assert AlgorithmSettings.model_validate({"name": "a2po"}).credit.supports_a2po
    with pytest.raises(ValueError, match="use credit 'step-gae'"):
        AlgorithmSettings.model_validate({"name": "a2po", "credit": {"name": "gae"}})


def test_only_credits_by_rank_refuse_a_length_penalty() -> None:
    penalty = {"overlong_buffer": 8}
    assert AlgorithmSettings.model_validate({"name": "grpo", "reward": penalty}).reward.overlong_buffer == 8
    with pytest.raises(ValueError, match="overlong_buffer: credit 'comam'"):
        AlgorithmSettings.model_validate({"name": "comam", "reward": penalty})
