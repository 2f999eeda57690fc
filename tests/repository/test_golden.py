"""What `make golden` compares: weights and metrics bit by bit, under names that may have changed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.sources import ROOT

DRIVER = ROOT / "tools" / "golden" / "golden.py"


@pytest.fixture(scope="module")
def golden() -> Any:
    spec = importlib.util.spec_from_file_location("golden_driver", DRIVER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def a_run(folder: Path, weight: float = 1.0, file: str = "policies/a/adapter_model.safetensors", **logged: Any) -> Path:
    path = folder / "checkpoints" / "step_000002" / file
    path.parent.mkdir(parents=True)
    save_file({"w": torch.tensor([weight, -0.0])}, path)
    lines = [{"step": step, "reward": 0.5, "seconds": step + len(str(folder)), **logged} for step in (1, 2)]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    return folder


def told(golden: Any, one: Path, other: Path, **tables: Any) -> list[str]:
    tables = {"times": ["seconds"], "metrics": {}, "keys": {}, "values": {}, "files": {}, **tables}
    return list(golden.differences(one, other, golden.Names("abc", **tables)))


def test_runs_that_are_alike_but_for_their_times_do_not_differ(golden: Any, tmp_path: Path) -> None:
    assert not told(golden, a_run(tmp_path / "a"), a_run(tmp_path / "beside"))


def test_one_bit_of_a_weight_or_a_metric_differs(golden: Any, tmp_path: Path) -> None:
    same = a_run(tmp_path / "a")
    assert told(golden, same, a_run(tmp_path / "b", weight=1.0000001))[0].startswith(
        "policies/a/adapter_model.safetensors: w: differs by up to 1.19e-07"
    )
    changed = a_run(tmp_path / "c", reward=0.5000000000000001)
    assert told(golden, same, changed) == [f"{step}: reward: 0.5 → 0.5000000000000001" for step in (1, 2)]


def test_a_weight_of_one_run_alone_or_a_lost_metric_differs_and_a_new_metric_does_not(
    golden: Any, tmp_path: Path
) -> None:
    found = told(golden, a_run(tmp_path / "a", old=1), a_run(tmp_path / "b", new=1, file="critic.safetensors"))
    assert found[0] == "critic.safetensors: w: only the present tree has it"
    assert found[1] == "policies/a/adapter_model.safetensors: w: only the reference has it"
    assert found[2:] == ["1: old: 1 → 'missing'", "2: old: 1 → 'missing'"]


def test_what_has_another_name_is_compared_under_it(golden: Any, tmp_path: Path) -> None:
    was = a_run(tmp_path / "a", **{"agents/a/price": 2.0, "gone": 1})
    now = a_run(tmp_path / "b", file="policies/a/model.safetensors", **{"agent/a/price": 2.0})
    renamed = {
        "metrics": {"agents/*": "agent/*", "gone": ""},
        "files": {"policies/a/adapter_model.safetensors": "policies/a/model.safetensors"},
    }
    assert not told(golden, was, now, **renamed)


def test_keys_of_recipes_are_renamed_for_the_present_tree_alone(golden: Any, tmp_path: Path) -> None:
    run, keys = golden.Run("demo", {"rollout.processes": "2"}), {"rollout.processes": "workers.count"}
    assert "--rollout.processes" in golden.command(run, "a", tmp_path, short=False, keys={})
    assert "--workers.count" in golden.command(run, "a", tmp_path, short=False, keys=keys)
    assert "--training.steps 2" in " ".join(golden.command(run, "a", tmp_path, short=True, keys={}))


def test_what_values_name_is_renamed_too(golden: Any, tmp_path: Path) -> None:
    run = golden.Run("demo", {"team": "{ call = 'a.b:solve' }"})
    assert "{ call = 'a_b.c:solve' }" in golden.command(run, "a", tmp_path, short=True, values={"a.b:": "a_b.c:"})


def test_a_zero_of_another_sign_is_another_weight(golden: Any, tmp_path: Path) -> None:
    one, other = a_run(tmp_path / "a"), a_run(tmp_path / "b")
    path = other / "checkpoints" / "step_000002" / "policies/a/adapter_model.safetensors"
    save_file({"w": torch.tensor([1.0, 0.0])}, path)
    assert told(golden, one, other) == ["policies/a/adapter_model.safetensors: w: differs by up to 0"]
