"""The recipe for a real model as it ships, on a tiny one."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from marft.config import load_recipe
from marft.config.bundled import resolve_path
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.nights import BY_NIGHT

WIDE = 4096  # tokens of context, for fifteen tools in a vocabulary that was not made for them


def wide_model(folder: Path) -> Path:
    """The bundled model that calls tools, with a longer context."""
    shutil.copytree(resolve_path("tiny-tools"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": WIDE}))
    return folder


@pytest.mark.slow
@BY_NIGHT
def test_the_airline_runs_two_steps(tmp_path: Path) -> None:
    changes = {
        "output": tmp_path, "models.base.path": wide_model(tmp_path / "model"), "models.base.context_length": WIDE,
        "agents.planner.sampling.max_new_tokens": 8, "agents.agent.sampling.max_new_tokens": 16, "environment.max_turns": 1,
        "environment.train_tasks": 4, "environment.held_out_tasks": 2, "rollout.tasks_per_step": 1,
        "rollout.samples_per_task": 2, "training.steps": 2, "evaluation.every": 0, "checkpoints.every": 1, "device": "cpu",
        "threads": 1,
    }  # fmt: skip
    run = load_recipe("tool_use_airline", [word for key, value in changes.items() for word in (f"--{key}", str(value))])
    folder = RunFolder.create(run)
    train(folder.settings(), folder)
    steps = folder.read_metrics()
    assert [(row["step"], row["episodes"], row["episodes_failed"]) for row in steps] == [(1, 2, 0), (2, 2, 0)]
    assert math.isfinite(steps[-1]["policy_loss"])
    assert all(row["environment/user_turns"] == 1.0 for row in steps)
