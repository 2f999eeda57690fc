"""The tasks and recipes of the benchmark on a real model, without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from marft.config import load_recipe
from marft.envs.tasks import read_tasks
from tests.sources import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.syspath_prepend(BENCHMARKS / "real")


@pytest.mark.parametrize("study", ["sums", "instructions", "facts"])
def test_a_study_is_a_team_and_one_agent_with_the_tokens_of_both(study: str, tmp_path: Path) -> None:
    import real_model

    team, alone = (
        real_model.settings_of(real_model.table_of(study, name, 0), "tiny", tmp_path) for name in ("team", "single")
    )
    assert len(team.agents) == 2
    (agent,) = alone.agents
    assert agent.sampling.max_new_tokens == sum(agent.sampling.max_new_tokens for agent in team.agents)
    assert agent.sampling.temperature == team.agents[1].sampling.temperature
    assert load_recipe(BENCHMARKS / "real" / f"{study}.toml", ["--models.base.path", "tiny"]).agents == team.agents
    splits = [{task.id for task in read_tasks(team.environment, split)} for split in ("train", "validation", "test")]
    assert min(map(len, splits)) >= real_model.TASKS
    assert sum(map(len, splits)) == len(set.union(*splits))


def test_a_row_is_known_again_wherever_it_was_trained_and_not_once_the_recipe_is_another(tmp_path: Path) -> None:
    import real_model

    model = tmp_path / "model"
    model.mkdir()
    (model / "made-of.sha256").touch()

    def digest(study: str, seed: int, model: str, folder: str, tasks: int = 8) -> str:
        made = real_model.job_of(study, "team", seed, model, tasks, tmp_path / folder, tmp_path)
        return str(made.digest)

    ours = digest("sums", 0, str(model), "runs")
    assert ours == digest("sums", 0, real_model.SMOLLM2, "other")
    others = {digest("sums", 1, str(model), "runs"), digest("facts", 0, str(model), "runs")}
    others |= {digest("sums", 0, "tiny", "runs"), digest("sums", 0, str(model), "runs", tasks=9)}
    assert len(others | {ours}) == 5


def test_the_table_is_of_the_rows_that_there_are(tmp_path: Path) -> None:
    import real_model

    jobs = [real_model.job_of("sums", "team", seed, "tiny", 8, tmp_path, tmp_path) for seed in (0, 1)]
    jobs[0].path.parent.mkdir(parents=True)
    said = {"observation": "1 + 2 = ?", "reward": 1.0, "actions": [{"agent": "actor", "text": "The sum is 3."}]}
    row = {
        **jobs[0].about, "digest": jobs[0].digest, "episodes": [32] * 4, "seconds": 40.0, "wall_seconds": 3600.0,
        "before": {"sampled": 0.125, "greedy": 0.25}, "after": {"sampled": 0.75, "greedy": 0.875}, "shuffled": 0.0625,
        "samples": {"before": [said], "after": [said]}, "curves": {"reward": [0.1, 0.2, 0.3, 0.4]},
    }  # fmt: skip
    jobs[0].path.write_text(json.dumps(row))
    jobs[1].path.write_text(json.dumps({**row, "digest": "of another recipe"}))
    real_model.save(tmp_path, real_model.finished(jobs), len(jobs))
    written = (tmp_path / "real_model.md").read_text()
    assert "1 of 2 runs, 1.0 hours" in written
    assert "| sums | two | 1 | 12.5% | one seed | 75.0% | one seed | 6.2% | 25.0% | 87.5% | 10 |" in written
    assert "actor: 'The sum is 3.'" in written
    assert (tmp_path / "real_model.svg").is_file()


def test_grades() -> None:
    import tasks

    assert tasks.last_number("3 + 4 is 7.", "7") == (1.0, True)
    assert tasks.last_number("7 is 3 + 4", "7") == (0.0, False)
    assert tasks.last_number("nothing", "7") == (0.0, False)
    assert [tasks.near(text, 7) for text in ("It is 7.", "7, or 9", "70", "")] == [
        (1.0, True), (0.24, False), (0.0, False), (0.0, False),
    ]  # fmt: skip
    assert tasks.kept("The rain is always warm!", "always", 8) == (1.0, True)
    missing: dict[str, Any] = {
        "The rain is warm!": 0.75, "The rain is, always, warm!": 0.75, "The rain is always warm.": 0.75,
        "The rain is always warm! Yes!": 0.75, "Always!": 0.75, "": 0.0,
    }  # fmt: skip
    for text, share in missing.items():
        assert tasks.kept(text, "always", 8) == (share, False), text
