"""Who plays worlds of questions and answers without a model: right with skill 1, never without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marft.config.load import parse_recipe
from marft.envs.table import Table
from marft_lab.scripted_team import ScriptedTeam

ROWS = "question,answer\n" + "".join(f"What is {n} + {n}?,{n + n}\n" for n in range(40))


def recipe(environment: dict[str, Any]) -> Any:
    agents = [{"role": role, "policy": "p", "answers": role == "actor"} for role in ("reasoner", "actor")]
    models = {"models": {"base": {"path": "tiny"}}, "policies": {"p": {"model": "base"}}}
    return parse_recipe({"name": "answering", **models, "agents": agents, "environment": environment})


@pytest.mark.parametrize("name", ["reasoning_gym", "math", "table"])
def test_whoever_knows_the_answer_is_right_and_whoever_does_not_is_not(name: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS, encoding="utf-8")
    rows = {"path": str(tmp_path / "rows.csv"), "question": "question"}
    keys = {"reasoning_gym": {"dataset": "chain_sum", "train_tasks": 20, "held_out_tasks": 5}}.get(name, rows)
    run = recipe({"name": name, **keys})
    for skill in (1.0, 0.0):
        with ScriptedTeam(run, run.environment.script(skill)) as team:
            episodes = list(team.play(run.environment.tasks("train")[:10]))
        assert {episode.success for episode in episodes} == {skill == 1.0}, [one.error for one in episodes]


def test_nobody_knows_the_answer_of_a_table_that_says_none(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS, encoding="utf-8")
    assert Table(path=str(tmp_path / "rows.csv"), answer="").script() is None
