"""The rule of each guard of collapse, drift and dependence, on series just beyond it or just short of it."""

from __future__ import annotations

import math

import pytest

from marft.config.guards import GuardSettings
from marft.evaluation.guards.collapse import rollback_lr_factor
from marft.evaluation.guards.history import GuardAlert
from marft.evaluation.guards.monitor import GUARDS, GuardReport
from tests.series import Values, around, found, history


class TestDependence:
    SEEN = "agents/a/dependence/inputs"

    def look(self, *values: float) -> GuardAlert | None:
        return found("dependence", {self.SEEN: values})

    def test_a_fifth_of_the_first_window_is_left(self) -> None:
        one = self.look(*[1.0] * 5, *[0.19] * 5)
        assert one is not None
        assert one.last_good_step == 5
        assert "went from 1.00 to 0.19" in one.message
        assert self.look(*[1.0] * 5, *[0.21] * 5) is None
        assert self.look(*[3.0] * 5, *[0.5] * 5) is not None

    def test_a_window_is_judged_against_another_whole_one(self) -> None:
        assert self.look(*[1.0] * 4, *[0.1] * 5) is None

    def test_one_action_of_a_window_that_is_otherwise_hides_none(self) -> None:
        assert self.look(*[1.0] * 5, 0.1, 0.1, 0.1, 0.1, 9.0) is not None
        assert self.look(0.01, *[1.0] * 4, *[0.1] * 5) is not None
        assert self.look(*[1.0] * 4, 9.0, *[0.25] * 5) is None

    def test_who_never_looked_has_nothing_to_lose(self) -> None:
        assert self.look(*[0.04] * 5, *[0.0] * 5) is None
        assert self.look(*[0.06] * 5, *[0.0] * 5) is not None

    def test_who_was_not_asked_hides_nobody(self) -> None:
        falls = [1.0] * 5 + [0.1] * 5
        assert found("dependence", {self.SEEN: falls[:9], "agents/b/dependence/inputs": falls}) is not None


class TestCapability:
    LOSS = "policies/a/held_out_loss"

    def look(self, *values: float | None) -> GuardAlert | None:
        return found("capability", {self.LOSS: values})

    def test_what_creeps_up_is_held_against_what_it_was_at_first(self) -> None:
        one = self.look(2.0, None, 2.1, None, 2.21)
        assert one is not None
        assert one.last_good_step == 3, "when it was measured last"
        assert self.look(2.0, 2.1, 2.19) is None

    def test_a_policy_that_was_measured_once_hides_no_other(self) -> None:
        assert found("capability", {self.LOSS: [2.0], "policies/b/held_out_loss": [2.0, 3.0]}) is not None

    def test_its_newest_loss_counts_and_not_its_best_or_worst(self) -> None:
        assert self.look(2.5, 2.0, 2.5) is None
        assert self.look(2.0, 2.5, 2.0) is None

    def test_a_tenth_is_a_tenth_of_losses_of_any_size(self) -> None:
        assert self.look(10.0, 10.5) is None
        assert self.look(0.1, 0.15) is not None

    def test_it_is_measured_anew_where_a_run_has_gone_back_to_its_beginning(self) -> None:
        seen = history({self.LOSS: [2.0, 3.0], "policies/b/held_out_loss": [2.0, 3.0]})
        seen.roll_back(0)
        (guard,) = (it for it in GUARDS if it.name == "capability")
        assert guard.check(seen, GuardSettings()) is None
        seen.add({"step": 3, self.LOSS: 3.0, "policies/b/held_out_loss": 1.0})
        seen.add({"step": 4, self.LOSS: 3.0, "policies/b/held_out_loss": 2.0})
        one = guard.check(seen, GuardSettings())
        assert one is not None
        assert one.message.startswith("policies.b: ")


class TestDrifts:
    """What holds of every guard that compares two windows' means."""

    SURPRISAL = "agents/a/base_surprisal"

    def look(self, *values: float) -> GuardAlert | None:
        return found("readability", {self.SURPRISAL: values})

    def test_means_of_whole_windows_are_compared(self) -> None:
        one = self.look(*[1.0] * 5, *[2.1] * 5)
        assert one is not None
        assert one.last_good_step == 5
        assert self.look(*[1.0] * 4, *[2.6] * 5) is None
        assert self.look(*[2.1] * 5, *[1.0] * 5) is None
        assert self.look(*[1.0] * 5, *[1.9] * 5) is None
        assert self.look(1.2, *[0.95] * 4, *[2.05] * 5) is not None
        assert self.look(*[1.0] * 5, *[2.2] * 4, 1.9) is not None

    @pytest.mark.parametrize(("by", "sure"), [(0.36, True), (0.4, False)])
    def test_a_drift_is_sure_from_five_standard_errors_on(self, by: float, sure: bool) -> None:
        """Of two windows of five steps with neighbours ``by`` apart: 1.2 > 5 √(2/5) √((8 by² + 1.2²) / 18)."""
        assert (self.look(*around(1.0, by), *around(2.2, by)) is not None) == sure

    @pytest.mark.parametrize("guard", ["readability", "language", "repetition", "format", "work", "private_code"])
    def test_no_drift_is_told_of_that_may_be_chance_or_goes_the_other_way(self, guard: str) -> None:
        metric, first, last = {
            "readability": ("base_surprisal", 1.0, 2.2),
            "language": ("other_script", 0.2, 0.8),
            "repetition": ("repetition", 0.2, 0.8),
            "format": ("format_rate", 0.8, 0.2),
            "work": ("token_share", 0.2, 0.8),
            "private_code": ("base_surprisal", 1.0, 2.2),
        }[guard]
        beside: dict[str, Values] = {
            "accuracy": [0.4] * 5 + [0.8 if guard == "private_code" else 0.4] * 5,
            "agents/b/rewards/brevity": [0.0] * 10,
            "agents/a/message_tokens": [9.0] * 10,
        }
        scattered = abs(last - first) / 2
        for begin, end, by, told in (
            (first, last, 0.0, True),
            (first, last, scattered, False),
            (last, first, 0.0, False),
            (last - (last - first) / 10, last, 0.0, False),
        ):
            one = found(guard, {**beside, f"agents/a/{metric}": [*around(begin, by), *around(end, by)]})
            assert (one is not None) == told, (begin, end, by)
            assert one is None or one.last_good_step == 5


class TestEntropy:
    ENTROPY = "agents/a/entropy"
    FLAT: Values = [0.4] * 10

    def test_it_surges_where_all_of_a_window_is_three_times_the_first(self) -> None:
        one = found("entropy_spike", {self.ENTROPY: [0.5, *[1.6] * 5]})
        assert one is not None
        assert one.last_good_step == 1
        assert found("entropy_spike", {self.ENTROPY: [0.5, *[1.6] * 4, 1.4]}) is None
        assert found("entropy_spike", {self.ENTROPY: [0.5, 1.0, *[1.6] * 5]}) is not None

    def test_it_is_lost_where_all_of_a_window_is_a_fiftieth_of_the_first(self) -> None:
        one = found("entropy_collapse", {"accuracy": self.FLAT, self.ENTROPY: [*[0.5] * 5, *[0.009] * 5]})
        assert one is not None
        assert one.last_good_step == 5
        assert (
            found("entropy_collapse", {"accuracy": self.FLAT, self.ENTROPY: [*[0.5] * 5, *[0.009] * 4, 0.02]}) is None
        )
        rises = [*[0.2] * 5, *[0.6] * 5]
        assert found("entropy_collapse", {"accuracy": rises, self.ENTROPY: [*[0.5] * 5, *[0.009] * 5]}) is None

    @pytest.mark.parametrize(("first", "told"), [(0.0009, False), (0.0011, True)])
    def test_who_has_no_choices_at_first_neither_surges_nor_loses_them(self, first: float, told: bool) -> None:
        surging, losing = [*[first] * 5, *[9.0] * 5], [*[first] * 5, *[0.0] * 5]
        assert (found("entropy_spike", {self.ENTROPY: surging}) is not None) == told
        assert (found("entropy_collapse", {"accuracy": self.FLAT, self.ENTROPY: losing}) is not None) == told

    def test_where_nobody_knows_what_is_earned_nothing_is_said_of_lost_choices(self) -> None:
        assert found("entropy_collapse", {self.ENTROPY: [*[0.5] * 5, *[0.0] * 5]}) is None


class TestFormat:
    def look(self, letters: float, beside: dict[str, Values] | None = None) -> GuardAlert | None:
        shares = {"letters": [*[0.5] * 5, *[letters] * 5], "digits": [*[0.5] * 5, *[1 - letters] * 5]}
        series = {f"agents/a/characters/{kind}": values for kind, values in shares.items()}
        return found("format", {"accuracy": [0.4] * 10, **series, **(beside or {})})

    @pytest.mark.parametrize(("letters", "told"), [(0.2, True), (0.3, False), (0.8, True), (0.7, False)])
    def test_a_quarter_of_the_characters_are_of_other_kinds(self, letters: float, told: bool) -> None:
        one = self.look(letters)
        assert (one is not None) == told
        assert one is None or (one.last_good_step == 5 and "30% of the characters" in one.message)

    def test_the_whole_first_window_is_what_they_looked_like(self) -> None:
        letters, digits = [0.0, *[0.5] * 9], [1.0, *[0.5] * 9]
        series = {"agents/a/characters/letters": letters, "agents/a/characters/digits": digits}
        assert found("format", {"accuracy": [0.4] * 10, **series}) is None


class TestRewardFall:
    @pytest.mark.parametrize(("now", "told"), [(0.54, True), (0.56, False)])
    def test_a_large_effect_is_from_90_to_54_percent(self, now: float, told: bool) -> None:
        one = found("reward_drop", {"accuracy": [*[0.9] * 5, *[now] * 5]})
        assert (one is not None) == told
        assert one is None or one.last_good_step == 5

    def test_it_is_from_the_best_window_wherever_that_was(self) -> None:
        one = found("reward_drop", {"accuracy": [*[0.5] * 5, *[0.9] * 5, *[0.54] * 5]})
        assert one is not None
        assert one.last_good_step == 10
        assert "from 0.90 to 0.54" in one.message

    def test_where_success_is_not_known_it_is_of_rewards_by_their_scatter(self) -> None:
        falls: dict[str, Values] = {"reward": [*[9.0] * 5, *[8.0] * 5]}
        assert found("reward_drop", {**falls, "reward_std": [1.0] * 10}) is not None
        assert found("reward_drop", {**falls, "reward_std": [2.0] * 10}) is None

    def test_a_window_is_held_against_another_whole_one(self) -> None:
        for length in range(1, 10):
            assert found("reward_drop", {"accuracy": [*[0.9] * 5, *[0.0] * 5][:length]}) is None
        assert found("reward_drop", {"accuracy": [*[0.9] * 5, *[0.0] * 5]}) is not None

    def test_what_comes_back_has_not_fallen(self) -> None:
        assert found("reward_drop", {"accuracy": [*[0.9] * 5, *[0.3] * 5, *[0.9] * 5]}) is None
        assert found("reward_drop", {"accuracy": [*[0.3] * 5, *[0.9] * 5]}) is None


class TestGradient:
    NORM = "policies/a/gradient_norm"

    def look(self, *values: float) -> GuardAlert | None:
        return found("gradient", {self.NORM: values})

    def test_the_middle_of_a_window_is_ten_times_the_largest_before_it(self) -> None:
        one = self.look(*[1.0] * 9, 2.0, *[21.0] * 5)
        assert one is not None
        assert one.last_good_step == 10
        assert self.look(2.0, *[1.0] * 9, *[19.0] * 5) is None
        assert self.look(*[1.0] * 9, 2.0, *[19.0] * 5) is None
        assert self.look(*[1.0] * 10, 99.0, 99.0, 1.0, 1.0, 1.0) is None
        assert self.look(*[0.01] * 10, *[0.2] * 5) is not None

    def test_two_windows_of_norms_are_a_history_and_steps_without_gradients_are_none_of_it(self) -> None:
        assert self.look(*[1.0] * 9, *[99.0] * 5) is None
        assert self.look(*[0.0] * 5, *[1.0] * 9, *[99.0] * 5) is None
        assert self.look(*[0.0] * 5, *[1.0] * 10, *[99.0] * 5) is not None

    def test_a_policy_without_a_history_hides_no_other(self) -> None:
        explodes = [*[1.0] * 10, *[99.0] * 5]
        assert found("gradient", {self.NORM: [0.0] * 15, "policies/b/gradient_norm": explodes}) is not None


class TestKL:
    def look(self, *values: float | None) -> GuardAlert | None:
        return found("kl", {"agents/a/kl": values})

    def test_every_step_of_a_window_moves_an_agent_too_far(self) -> None:
        one = self.look(0.01, *[0.11] * 5)
        assert one is not None
        assert one.last_good_step == 1
        assert self.look(*[0.11] * 4) is None
        assert self.look(*[9.0] * 4, 0.09) is None

    def test_rates_are_cooled_for_the_agent_that_moved_most_in_the_newest_window(self) -> None:
        def cooled(threshold: float = 0.1, **moved: Values) -> float:
            series = history({f"agents/{role}/kl": values for role, values in moved.items()})
            return rollback_lr_factor(series, GuardSettings(kl=threshold))

        calm, hot = [0.01] * 10, [*[0.01] * 5, *[0.4] * 5]
        assert cooled(a=calm, b=hot) == cooled(a=hot, b=calm) == pytest.approx(0.1 * (0.1 / 0.4) ** 0.5)
        assert cooled(a=[*[0.4] * 5, *[0.01] * 5]) == cooled(a=calm) == cooled(0.0, a=hot) == 0.1
        assert cooled(a=[*[0.4] * 4, 99.0]) == pytest.approx(0.05), "one step that is odd does not count"


class TestHistory:
    def test_what_a_run_went_back_from_does_not_count_and_the_checkpoints_step_does(self) -> None:
        seen = history({"reward": [1.0, 2.0, 3.0]})
        seen.roll_back(2)
        assert (list(seen.series("reward").steps), list(seen.series("reward").values)) == ([1, 2], [1.0, 2.0])
        seen.add({"step": 4, "reward": 4.0})
        assert list(seen.series("reward").steps) == [1, 2, 4]

    def test_a_series_is_of_now_where_the_newest_step_has_it_and_is_finite(self) -> None:
        seen = history({"reward": [1.0, 2.0], "accuracy": [1.0, None]})
        assert seen.current_series("accuracy", 1) is None
        assert seen.current_series("reward", 2) is not None
        assert seen.current_series("reward", 3) is None
        seen.add({"step": 3, "reward": math.nan, "accuracy": math.inf})
        assert len(seen.series("reward")) == 2
        assert len(seen.series("accuracy")) == 1


COLLAPSES = {"kl", "reward_drop", "entropy_spike", "entropy_collapse", "gradient"}


@pytest.mark.parametrize("name", [guard.name for guard in GUARDS])
def test_a_run_goes_back_for_collapses_alone(name: str) -> None:
    assert GuardReport({name: GuardAlert("", 3)}).last_good_step() == (3 if name in COLLAPSES else None)


def test_it_goes_back_to_where_all_was_well() -> None:
    several = {"kl": GuardAlert("", 7), "gradient": GuardAlert("", 4), "length": GuardAlert("", 1)}
    assert GuardReport(several).last_good_step() == 4
    assert GuardReport({}).last_good_step() is None
