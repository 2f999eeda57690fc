"""The math recipes as they are shipped, on a tiny checkpoint and a few problems."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import pytest

from marft.agents.sandbox.runner import isolation_problem
from marft.config import load_recipe, parse_recipe
from marft.config.run import RunSettings
from marft.runs.episode_files import read_rows
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.nights import BY_NIGHT, some
from tests.sources import ROOT

PROBLEMS = [
    {"problem": r"Compute $\frac{1}{2} + \frac{1}{3}$.", "answer": r"\frac{5}{6}"},
    {"problem": "Find the positive root of $x^2 = 49$.", "answer": "7"},
    {"problem": "How many diagonals has a hexagon?", "answer": "9"},
    {"problem": r"Evaluate $\log_2 32$.", "answer": "5"},
    {"problem": "What is $15\\%$ of $80$?", "answer": "12"},
    {"problem": r"Simplify $\sqrt{72}$.", "answer": r"6\sqrt{2}"},
    {"problem": "Find the remainder of $2^{10}$ divided by $7$.", "answer": "2"},
    {"problem": r"If $f(x) = 3x - 4$, what is $f(f(2))$?", "answer": "2"},
]


def small(name: str, folder: Path) -> RunSettings:
    """The recipe with another model and other data, shorter actions and fewer of them; all else as it stands."""
    data = folder / "problems.jsonl"
    data.write_text("".join(json.dumps(problem) + "\n" for problem in PROBLEMS), encoding="utf-8")
    roles = [agent.role for agent in load_recipe(name).agents]
    short = {f"agents.{role}.sampling.max_new_tokens": 24 for role in roles}
    changes = {
        **short, "output": folder, "models.base.path": "tiny", "models.base.context_length": 1024, "environment.path": data,
        "environment.answer": "answer", "environment.test_path": '""',
        "rollout.tasks_per_step": 3, "rollout.samples_per_task": 2,
        "training.steps": 2, "evaluation.every": 0, "checkpoints.every": 1, "device": "cpu", "threads": 1,
    }  # fmt: skip
    return load_recipe(name, [word for key, value in changes.items() for word in (f"--{key}", str(value))])


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.parametrize("name", some(["math_dual_vetted", "math_dual", "math_revised"]))
def test_math_recipes_run_two_steps(name: str, tmp_path: Path) -> None:
    folder = RunFolder.create(small(name, tmp_path))
    train(folder.settings(), folder)
    steps = folder.read_metrics()
    assert [row["step"] for row in steps] == [1, 2]
    assert steps[-1]["episodes"] == 6
    assert steps[-1]["episodes_failed"] == 0
    assert math.isfinite(steps[-1]["policy_loss"])
    assert all(math.isfinite(steps[-1][f"policies/{policy}/gradient_norm"]) for policy in folder.settings().policies)
    asked = {row["task"] for file in folder.recorded_steps() for row in read_rows(file)}
    assert asked
    assert asked <= {f"problems/{number}" for number in range(len(PROBLEMS))}


@pytest.mark.parametrize("page", ["README.md", "docs/recipes.md"])
def test_the_recipe_that_the_docs_show_can_be_read(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "problems.jsonl").write_text("\n".join(map(json.dumps, PROBLEMS)))
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text()
    table = tomllib.loads(text.split("```toml\n")[1].split("```")[0])
    run = parse_recipe({"name": "shown", **table})
    assert [agent.role for agent in run.agents] == ["reasoner", "actor"]


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.skipif(bool(isolation_problem()), reason=f"no isolation here: {isolation_problem()}")
def test_the_recipe_of_programs_runs_two_steps_on_a_small_model_and_rows_of_a_file(tmp_path: Path) -> None:
    tests = [{"input": [n], "output": n + 1} for n in range(3)]
    rows = [
        {"question": f"{n}: add 1.", "entry": "f", "tests": tests, "solution": "def f(x): return x + 1"}
        for n in range(40)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    short = {f"agents.{role}.sampling.max_new_tokens": 12 for role in ("coder", "tester", "reflector")}
    changes = {
        "output": tmp_path, "models.base.path": "tiny", "models.base.context_length": 1024, **short,
        "environment.path": tmp_path / "rows.jsonl", "environment.test_path": '""', "rollout.tasks_per_step": 1,
        "rollout.samples_per_task": 2, "training.steps": 2, "evaluation.every": 0, "checkpoints.every": 2,
        "device": "cpu", "threads": 1,
    }  # fmt: skip
    run = load_recipe("code_1_5b", [word for key, value in changes.items() for word in (f"--{key}", str(value))])
    folder = RunFolder.create(run)
    train(folder.settings(), folder)
    steps = folder.read_metrics()
    assert [(row["step"], row["episodes"], row["episodes_failed"]) for row in steps] == [(1, 2, 0), (2, 2, 0)]
    assert math.isfinite(steps[-1]["policies/reflector/gradient_norm"])
