"""The catalogue of metrics: whatever a run writes is in it, once, and the page is what it says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from marft.cli.steplines import AGENT, TEAM, line
from marft.evaluation.curves import FIRST
from marft.metrics import CATALOGUE, everything, find, known, named, page
from marft.runs.folder import RunFolder
from marft.training import train
from tests.helpers import recipe, settings

ROOT = Path(__file__).parents[1]


def test_no_metric_is_defined_twice() -> None:
    assert {name: n for name, n in Counter(metric.name for metric in everything()).items() if n > 1} == {}


def test_the_page_is_what_the_catalogue_says() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == page(), "run python -m marft.metrics"
    assert all(f"`{metric.name}`" in page() for metric in everything())


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
    metric = find(name)
    assert (metric and metric.name) == found


def test_what_is_shown_is_in_the_catalogue() -> None:
    assert [known(name).name for name in TEAM] == list(TEAM)
    assert [known(f"agents/x/{name}").name for name in AGENT] == list(AGENT)
    assert [named(name).name for name in FIRST] == list(FIRST)


def test_a_line_leaves_out_what_is_not_there_and_what_says_nothing() -> None:
    metrics = {"reward": 0.5, "reward_std": 0.25, "kl_stops": 0.0, "policy_loss": float("nan"), "seconds": 1.0}
    assert line(metrics, TEAM) == "reward 0.50  ±0.25  1.0 s"
    assert line({"agents/a/kl": 0.01, "agents/b/kl": 0.5, "agents/a/policy_lag": 2.0}, AGENT, "agents/a/") == (
        "KL 0.0100  lag 2"
    )


def test_whatever_a_run_writes_is_in_the_catalogue(tmp_path: Path) -> None:
    """Presets that write more are looked at where each of them trains (tests/test_algorithms.py)."""
    table = recipe("tiny", tmp_path, rewards=[{"name": "outcome"}, {"name": "format", "pattern": ".*"}])
    run = settings(
        "tiny", tmp_path, "--algorithm.nll", "0.1", "--evaluation.every", "1", "--evaluation.validation_tasks", "2",
        rewards=table["rewards"], training={"steps": 1},
    )  # fmt: skip
    train(run, folder := RunFolder.create(run))
    written = {name for row in folder.read_metrics() for name in row} - {"step"}
    assert {name for name in written if find(name) is None} == set()
    assert {"rewards/format", "validation_accuracy", "likelihood/successes"} <= written


def test_every_metric_says_what_it_is_in_words() -> None:
    for title, metrics in CATALOGUE.items():
        assert metrics, title
        for metric in metrics:
            assert metric.meaning
            assert metric.shown(0.5)
            assert not metric.meaning.endswith(".")
