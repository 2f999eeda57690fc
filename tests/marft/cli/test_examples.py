"""The parts that the contributing guide shows do work."""

from __future__ import annotations

from pathlib import Path

import pytest

from marft.runs.episode_files import read_rows
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.helpers import settings
from tests.sources import ROOT


@pytest.mark.slow
def test_the_example_parts_train_together(tmp_path: Path) -> None:
    run = settings(
        "tiny", tmp_path, "--agents.actor.role", "judge", "--team.organization", "marft.examples.plugins:Vote",
        "--algorithm.credit", "{ name = 'marft.examples.plugins:Median' }", "--algorithm.critic.kind", "none",
        "--algorithm.objective", "{ name = 'marft.examples.plugins:SPO' }", "--rollout.max_steps", "2",
        environment={"name": "marft.examples.plugins:Guess", "highest": 9},
    )  # fmt: skip
    folder = RunFolder.create(run)
    assert train(run, folder).step == 2
    rows = read_rows(folder.episodes / "step_000001.parquet")
    assert {row["agent"] for row in rows} == {"reasoner", "judge"}
    assert next(row["sees"] for row in rows if row["agent"] == "judge") == ["0/reasoner/0"]


def test_the_guide_shows_what_the_examples_do() -> None:
    root = ROOT
    guide, code = (
        (root / "CONTRIBUTING.md").read_text(),
        (root / "packages/marft/src/marft/examples/plugins.py").read_text(),
    )
    shown = [line.strip() for line in guide.split("```python\nclass")[1:] for line in line.split("```")[0].splitlines()]
    missing = [line for line in shown if line and not line.endswith('"""') and line not in code]
    assert not missing
