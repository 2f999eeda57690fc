"""What is earned, and the rules of guards that hold what else moves against it, on series just beyond or short of them."""

from __future__ import annotations

import pytest

from marft.evaluation.guards.history import GuardAlert
from tests.series import Values, around, found


class TestWhatIsEarned:
    """Growing lengths are told of unless more is earned for them."""

    LONGER: dict[str, Values] = {"agents/a/action_length": [*[40.0] * 5, *[90.0] * 5]}

    def test_from_95_percent_on_there_is_little_to_gain(self) -> None:
        assert found("length", {"accuracy": [0.96] * 10, **self.LONGER}) is None
        assert found("length", {"accuracy": [0.94] * 10, **self.LONGER}) is not None

    def test_no_reward_says_that_nearly_all_is_solved(self) -> None:
        assert found("length", {"reward": [0.99] * 10, "reward_std": [0.1] * 10, **self.LONGER}) is not None

    @pytest.mark.parametrize(("more", "told"), [(0.06, False), (0.03, True)])
    def test_more_is_solved_from_one_standard_error_on(self, more: float, told: bool) -> None:
        accuracy = [*around(0.4, 0.1), *around(0.4 + more, 0.1)]
        assert (found("length", {"accuracy": accuracy, **self.LONGER}) is not None) == told

    def test_rewards_whose_scatter_was_not_always_measured_say_nothing(self) -> None:
        rises: dict[str, Values] = {"reward": [*[0.1] * 5, *[0.9] * 5], "reward_std": [None, *[0.1] * 9]}
        assert found("length", {**rises, **self.LONGER}) is not None
        assert found("length", {**rises, "reward_std": [0.1] * 10, **self.LONGER}) is None


class TestLength:
    def look(self, *values: float) -> GuardAlert | None:
        return found("length", {"accuracy": [0.4] * len(values), "agents/a/action_length": values})

    def test_twice_or_half_the_first_length_is_told_of(self) -> None:
        for last, told in ((81.0, True), (79.0, False), (21.0, False), (19.0, True)):
            one = self.look(*[40.0] * 5, *[last] * 5)
            assert (one is not None) == told, last
            assert one is None or one.last_good_step == 5

    def test_who_writes_as_at_first_again_is_not_told_of(self) -> None:
        assert self.look(*[40.0] * 5, *[99.0] * 5, *[40.0] * 5) is None


class TestTerm:
    TERM = "rewards/format"

    def look(self, *values: float, std: Values = (1.0,) * 10, term: str = TERM, **beside: Values) -> GuardAlert | None:
        return found("term", {"accuracy": [0.4] * 10, "reward_std": std, **beside, term: values})

    def test_it_pays_half_a_deviation_of_the_first_window_more(self) -> None:
        one = self.look(*[0.2] * 5, *[0.71] * 5)
        assert one is not None
        assert one.last_good_step == 5
        assert self.look(*[0.2] * 5, *[0.69] * 5) is None
        assert self.look(*[9.0] * 5, *[9.0] * 5) is None
        assert self.look(*[0.7] * 5, *[0.1] * 5) is None
        grown, shrunk = [*[0.1] * 5, *[9.0] * 5], [*[9.0] * 5, *[0.1] * 5]
        assert self.look(*[0.2] * 5, *[0.4] * 5, std=grown) is not None
        assert self.look(*[0.2] * 5, *[0.4] * 5, std=shrunk) is None

    @pytest.mark.parametrize(("gained", "told"), [(0.75, False), (0.85, True)])
    def test_the_deviation_of_a_window_is_that_of_the_mean_of_its_variances(self, gained: float, told: bool) -> None:
        """√((1 + 1 + 1 + 1 + 9) / 5) = 1.61, of which half is 0.81."""
        std = [*[1.0] * 4, 3.0, *[1.0] * 5]
        assert (self.look(*[0.0] * 5, *[gained] * 5, std=std) is not None) == told

    @pytest.mark.filterwarnings("error")
    def test_where_no_deviation_was_ever_measured_nothing_is_said(self) -> None:
        assert self.look(*[0.0] * 5, *[1.0] * 5, std=[None] * 10) is None

    @pytest.mark.parametrize(("by", "sure"), [(0.3, True), (0.34, False)])
    def test_it_pays_more_for_sure(self, by: float, sure: bool) -> None:
        assert (self.look(*around(1.0, by), *around(2.0, by)) is not None) == sure

    def test_a_term_that_was_not_paid_hides_no_other(self) -> None:
        assert self.look(*[0.0] * 5, *[1.0] * 5, **{"rewards/a": [0.0] * 9}) is not None

    def test_where_success_is_not_known_nobody_can_say_that_it_does_not_move(self) -> None:
        pays = [*[0.0] * 5, *[1.0] * 5]
        assert found("term", {"reward": [0.4] * 10, "reward_std": [1.0] * 10, self.TERM: pays}) is None
        assert found("work", {"agents/b/rewards/x": pays, "agents/a/token_share": pays}) is None


class TestHeldOut:
    """Validated every fifth step; the reward rises by 0.4 after step 10."""

    RISES: Values = [*[0.4] * 10, *[0.8] * 20]

    def look(
        self, *validated: float, reward: Values = RISES, std: float = 0.4, of: str = "accuracy", **more: Values
    ) -> GuardAlert | None:
        found_out = [validated[step // 5 - 1] if step % 5 == 0 else None for step in range(1, 5 * len(validated) + 1)]
        deviations = {"reward_std": [std] * len(reward)}
        return found("validation_drop", {"reward": reward, **deviations, f"validation_{of}": found_out, **more})

    def test_both_of_the_newest_are_half_a_deviation_below_the_best(self) -> None:
        one = self.look(0.5, 0.9, 0.8, 0.7, 0.7, 0.7)
        assert one is not None
        assert one.last_good_step == 10, "where validation was best"
        assert "fell from 0.90 to 0.70" in one.message
        assert self.look(0.5, 0.9, 0.8, 0.7, 0.7, 0.75) is None
        assert self.look(0.5, 0.9, 0.8, 0.7, 0.75, 0.7) is None
        assert self.look(0.5, 0.6, 0.6, 0.6, 0.6, 0.9) is None

    def test_accuracies_are_held_against_their_own_deviation(self) -> None:
        assert self.look(0.5, 0.9, 0.8, 0.7, 0.7, 0.7, std=0.8) is not None
        assert self.look(0.5, 0.9, 0.8, 0.8, 0.8, 0.8, std=0.1) is None

    def test_three_validations_are_enough(self) -> None:
        short = [*[0.4] * 5, *[0.8] * 10]
        assert self.look(0.9, 0.5, 0.5, reward=short) is not None
        assert self.look(0.9, 0.5, reward=short[:10]) is None

    def test_a_reward_that_does_not_rise_games_nothing(self) -> None:
        assert self.look(0.5, 0.9, 0.8, 0.3, 0.3, 0.3, reward=[0.4] * 30) is None
        assert self.look(0.5, 0.9, 0.8, 0.3, 0.3, 0.3, reward=[*[0.1] * 5, *[0.8] * 25]) is None, "it rose before"

    def test_rewards_are_held_against_their_deviation_at_the_best_validation(self) -> None:
        assert self.look(1.0, 5.0, 4.0, 4.79, 4.79, 4.79, of="reward") is not None
        assert self.look(1.0, 5.0, 4.0, 4.81, 4.81, 4.81, of="reward") is None
        scattered = [*[0.4] * 10, *[4.0] * 20]
        assert (
            self.look(
                1.0, 5.0, 4.0, 4.7, 4.7, 4.7, of="reward", reward_std=scattered, reward=[*[0.4] * 10, *[9.0] * 20]
            )
            is not None
        )

    def test_accuracy_goes_before_reward(self) -> None:
        falls = [None, None, None, None, 9.0] * 2 + [None, None, None, None, 1.0] * 4
        assert self.look(0.5, 0.5, 0.5, 0.5, 0.5, 0.5, validation_reward=falls) is None

    def test_a_best_validation_of_just_now_has_no_window_of_its_own_before_it(self) -> None:
        validated = [*[None] * 25, 0.9, None, 0.3, None, 0.3]
        rises = [*[0.4] * 24, *[0.8] * 6]
        series: dict[str, Values] = {"reward": rises, "reward_std": [0.4] * 30, "validation_accuracy": validated}
        assert found("validation_drop", series) is None

    def test_a_step_without_a_deviation_makes_it_unknown(self) -> None:
        std = [None, *[0.4] * 29]
        assert self.look(0.5, 0.9, 0.8, 0.3, 0.3, 0.3, reward_std=std) is None


class TestWork:
    SHARES: dict[str, Values] = {"accuracy": [0.4] * 10, "agents/a/token_share": [*[0.2] * 5, *[0.6] * 5]}

    def test_it_moves_to_the_agent_without_a_term_and_from_the_one_that_has_it(self) -> None:
        assert found("work", {**self.SHARES, "agents/b/rewards/x": [0.0] * 10}) is not None
        assert found("work", {**self.SHARES, "agents/a/rewards/x": [0.0] * 10}) is None
        assert found("work", {**self.SHARES, "rewards/x": [0.0] * 10}) is None

    def test_who_wrote_most_from_the_start_takes_no_work_over(self) -> None:
        much = {**self.SHARES, "agents/a/token_share": [0.9] * 10}
        assert found("work", {**much, "agents/b/rewards/x": [0.0] * 10}) is None


class TestPrivateCode:
    def look(self, surprisal: float = 0.6, more: float = 0.4, **beside: Values) -> GuardAlert | None:
        read = beside or {"agents/a/message_tokens": [9.0] * 10}
        return found("private_code", {
            "accuracy": [*around(0.3, 0.1), *around(0.3 + more, 0.1)],
            "agents/a/base_surprisal": [*[1.0] * 5, *[1.0 + surprisal] * 5], **read,
        })  # fmt: skip

    def test_messages_that_others_read_are_half_a_nat_less_readable_while_more_is_solved(self) -> None:
        assert self.look() is not None
        assert self.look(0.4) is None
        assert self.look(more=0.2) is None, "by chance"
        assert self.look(**{"agents/a/message_tokens": [*[9.0] * 9, 0.0]}) is None
        assert self.look(**{"agents/b/message_tokens": [9.0] * 10}) is None
