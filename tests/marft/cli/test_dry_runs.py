"""A dry run refuses what training refuses, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marft.cli.dry_run import check_setup
from marft.config import parse_recipe
from marft.config.recipe_checks import warn_idle_settings
from marft.rollout.local_runner import LocalRolloutRunner
from marft.trainer.train import log_warnings
from tests.helpers import recipe

REMOTE = {
    "path": "m",
    "endpoint": {"url": "http://127.0.0.1:1/v1", "api_key_variable": "NOT_THERE", "local_model": "base"},
}


def table_of(tmp_path: Path, **more: Any) -> dict[str, Any]:
    (tmp_path / "rows.csv").write_text("q,a\n" + "".join(f"{n} + 1,{n + 1}\n" for n in range(40)))
    world = {"name": "table", "path": str(tmp_path / "rows.csv"), "question": "q", "answer": "a", "grading": "exact"}
    return recipe(environment={**world, **more})


def refused(by: str, table: dict[str, Any], *overrides: str) -> str:
    run = parse_recipe(table, overrides)
    with pytest.raises(ValueError, match=r"\w") as caught:
        check_setup(run) if by == "a dry run" else LocalRolloutRunner(run).close()
    return str(caught.value)


@pytest.mark.parametrize("by", ["a dry run", "training"])
@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("--agents.actor.sampling.regex", "'('"), "agents.actor.sampling"),
        (("--agents.actor.sampling.grammar", "nothing of it"), "agents.actor.sampling"),
        (("--agents.actor.sampling.max_new_tokens", "100000"), "leaves no room"),
        (("--agents.actor.skills", "['/not/there']"), "cannot read the skill at /not/there"),
        (
            (
                "--tools.x",
                "{ name = 'function', call = 'tests.marft.cli.test_dry_runs:add' }",
                "--agents.actor.tools",
                "['x']",
            ),
            r"agents.actor.tools: .*models.base.chat_template",
        ),
    ],
)
def test_both_refuse_what_the_models_cannot_do(by: str, overrides: tuple[str, ...], said: str, tmp_path: Path) -> None:
    assert re.search(said, refused(by, table_of(tmp_path), *overrides))


@pytest.mark.parametrize("by", ["a dry run", "training"])
def test_both_refuse_a_key_that_is_not_set(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    table = table_of(tmp_path)
    table["models"]["far"] = REMOTE
    table["policies"]["reasoner"] = {"model": "far", "train": "frozen"}
    assert "NOT_THERE" in refused(by, table)


def test_splits_that_training_does_not_need_may_be_empty(tmp_path: Path) -> None:
    run = parse_recipe(table_of(tmp_path, split_fractions={"validation": 0.0, "test": 0.0}))
    assert any(sentence.startswith("test: ") and "training needs none" in sentence for sentence in check_setup(run))
    validated = parse_recipe(
        table_of(tmp_path, split_fractions={"validation": 0.0, "test": 0.0}), ("--evaluation.every", "1")
    )
    with pytest.raises(ValueError, match="has no tasks"):
        check_setup(validated)


@pytest.mark.parametrize("by", ["a dry run", "training"])
def test_both_name_a_setting_that_does_nothing(by: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    idle = ("--algorithm.kl_stop", "0.1", "--algorithm.epochs", "1", "--algorithm.minibatches", "1")
    run = parse_recipe(table_of(tmp_path), idle)
    sentences = check_setup(run) if by == "a dry run" else caplog.messages
    if by == "training":
        log_warnings(run, cast("Any", SimpleNamespace(slow_model_warnings=list)))
        sentences = caplog.messages
    assert [text for text in sentences if "kl_stop" in text] == list(warn_idle_settings(run)) != []


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b
