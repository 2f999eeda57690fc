"""What rewards become before credit: each part where the recipe asks for it, in order, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marft.common.token_data import TokenSource
from marft.common.types import Action, Choice, Episode, Observation, Option, Task, Transition
from marft.config.algorithm import RewardSettings
from marft.rewards.shaping import have_equal_rewards, penalize_overlong, rewards_for_credit
from tests.episodes import make_action


def episode(*actions: Action, own: tuple[float, ...] = (1.0,)) -> Episode:
    paid = tuple(Transition(Observation("o"), 2.0, {"a": reward}) for reward in own)
    return Episode(Task("t", "o"), "train/0", 0, actions, "terminated", paid)


GRADED = episode(make_action("a"), make_action("a", step=1, index=1), own=(1.0, 3.0))


def made_of(settings: RewardSettings, one: Episode = GRADED, limit: int = 10) -> list[tuple[float, float]]:
    (after,) = rewards_for_credit([one], settings, {"a": limit})
    assert replace(after, transitions=one.transitions).name == one.name
    return [(t.reward, t.agent_rewards["a"]) for t in after.transitions]


class TestParts:
    def test_without_any_rewards_stay_as_they_are(self) -> None:
        assert made_of(RewardSettings()) == [(2.0, 1.0), (2.0, 3.0)]

    @pytest.mark.parametrize(("team", "own"), [(0.0, 1.0), (2.0, 1.0), (1.0, 0.0), (1.0, 2.0), (0.5, 0.25)])
    def test_team_and_own_rewards_are_weighed(self, team: float, own: float) -> None:
        assert made_of(RewardSettings(team_weight=team, own_weight=own)) == [(2.0 * team, own), (2.0 * team, 3.0 * own)]

    def test_progress_is_rewarded_before_rewards_are_weighed(self) -> None:
        """The second grade of 3 is 2 above the first."""
        shaped = RewardSettings(shaping="margin", shaping_weight=0.5, own_weight=10.0)
        assert made_of(shaped) == [(2.0, 10.0), (2.0, 40.0)]

    def test_length_is_priced_last_and_so_is_not_weighed(self) -> None:
        assert made_of(RewardSettings(own_weight=10.0, overlong_buffer=4), limit=4) == [
            (2.0, 10.0 - 0.5),
            (2.0, 30.0 - 0.5),
        ]


class TestLength:
    @pytest.mark.parametrize(("tokens", "price"), [(5, 0.0), (6, 0.0), (7, 0.25), (9, 0.75), (10, 1.0)])
    def test_it_costs_from_the_buffer_on(self, tokens: int, price: float) -> None:
        one = episode(make_action("a", tokens=(1,) * tokens))
        assert penalize_overlong([one], {"a": 10}, 4)[0].transitions[0].agent_rewards == {"a": 1.0 - price}

    def test_who_pays_nothing_has_no_reward_of_0(self) -> None:
        """A reward of 0 would be a grade."""
        one = episode(make_action("b", tokens=(1,) * 6), make_action("c", index=1, tokens=(1,) * 10))
        assert penalize_overlong([one], {"b": 10}, 4)[0].transitions == one.transitions

    def test_every_action_pays_and_those_after_one_that_pays_nothing_too(self) -> None:
        """Tokens that tools wrote cost nothing, and neither does a choice from a list."""
        tool = make_action("b", tokens=(1,) * 10, marks=(int(TokenSource.TOOL),) * 5 + (int(TokenSource.SAMPLED),) * 5)
        options = (Option(np.ones(10, np.int32)), Option(np.ones(3, np.int32)))
        listed = replace(
            make_action("b", tokens=(1,) * 10), choice=Choice(options, 0, np.log(np.array([0.5, 0.5], np.float32)))
        )
        stranger = make_action("c", tokens=(1,) * 10)
        long = make_action("b", tokens=(1,) * 8)
        one = episode(tool, listed, stranger, long, long)
        assert penalize_overlong([one], {"b": 10}, 4)[0].transitions[0].agent_rewards == {"a": 1.0, "b": -1.0}

    def test_an_action_after_the_last_step_that_was_paid_has_nothing_to_pay_from(self) -> None:
        one = episode(make_action("a", step=1, tokens=(1,) * 10))
        assert penalize_overlong([one], {"a": 10}, 4)[0].transitions == one.transitions


class TestWhatIsEarnedAlike:
    @staticmethod
    def paid(*steps: tuple[float, dict[str, float]]) -> Episode:
        made = tuple(Transition(Observation("o"), team, own) for team, own in steps)
        return Episode(Task("t", "o"), "train/0", 0, (), "terminated", made)

    def test_rewards_of_steps_within_1e_8_are(self) -> None:
        one = self.paid((0.0, {}), (1.0, {"a": 0.5}))
        assert have_equal_rewards([one, self.paid((0.0, {}), (1.0 + 9e-9, {"a": 0.5}))])
        assert not have_equal_rewards([one, self.paid((0.0, {}), (1.0 + 2e-8, {"a": 0.5}))])
        assert have_equal_rewards([one])
        assert have_equal_rewards([])

    def test_an_end_pays_nothing_and_neither_does_an_agent_without_a_grade(self) -> None:
        assert have_equal_rewards([self.paid((0.0, {"a": 0.0})), self.paid((0.0, {}), (0.0, {}), (0.0, {"b": 0.0}))])

    def test_who_earned_it_and_when_tell_apart(self) -> None:
        one = self.paid((1.0, {}), (0.0, {}))
        for other in (((0.0, {}), (1.0, {})), ((1.0, {}), (0.0, {"a": 1.0})), ((1.0, {}), (0.0, {}), (-1.0, {}))):
            assert not have_equal_rewards([one, one, self.paid(*other)])
