"""Guards on rows that are made up: what is planted is caught by its name, and what is sound is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from marft.common.metrics import require_metric
from marft.config.guards import GuardSettings
from marft.evaluation.guards.history import ROLLBACK_KEY
from marft.evaluation.guards.monitor import GUARDS, GuardMonitor, replay_messages
from marft.runs.changes import find_changes
from tests.helpers import settings
from tests.nights import some

Rows = list[dict[str, Any]]
SEEDS = some(range(5), of=4)


def sound(seed: int, steps: int = 60, episodes: int = 64) -> Rows:
    """A team that learns: accuracy from 40 % to 98 %, entropy from 0.5 to 0.01, with the scatter of its batches."""
    draw = np.random.default_rng(seed)
    rows: Rows = []
    for step in range(1, steps + 1):
        done = step / steps
        accuracy = draw.binomial(episodes, min(0.98, 0.4 + 0.8 * done)) / episodes
        row: dict[str, Any] = {"step": step, "accuracy": accuracy, "reward": accuracy}
        row["reward_std"] = float(np.sqrt(accuracy * (1 - accuracy)))
        for role in ("planner", "coder"):
            row[f"agents/{role}/kl"] = 0.004 * draw.lognormal(0, 0.5)
            row[f"agents/{role}/entropy"] = 0.5 * 0.02**done * draw.lognormal(0, 0.2)
            row[f"agents/{role}/action_length"] = 40 * (1 + 0.5 * done) * draw.lognormal(0, 0.05)
            row[f"policies/{role}/gradient_norm"] = 0.1 * 20**done * draw.lognormal(0, 0.5)
            row[f"agents/{role}/base_surprisal"] = 0.5 * draw.lognormal(0, 0.5)
            row[f"agents/{role}/repetition"] = 0.05 * draw.lognormal(0, 0.5)
            row[f"agents/{role}/other_script"] = 0.02 * draw.random()
            row[f"agents/{role}/characters/letters"] = (letters := 0.5 + 0.02 * draw.normal())
            row[f"agents/{role}/characters/digits"] = 1.0 - letters
            row[f"agents/{role}/format_rate"] = draw.binomial(episodes, 0.9) / episodes
            row[f"agents/{role}/token_share"] = 0.5 + 0.01 * draw.normal()
            row[f"agents/{role}/message_tokens"] = 20.0
        for name in ("inputs", "messages"):
            row[f"agents/coder/dependence/{name}"] = (1 + done) * draw.lognormal(0, 0.3)
        if step % 10 == 1:
            row["policies/coder/held_out_loss"] = 2.5 + 0.02 * draw.normal()
        rows.append(row)
    return rows


def planted(seed: int, **series: Callable[[int, float], float]) -> Rows:
    """Sound rows in which from step 31 on some metrics are others: what they become, by step and what they were."""
    rows = sound(seed)
    for row in rows[30:]:
        for name in row:
            if name in series or ("/coder/" in name and name.rpartition("/")[2] in series):
                row[name] = series[name.rpartition("/")[2]](row["step"], row[name])
    return rows


def raised(rows: Rows, **settings: Any) -> dict[str, int]:
    """The first step in which each guard is raised."""
    watch, first = GuardMonitor(GuardSettings(**settings), ()), dict[str, int]()
    for row in rows:
        for name in watch.check(row).alerts:
            first.setdefault(name, row["step"])
    return first


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("episodes", [4, 64])
def test_a_sound_run_raises_nothing(seed: int, episodes: int) -> None:
    assert raised(sound(seed, 300, episodes)) == {}


@pytest.mark.parametrize("seed", SEEDS)
def test_each_collapse_is_caught_by_its_name_within_two_windows(seed: int) -> None:
    caught = {
        "kl": planted(seed, kl=lambda *_: 0.3),
        "reward_drop": planted(seed, accuracy=lambda *_: 0.1),
        "entropy_spike": planted(seed, entropy=lambda *_: 2.0),
        "entropy_collapse": [
            {**row, "agents/coder/entropy": 0.5 if row["step"] < 31 else 0.001} for row in stuck(seed)
        ],
        "gradient": planted(seed, gradient_norm=lambda _, norm: 1000 * norm),
    }
    for name, rows in caught.items():
        first = raised(rows)
        assert next(iter(first)) == name
        assert 31 < first[name] <= 40, name


def stuck(seed: int) -> Rows:
    """A team that solves as much as it did."""
    draw = np.random.default_rng(seed)
    return [{**row, "accuracy": draw.binomial(64, 0.4) / 64} for row in sound(seed)]


def test_a_fall_of_rewards_of_any_size_is_caught_where_success_is_not_known() -> None:
    rows = planted(0, accuracy=lambda *_: 0.1)
    for row in rows:
        accuracy = row.pop("accuracy")
        row |= {"reward": 1000 * accuracy - 2000, "reward_std": 1000 * float(np.sqrt(accuracy * (1 - accuracy)))}
    assert next(iter(raised(rows))) == "reward_drop"


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_gradients_explode_by_what_they_were_whatever_their_size(size: float) -> None:
    rows = sound(0)
    for row in rows:
        row["policies/coder/gradient_norm"] *= size * (1000 if row["step"] > 30 else 1)
    assert [*raised(rows)] == ["gradient"]


def test_norms_of_0_are_no_history_of_gradients() -> None:
    rows = sound(0)
    for row in rows[:20]:
        row["policies/coder/gradient_norm"] = 0.0
    assert raised(rows) == {}


def test_a_single_bad_step_is_no_collapse() -> None:
    rows = sound(0)
    rows[30] |= {"accuracy": 0.0, "agents/coder/kl": 9.0, "agents/coder/entropy": 9.0}
    rows[30] |= {"policies/coder/gradient_norm": 1e6}
    assert raised(rows) == {}


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_a_threshold_of_0_switches_a_guard_off(guard: Any) -> None:
    rows = planted(0, kl=lambda *_: 0.3, accuracy=lambda *_: 0.1, entropy=lambda *_: 2.0, gradient_norm=lambda *_: 1e6)
    on, off = raised(rows), raised(rows, **{guard.name: 0})
    assert guard.name not in off
    assert off == {name: step for name, step in on.items() if name != guard.name}


def test_it_is_said_once_as_long_as_it_lasts_with_name_step_and_remedy() -> None:
    said = replay_messages(GuardSettings(), planted(0, kl=lambda step, kl: kl if step == 50 else 0.3))
    assert [text.partition(":")[0] for text in said] == ["step 35", "step 55"]
    assert said[0].startswith("step 35: coder: each of the last 5 steps moved it by 0.3 nats a token or more")
    assert said[0].endswith("lower algorithm.optimizer.learning_rate (guards.kl = 0.1)")


def test_what_is_raised_is_a_metric_of_that_step_alone() -> None:
    watch = GuardMonitor(GuardSettings(), ())
    metrics = [watch.check(row).metrics() for row in planted(0, kl=lambda *_: 0.3)]
    assert metrics == [{}] * 34 + [{"guards/kl": 1.0}] * 26
    assert require_metric("guards/kl").label == "guard"


def adding_to(said: list[str]) -> Callable[[int, str, str], None]:
    return lambda step, _, text: said.append(f"step {step}: {text}")


def logged(rows: Iterable[dict[str, Any]], settings: GuardSettings) -> tuple[Rows, list[str]]:
    """What a run that goes back would write, and what it would say."""
    said: list[str] = []
    watch, log = GuardMonitor(settings, (), adding_to(said)), Rows()
    for row in rows:
        found = watch.check(row)
        log.append({**row, **found.metrics()})
        if (well := found.last_good_step()) is not None:
            log[-1][ROLLBACK_KEY] = float(well)
            said.append(watch.roll_back(well))
    return log, said


def test_a_log_tells_again_what_was_said_and_goes_on_from_any_row_as_if_it_had_not_stopped() -> None:
    settings = GuardSettings(on_collapse="rollback")
    rows = planted(0, kl=lambda step, kl: 0.3 if step < 45 else kl)
    log, said = logged(rows, settings)
    assert [row["step"] for row in log if ROLLBACK_KEY in row] == [35, 40]
    assert replay_messages(settings, log) == said
    assert len(said) == 4
    for cut in some(range(len(log))):
        again = list[str]()
        watch = GuardMonitor(settings, log[:cut], adding_to(again))
        for row in log[cut:]:
            found = watch.check({name: value for name, value in row.items() if not name.startswith("guards/")})
            assert found.metrics().items() <= row.items()
            assert bool(found.alerts) == any(name.startswith("guards/") for name in row)
            if ROLLBACK_KEY in row:
                again.append(watch.roll_back(int(row[ROLLBACK_KEY])))
        assert again == said[len(said) - len(again) :]


def test_a_collapse_says_when_all_was_well() -> None:
    for rows, well in (
        (planted(0, kl=lambda *_: 0.3), 30),
        (planted(0, entropy=lambda *_: 2.0), 30),
    ):
        watch = GuardMonitor(GuardSettings(), ())
        assert next(found.last_good_step() for row in rows if (found := watch.check(row)).alerts) == well


def test_what_was_not_measured_is_not_judged() -> None:
    rows = [{"step": step, "reward": None, "agents/coder/kl": None, "reverted_steps": 1.0} for step in range(1, 40)]
    assert raised(rows) == {}
    assert all(a["step"] < b["step"] for a, b in pairwise(rows))


def gamed(seed: int, **series: Callable[[int, float], float]) -> Rows:
    """A team that solves as much as it did, with terms and validations; from step 31 on some metrics are others."""
    draw = np.random.default_rng(seed + 100)
    rows: Rows = []
    for row in stuck(seed):
        late = row["step"] > 30
        row |= {"agents/coder/entropy": 0.3, "agents/planner/entropy": 0.3, "agents/coder/action_length": 40.0}
        row |= {"rewards/solved": row["accuracy"], "rewards/format": 0.5 + 0.05 * draw.normal()}
        row |= {"validation_accuracy": draw.binomial(100, 0.6) / 100} if row["step"] % 5 == 0 else {}
        for name in [name for name in series if late and name in row]:
            row[name] = series[name](row["step"], row[name])
        rows.append(row)
    return rows


@pytest.mark.parametrize("seed", SEEDS)
def test_each_way_of_gaming_is_caught_by_its_name_and_a_team_that_is_stuck_games_nothing(seed: int) -> None:
    assert raised(gamed(seed)) == {}
    planted_in = {
        "length": gamed(seed, **{"agents/coder/action_length": lambda step, _: 40.0 + 4 * (step - 30)}),
        "term": gamed(seed, **{"rewards/format": lambda step, paid: paid + 0.05 * (step - 30)}),
        "validation_drop": gamed(
            seed, reward=lambda step, was: was + 0.05 * (step - 30), validation_accuracy=lambda *_: 0.2
        ),
    }
    for name, rows in planted_in.items():
        first = raised(rows)
        assert list(first) == [name]
        assert 31 < first[name] <= 60


def text_of(role: str, change: Callable[[int], float], *metrics: str) -> Callable[[dict[str, Any]], None]:
    def plant(row: dict[str, Any]) -> None:
        if row["step"] > 30:
            row.update({f"agents/{role}/{name}": change(row["step"] - 30) for name in metrics})

    return plant


def watched(row: dict[str, Any]) -> None:
    row["agents/planner/rewards/brevity"] = -0.5
    text_of("coder", lambda late: min(0.9, 0.5 + 0.02 * late), "token_share")(row)


def forgets(row: dict[str, Any]) -> None:
    if row["step"] > 30 and "policies/coder/held_out_loss" in row:
        row["policies/coder/held_out_loss"] = 3.0


def all_digits(row: dict[str, Any]) -> None:
    text_of("coder", lambda _: 0.1, "characters/letters")(row)
    text_of("coder", lambda _: 0.9, "characters/digits")(row)


DRIFTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "repetition": text_of("coder", lambda late: min(0.9, 0.03 * late), "repetition"),
    "format": all_digits,
    "dependence": text_of("coder", lambda _: 0.01, "dependence/inputs", "dependence/messages"),
    "work": watched,
    "readability": text_of("coder", lambda late: 0.5 + 0.2 * late, "base_surprisal"),
    "language": text_of("coder", lambda _: 0.9, "other_script"),
    "capability": forgets,
}


@pytest.mark.parametrize("name", DRIFTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_drift_and_collusion_is_caught_by_its_name_in_a_team_that_solves_no_more(name: str, seed: int) -> None:
    rows = gamed(seed)
    for row in rows:
        DRIFTS[name](row)
    first = raised(rows)
    assert list(first) == [name]
    assert 30 < first[name] <= 60


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_that_help_more_and_are_read_less_are_a_code_and_no_code_where_nobody_reads_them(seed: int) -> None:
    rows = sound(seed)
    for row in rows:
        row["agents/coder/base_surprisal"] = 0.5 if row["step"] <= 30 else 1.2
    assert [*raised(rows)] == ["private_code"]
    for row in rows:
        row["agents/coder/message_tokens"] = 0.0
    assert raised(rows) == {}


def test_a_team_that_solves_more_may_repeat_itself_look_otherwise_and_need_no_messages() -> None:
    for name in ("repetition", "format", "work"):
        rows = sound(0)
        for row in rows:
            DRIFTS[name](row)
        assert raised(rows) == {}, name
    rows = sound(0)
    for row in rows:
        text_of("coder", lambda _: 0.01, "dependence/messages")(row)
    assert raised(rows) == {}


def test_a_team_that_solves_more_without_looking_at_its_inputs_is_told_of() -> None:
    rows = sound(0)
    for row in rows:
        text_of("coder", lambda _: 0.01, "dependence/inputs")(row)
    assert [*raised(rows)] == ["dependence"]


def test_a_declared_format_counts_whatever_is_earned() -> None:
    rows = sound(0)
    for row in rows:
        text_of("coder", lambda _: 0.3, "format_rate")(row)
    assert [*raised(rows)] == ["format"]


def test_where_success_is_not_known_length_that_earns_is_no_gaming_and_length_that_does_not_is() -> None:
    for rises, found in ((True, []), (False, ["length"])):
        rows = sound(0) if rises else gamed(0)
        for row in rows:
            row["reward"] = row.pop("accuracy")
            row["agents/coder/action_length"] = 40.0 + 2 * row["step"]
            row.pop("validation_accuracy", None)
        assert [*raised(rows)] == found


def test_a_term_of_an_agent_that_pays_while_nothing_is_solved_is_told_of_by_both_names() -> None:
    rows = gamed(0)
    for row in rows:
        row["agents/planner/rewards/brevity"] = 0.0 if row["step"] <= 30 else 1.0
    assert [*raised(rows)] == ["term"]
    assert any(
        "reward term 'brevity' of planner went from 0 to 1" in text for text in replay_messages(GuardSettings(), rows)
    )


@pytest.mark.parametrize(("moved", "factor"), [(0.1, 0.1), (0.4, 0.05), (10.0, 0.01)])
def test_rates_are_cooled_by_the_root_of_how_far_a_step_moved(moved: float, factor: float) -> None:
    watch = GuardMonitor(GuardSettings(), planted(0, kl=lambda *_: moved))
    assert watch.learning_rate_factor() == pytest.approx(factor)


def test_where_no_kl_was_measured_rates_are_cooled_as_the_recipe_says() -> None:
    assert GuardMonitor(GuardSettings(), [{"step": 1, "reward": 1.0}]).learning_rate_factor() == 0.1


def test_thresholds_may_change_in_a_run_that_only_speaks_of_collapses_and_not_in_one_that_goes_back() -> None:
    def differ(before: str, now: str, threshold: str = "0.2") -> list[str]:
        old = settings("tiny", "runs", "--guards.on_collapse", before)
        return list(find_changes(old, settings("tiny", "runs", "--guards.on_collapse", now, "--guards.kl", threshold)))

    assert differ("warn", "warn") == []
    assert differ("rollback", "rollback") == ["guards.kl"]
    assert differ("warn", "rollback", "0.1") == ["guards.on_collapse"]


def test_gaming_is_no_collapse() -> None:
    rows = gamed(0, **{"rewards/format": lambda *_: 9.0})
    watch = GuardMonitor(GuardSettings(), ())
    found = [watch.check(row) for row in rows]
    assert any(it.alerts for it in found)
    assert all(it.last_good_step() is None for it in found)


def test_length_and_terms_that_pay_for_themselves_are_no_gaming() -> None:
    rows = sound(0)
    for row in rows:
        row |= {"agents/coder/action_length": 40.0 + 2 * row["step"], "rewards/format": row["step"] / 60}
    assert raised(rows) == {}


def test_a_team_that_solves_nearly_all_from_the_start_has_nothing_to_gain_by_length() -> None:
    rows = gamed(0)
    for row in rows:
        row |= {"accuracy": 0.97 + 0.01 * (row["step"] % 2), "agents/coder/action_length": 40.0 + 2 * row["step"]}
    assert raised(rows) == {}
