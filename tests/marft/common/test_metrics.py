"""The catalogue of metrics: whatever a run writes is in it, once, and the page is what it says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marft.cli.terminal import (
    AGENT_METRICS,
    EVENT_METRICS,
    TRAINING_COLUMNS,
    VERBOSE_METRICS,
    WIDE_COLUMNS,
    format_line,
)
from marft.common.metrics import CATALOG, all_metrics, catalog_metric, find_metric, require_metric
from marft.common.metrics.__main__ import render_page
from marft.common.token_data import PromptReset, TokenSource
from marft.common.types import (
    Action,
    Episode,
    HelperCallRecord,
    Observation,
    StepInfo,
    Task,
    ToolCall,
    Transition,
    VersionRange,
)
from marft.common.usage import Usage
from marft.evaluation.episode_metrics import episode_metrics, information_metrics, remote_usage_metrics
from marft.evaluation.ratios import attempt_metrics
from marft.evaluation.report import MAIN_METRICS
from marft.evaluation.trajectory_metrics import trajectory_metrics
from marft.evaluation.writing_metrics import compute_text_metrics
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.episodes import make_action
from tests.helpers import recipe, settings
from tests.sources import ROOT


def test_no_metric_is_defined_twice() -> None:
    assert {name: n for name, n in Counter(metric.name for metric in all_metrics()).items() if n > 1} == {}


def test_the_page_is_what_the_catalogue_says() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == render_page(), (
        "run python -m marft.common.metrics"
    )
    assert all(f"`{metric.name}`" in render_page() for metric in all_metrics())


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("kl", "kl"), ("agents/actor/kl", "kl"), ("policies/p/learning_rate", "learning_rate"), ("learning_rate", None),
        ("agents/a/rewards/format", "rewards/*"), ("rewards/format", "rewards/*"), ("judge/cost", "judge/cost"),
        ("judge/requests", "judge/*"), ("agents/a/remote_cost", "remote_cost"), ("remote_retries", "remote_*"),
        ("seconds", "seconds"), ("seconds/learning", "seconds/*"), ("critic/loss", "critic/loss"),
        ("agents/a/critic/loss", None), ("nobody/knows", None),
    ],
)  # fmt: skip
def test_a_name_is_found_by_its_scope_and_pattern(name: str, found: str | None) -> None:
    metric = find_metric(name)
    assert (metric and metric.name) == found


def test_what_is_shown_is_in_the_catalogue() -> None:
    team = [*EVENT_METRICS, *VERBOSE_METRICS, *(column.metric for column in (*TRAINING_COLUMNS, *WIDE_COLUMNS))]
    assert [require_metric(name).name for name in team] == team
    assert [require_metric(f"agents/x/{name}").name for name in AGENT_METRICS] == list(AGENT_METRICS)
    assert [catalog_metric(name).name for name in MAIN_METRICS] == list(MAIN_METRICS)


def test_a_line_leaves_out_what_is_not_there_and_what_says_nothing() -> None:
    metrics = {"reward": 0.5, "reward_std": 0.25, "kl_stops": 0.0, "policy_loss": float("nan"), "seconds": 1.0}
    assert format_line(metrics, tuple(metrics)) == "reward 0.50  ±0.25  1.0 s"
    assert format_line(
        {"agents/a/kl": 0.01, "agents/b/kl": 0.5, "agents/a/policy_lag": 2.0}, AGENT_METRICS, "agents/a/"
    ) == ("KL 0.0100  lag 2")


def test_whatever_a_run_writes_is_in_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Presets that write more are looked at where each of them trains (tests/marft/trainer/test_algorithms.py)."""
    monkeypatch.setattr("marft.trainer.gpu_monitor.device_name", lambda _: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr("marft.trainer.gpu_monitor.peak_memory", lambda _: 5)
    table = recipe("tiny", tmp_path, rewards=[{"name": "outcome"}, {"name": "format", "pattern": ".*"}])
    run = settings(
        "tiny", tmp_path, "--algorithm.nll_coefficient", "0.1", "--evaluation.every", "1", "--evaluation.validation_tasks", "2",
        rewards=table["rewards"], training={"steps": 1},
    )  # fmt: skip
    train(run, folder := RunFolder.create(run))
    written = {name for row in folder.read_metrics() for name in row} - {"step"}
    assert {name for name in written if find_metric(name) is None} == set()
    assert {"rewards/format", "validation_accuracy", "likelihood/successes", "learner/mfu"} <= written
    assert [row["device/peak_memory"] for row in folder.read_metrics()] == [5.0]


def test_a_batchs_metrics_are_of_what_could_be_scored_and_add_up_by_hand() -> None:
    def played(*steps: Transition, actions: tuple[Action, ...] = (), status: Any = "terminated") -> Episode:
        return Episode(Task("t", "?"), "s", 0, actions, status, steps)

    def paid(team: float, **own: float) -> Transition:
        return Transition(Observation("o"), team, own, {"right": team, "short/a": own.get("a", 0.0)})

    calls = (ToolCall("x", seconds=1.0, error=True), ToolCall("x", seconds=3.0))
    used = make_action(
        "a",
        tokens=(1, 2, 3, 4),
        marks=(TokenSource.SAMPLED, TokenSource.TOOL, TokenSource.TOOL, TokenSource.SAMPLED),
        policy="p",
    )
    used = replace(used, calls=calls, truncated_tokens=5, versions=VersionRange(3, 4), restarted="edited: message 2")
    told = replace(
        make_action("b", tokens=(1,), marks=(TokenSource.TEAMMATE,), policy="p"),
        finish="length",
        restarts=(PromptReset(1, np.array([7], np.int32), 1, "rewritten"),),
    )
    last = replace(make_action("b", call=1, policy="p"), finish="other", continues=(told.id,))
    metrics = episode_metrics(
        [
            played(paid(1.0, a=0.5), paid(2.0, a=0.25), actions=(used, told, last)), played(paid(0.0), paid(0.0)),
            played(paid(9.0), status="failed"), played(status="timed_out"), played(status="timed_out"),
        ],
        ("a", "b"), lambda policy: {"p": 7}[policy],
    )  # fmt: skip
    expected = {
        "reward": 1.5, "reward_std": 1.5, "success_unknown": 2, "episodes": 5, "episodes_failed": 1,
        "episodes_timed_out": 2, "episodes_dropped": 3, "environment_steps": 4, "rewards/right": 1.5,
        "agents/a/rewards/short": 0.375, "agents/a/own_reward": 0.375, "agents/b/own_reward": 0.0, "actions": 3,
        "action_length": (2 + 0 + 2) / 3, "truncation_rate": 1 / 3, "prompt_tokens": 3, "truncated_tokens": 5,
        "prompt_resets": 2, "gateway/segments/edited": 1, "agents/a/prompt_resets": 1, "agents/b/prompt_resets": 1, "tool_use_rate": 1 / 3, "tool_calls": 2,
        "tool_errors": 1, "tool_tokens": 2, "tool_seconds": 2.0, "agents/a/policy_lag": 4,
    }  # fmt: skip
    assert {name: metrics.get(name) for name in expected} == pytest.approx(expected)
    assert "agents/b/tool_calls" not in metrics
    asks_on = episode_metrics([played(paid(0.0), actions=(last,))], (), lambda _: 0)
    assert asks_on["prompt_resets"] == 0, "an agent that remembers, and never begins anew"
    assert "prompt_resets" not in episode_metrics([played(paid(0.0), actions=(make_action(),))], (), lambda _: 0)


def test_a_batchs_metrics_hold_those_of_trajectories_attempts_writing_and_what_was_told() -> None:
    """Two attempts at each of two tasks, by two agents; and one that could not be scored, which none of them counts."""
    declared = [StepInfo(0.5, hidden={"a": word}, measures={"depth": n}) for n, word in enumerate(("red", "blue"))]
    played = [
        Episode(
            Task(f"t{n % 2}", "?"), "s", n, (make_action("a", text=f"it is {n % 2}"), make_action("b", index=1)), status,
            (Transition(Observation("o"), 1.0, declared=declared[n % 2]),), success,
        )
        for n, (success, status) in enumerate([(True, "terminated"), (False, "truncated"), (None, "terminated"), (True, "paused"), (True, "failed")])
    ]  # fmt: skip
    roles, scored = ("a", "b"), played[:4]
    metrics = episode_metrics(played, roles, lambda _: 0)
    parts = (
        trajectory_metrics(scored, roles),
        attempt_metrics(scored),
        compute_text_metrics(scored, roles),
        information_metrics(scored, roles),
    )
    assert all(parts)
    for part in parts:
        assert {name: metrics.get(name) for name in part} == part
    assert (metrics["success_unknown"], metrics["accuracy"]) == (1, 2 / 3)


def test_what_the_environment_measures_is_what_it_said_last_on_average_over_the_episodes_that_have_it() -> None:
    def measuring(*steps: dict[str, float]) -> Episode:
        declared = (Transition(Observation("o"), 0.0, declared=StepInfo(measures=step)) for step in steps)
        return Episode(Task("t", "?"), "s", 0, (), "terminated", tuple(declared))

    played = [measuring({"depth": 1.0, "width": 2.0}, {"depth": 3.0}, {}), measuring({"depth": 8.0}), measuring({})]
    metrics = episode_metrics(played, (), lambda _: 0)
    assert {name: value for name, value in metrics.items() if name.startswith("environment/")} == {
        "environment/depth": 5.5, "environment/width": 2.0,
    }  # fmt: skip


def test_an_agent_that_remembers_is_counted_anew_wherever_any_of_its_actions_does() -> None:
    cut = PromptReset(1, np.array([7], np.int32), 1, "rewritten")
    plain, kept = make_action(), replace(make_action(call=1), continues=("0/a/0",))
    anew, thrice = (
        replace(make_action(call=2), restarted="template: x"),
        replace(make_action(call=3), restarts=(cut,) * 3),
    )

    def found(*actions: Action) -> dict[str, float]:
        metrics = episode_metrics([Episode(Task("t", "?"), "s", 0, actions, "terminated", ())], (), lambda _: 0)
        return {name: value for name, value in metrics.items() if name.startswith(("prompt_resets", "gateway/"))}

    assert found(plain) == {}
    assert found(plain, kept) == {"prompt_resets": 0}
    assert found(plain, thrice) == {"prompt_resets": 3}
    assert found(plain, kept, anew, thrice) == {"prompt_resets": 4, "gateway/segments/template": 1}


def test_what_was_asked_of_helpers_is_counted_where_anything_was() -> None:
    asked = HelperCallRecord("verify", "?", "<reply>no</reply>", 0)
    helped = make_action(
        tokens=(1, 2, 3),
        marks=(TokenSource.TEAMMATE, TokenSource.TEAMMATE, TokenSource.SAMPLED),
        text="<reply>no</reply> so",
    )
    actions = (
        replace(helped, consultations=(asked, asked)),
        make_action(call=1),
        make_action(call=2),
        make_action(call=3),
    )

    def found(*actions: Action) -> dict[str, float]:
        metrics = episode_metrics([Episode(Task("t", "?"), "s", 0, actions, "terminated", ())], (), lambda _: 0)
        return {
            name: metrics[name] for name in ("helper_call_rate", "helper_calls", "teammate_tokens") if name in metrics
        }

    assert found(*actions) == {"helper_call_rate": 0.25, "helper_calls": 2, "teammate_tokens": 2}
    assert found(*actions[1:]) == {}


def test_what_remote_actions_took_counts_once_however_many_episodes_they_are_replayed_in() -> None:
    one, two = (replace(make_action(agent), usage=Usage(*counts)) for agent, counts in (("a", (10, 1)), ("b", (7, 2))))
    unpaid = make_action("a", call=1), make_action("c")
    episodes = [
        Episode(Task("t", "?"), "s", n, (one, two, *unpaid), status, ())
        for n, status in enumerate(("failed", "terminated"))
    ]
    taken = remote_usage_metrics(episodes, ("a", "b", "c"))
    assert (taken["agents/a/remote_prompt_tokens"], taken["agents/b/remote_prompt_tokens"]) == (10, 7)
    assert not [name for name in taken if name.startswith("agents/c/")]


def test_every_metric_says_what_it_is_in_words() -> None:
    for title, metrics in CATALOG.items():
        assert metrics, title
        for metric in metrics:
            assert metric.description
            assert metric.format_value(0.5)
            assert not metric.description.endswith(".")
