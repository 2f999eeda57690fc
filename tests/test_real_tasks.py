"""The tasks and recipes of the benchmark on a real model, without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marft.config import load_recipe
from marft.envs.tasks import tasks_of

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.syspath_prepend(BENCHMARKS / "real")


@pytest.mark.parametrize("study", ["sums", "instructions", "facts"])
def test_a_study_is_a_team_and_one_agent_with_the_tokens_of_both(study: str, tmp_path: Path) -> None:
    import real_model

    team, alone = (real_model.settings_of(study, name, 0, "tiny", tmp_path) for name in ("team", "single"))
    assert len(team.agents) == 2
    (agent,) = alone.agents
    assert agent.sampling.max_new_tokens == sum(agent.sampling.max_new_tokens for agent in team.agents)
    assert load_recipe(BENCHMARKS / "real" / f"{study}.toml", ["--models.base.path", "tiny"]).agents == team.agents
    splits = [{task.id for task in tasks_of(team.environment, split)} for split in ("train", "validation", "test")]
    assert min(map(len, splits)) >= 60
    assert sum(map(len, splits)) == len(set.union(*splits))


def test_grades() -> None:
    import tasks

    assert tasks.last_number("3 + 4 is 7.", "7") == (1.0, True)
    assert tasks.last_number("7 is 3 + 4", "7") == (0.0, False)
    assert tasks.last_number("nothing", "7") == (0.0, False)
    assert tasks.kept("The rain is always warm!", "always", 8) == (1.0, True)
    missing: dict[str, Any] = {
        "The rain is warm!": 0.75, "The rain is, always, warm!": 0.75, "The rain is always warm.": 0.75,
        "The rain is always warm! Yes!": 0.75, "Always!": 0.75, "": 0.0,
    }  # fmt: skip
    for text, share in missing.items():
        assert tasks.kept(text, "always", 8) == (share, False), text
