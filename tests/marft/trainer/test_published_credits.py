"""Credits as their papers have them: KL still to come, returns from the turn on, costs in every mode, weights that
cannot cancel learning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.common.types import Action, Episode, Fork, Observation, Task, Transition
from marft.config import load_recipe
from marft.config.interfaces.credit import CreditInputs, CreditOutput, Level
from marft.trainer.credit.batch import Batch
from marft.trainer.credit.comam import CoMAM
from marft.trainer.credit.magrpo import MAGRPO
from tests import references_credit as slow
from tests.episodes import make_action
from tests.marft.trainer.test_credit import batches
from tests.nights import MANY
from tests.satellites import NEEDS_ENVS

COST = st.floats(-1, 1, allow_nan=False, width=32)


def numbers(credits: CreditOutput) -> list[float]:
    return [float(x) for row in credits.advantages for x in row]


def two_turns(sample: int, rewards: tuple[float, float], own: float = 0.0) -> Episode:
    """A reasoner and an actor, twice."""
    actions = tuple(
        make_action(agent, step=step, index=2 * step + k, sample=sample)
        for step in (0, 1) for k, agent in enumerate("ab")
    )  # fmt: skip
    paid = (
        Transition(Observation("o"), rewards[0], {"a": own} if own else {}),
        Transition(Observation("o"), rewards[1]),
    )
    return Episode(Task("t", "o"), "train/0", sample, actions, "terminated", paid)


class TestReinforcePlusPlus:
    @pytest.mark.slow
    @given(batch=batches(), level=st.sampled_from(["action", "token"]), whiten=st.booleans(), data=st.data())
    @settings(max_examples=MANY)
    def test_it_equals_the_slow_reference(
        self, batch: list[Episode], level: Level, whiten: bool, data: st.DataObject
    ) -> None:
        inputs = CreditInputs(batch, level)
        flat = [data.draw(st.lists(COST, min_size=size, max_size=size)) for size in inputs.sizes()]
        trained = data.draw(st.sampled_from([("a", "b", "c", "d"), ("a", "c"), ("b",)]))
        paid = replace(inputs, costs=[np.array(row) for row in flat], trained=trained)
        rows, by_episode = iter(flat), []
        for episode in batch:
            by_episode.append([next(rows) for _ in episode.actions])
        expected = slow.reinforce_plus_plus(batch, by_episode, trained, whiten)
        np.testing.assert_allclose(numbers(Batch(whiten=whiten).assign(paid)), expected, rtol=1e-6, atol=1e-6)

    def test_a_token_pays_for_the_kl_still_to_come_and_for_none_before_it(self) -> None:
        action = make_action(tokens=(1, 2, 3))
        episode = Episode(
            Task("t", "o"), "train/0", 0, (action,), "terminated", (Transition(Observation("o"), 1.0),)
        )  # fmt: skip
        paid = CreditInputs([episode], "token", costs=[np.array([0.1, 0.2, 0.4])])
        np.testing.assert_allclose(Batch(whiten=False).assign(paid).advantages[0], [0.3, 0.4, 0.6])

    def test_long_answers_weigh_by_their_tokens_in_the_mean(self) -> None:
        """One right answer of one token, one wrong of three: whitened over tokens, not over episodes."""
        batch = [
            Episode(
                Task("t", "o"), "train/0", n, (make_action(tokens=tokens, sample=n),), "terminated",
                (Transition(Observation("o"), reward),),
            )
            for n, (tokens, reward) in enumerate([((1,), 1.0), ((1, 2, 3), 0.0)])
        ]  # fmt: skip
        advantages = numbers(Batch().assign(CreditInputs(batch, "token")))
        np.testing.assert_allclose(advantages, [1.5, -0.5, -0.5, -0.5], rtol=1e-6)

    def test_a_frozen_teammates_words_take_no_part_in_whitening(self) -> None:
        batch = [two_turns(n, (0.0, reward)) for n, reward in enumerate((1.0, 0.0))]
        chatty = [
            replace(
                e,
                actions=tuple(
                    replace(make_action("b", step=a.step, index=a.index, tokens=(1,) * 9)) if a.agent == "b" and not n
                    else a for a in e.actions
                ),
            )
            for n, e in enumerate(batch)
        ]  # fmt: skip

        def of_a(episodes: list[Episode]) -> list[float]:
            credits = Batch().assign(CreditInputs(episodes, "token", trained={"a"}))
            actions = [action for e in episodes for action in e.actions]
            return [x for row, a in zip(credits.advantages, actions, strict=True) if a.agent == "a" for x in row]

        assert of_a(chatty) == of_a(batch)


class TestMAGRPO:
    @pytest.mark.slow
    @given(batch=batches(), scale=st.booleans(), data=st.data())
    @settings(max_examples=MANY)
    def test_it_equals_the_slow_reference(self, batch: list[Episode], scale: bool, data: st.DataObject) -> None:
        costs = [[data.draw(COST) for _ in e.actions] for e in batch]
        inputs = CreditInputs(batch, "action", costs=[np.array([c]) for row in costs for c in row])
        expected = slow.magrpo(batch, costs, scale)
        np.testing.assert_allclose(numbers(MAGRPO(scale_rewards=scale).assign(inputs)), expected, rtol=1e-6, atol=1e-6)

    def test_a_small_difference_in_what_was_earned_is_one(self) -> None:
        batch = [two_turns(n, (0.0, 1.0 + 1e-4 * n)) for n in range(2)]
        assert numbers(MAGRPO().assign(CreditInputs(batch, "action"))) == pytest.approx([-5e-5] * 4 + [5e-5] * 4)

    def test_a_turn_is_not_credited_with_what_was_earned_before_it(self) -> None:
        """The first turn told the two apart; the second earned the same in both."""
        batch = [two_turns(0, (1.0, 1.0)), two_turns(1, (0.0, 1.0))]
        credits = MAGRPO().assign(CreditInputs(batch, "action"))
        assert numbers(credits) == [0.5, 0.5, 0.0, 0.0, -0.5, -0.5, 0.0, 0.0]
        assert credits.metrics["groups"] == 2
        assert credits.metrics["zero_variance_groups"] == 1

    def test_crossed_samples_pay_their_kl_and_differences_in_kl_alone_are_no_signal(self) -> None:
        def crossed(rewards: dict[tuple[int, int], float], prices: tuple[float, float]) -> list[float]:
            first, second = ([make_action(x, sample=s, index=i) for s in (0, 1)] for i, x in enumerate("ab"))
            batch, costs = [], []
            for (i, j), reward in rewards.items():
                actions: tuple[Action, ...] = (first[i], second[j])
                batch.append(Episode(Task("t", "o"), "train/0", i, actions, "terminated",
                                     (Transition(Observation("o"), reward),), fork=None if i == j else Fork("x", "")))  # fmt: skip
                costs += [np.array([prices[i]]), np.array([0.0])]
            credits = MAGRPO(joint_mode="cross", scale_rewards=True).assign(CreditInputs(batch, "action", costs=costs))
            return [x for x, trained in zip(numbers(credits), credits.trained, strict=True) if trained]

        grid = [(0, 0), (1, 1), (0, 1), (1, 0)]
        assert crossed(dict.fromkeys(grid, 1.0), (1e-5, 3e-5)) == [0.0] * 4
        paid = crossed({(0, 0): 1.0, (0, 1): 1.0, (1, 0): 0.0, (1, 1): 0.0}, (0.25, 0.0))
        assert paid[0] > 0  # a's first sample earns more, and still more once it has paid


class TestCoMAM:
    def batch(self, own: tuple[float, float] = (0.0, 0.0)) -> list[Episode]:
        return [two_turns(n, (0.0, reward), own[n]) for n, reward in enumerate((1.0, 0.0))]

    def test_an_agent_without_a_signal_of_its_own_learns_from_the_teams(self) -> None:
        credits = CoMAM(scale_rewards=False).assign(CreditInputs(self.batch(), "action"))
        assert numbers(credits) == [0.5] * 4 + [-0.5] * 4
        assert credits.metrics["groups_without_local_signal"] == 2
        assert credits.metrics["global_weight"] == 1.0

    def test_the_weight_without_a_signal_is_a_setting(self) -> None:
        assert numbers(CoMAM(fallback_weight=0.0).assign(CreditInputs(self.batch(), "action"))) == [0.0] * 8
        quarter = CoMAM(scale_rewards=False, fallback_weight=0.5).assign(CreditInputs(self.batch(), "action"))
        assert numbers(quarter)[0] == pytest.approx(0.25)

    def test_a_signal_that_ranks_against_the_team_leaves_the_teams_out(self) -> None:
        """Agent a is paid for what the team loses by; b has no rewards of its own."""
        credits = CoMAM(scale_rewards=False).assign(CreditInputs(self.batch(own=(-2.0, 2.0)), "action"))
        assert numbers(credits)[:2] == [-2.0, 0.5]
        assert credits.metrics["groups_without_local_signal"] == 1

    def test_a_fixed_weight_is_whatever_the_group_says_and_of_0_an_agent_learns_from_its_own_reward_alone(self) -> None:
        """Agent a is paid for what the team loses by; b, who has nothing of its own, learns from the team's reward."""
        batch = self.batch(own=(-0.5, 0.5))
        alone = CoMAM(scale_rewards=False, fixed_weights={"a": 0.0}).assign(CreditInputs(batch, "action"))
        assert numbers(alone)[:2] == [-0.5, 0.5]
        shared = CoMAM(scale_rewards=False, fixed_weights={"a": 2.0}).assign(CreditInputs(batch, "action"))
        assert numbers(shared)[:2] == [0.5, 0.5]
        silent = CoMAM(fixed_weights={"a": 0.0}).assign(CreditInputs(self.batch(), "action"))
        assert numbers(silent)[0] == 0.0 != numbers(silent)[1]
        assert silent.metrics["agents/a/fallback_fraction"] == 0.0

    def test_of_two_attempts_in_reverse_order_ndcg_still_lets_the_team_in(self) -> None:
        credits = CoMAM(scale_rewards=False, consistency="ndcg").assign(
            CreditInputs(self.batch(own=(-2.0, 2.0)), "action")
        )
        assert numbers(credits)[0] == pytest.approx(-2.0 + 0.5 / np.log2(3))

    def test_weights_are_told_for_each_agent_over_groups_in_which_the_team_earns_differently(self) -> None:
        """In t both rank alike; in u the team always earns the same, so that no weight of it matters there."""
        alike = self.batch(own=(2.0, -2.0))
        same = [replace(two_turns(n, (0.0, 1.0), own), task=Task("u", "o")) for n, own in enumerate((1.0, -1.0))]
        metrics = CoMAM(fallback_weight=0.25).assign(CreditInputs([*alike, *same], "action")).metrics
        assert metrics["agents/a/global_weight"] == pytest.approx(1.0)
        assert metrics["agents/b/global_weight"] == 0.25
        assert metrics["global_weight"] == pytest.approx(0.625)
        assert (metrics["agents/a/fallback_fraction"], metrics["agents/b/fallback_fraction"]) == (0.0, 1.0)
        assert metrics["fallback_fraction"] == 0.5
        assert metrics["groups_without_local_signal"] == 2
        assert "global_weight" not in CoMAM().assign(CreditInputs(same, "action")).metrics

    @NEEDS_ENVS
    def test_a_fixed_weight_of_nobody_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"fixed_weights: no agent is called 'writr'; did you mean 'writer'\?"):
            load_recipe("memory", changes={"algorithm.credit.fixed_weights": {"writr": 0.0}})
