"""``make gpu`` where there is no GPU: it says so; and its own code runs on the CPU."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.nights import BY_NIGHT
from tests.sources import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("gpu", BENCHMARKS / "gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu", module)
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_it_says_so_and_ends_with_2(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--results", str(tmp_path)]) == 2
    assert "no GPU here" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_results_are_kept_by_the_machines_name(gpu: ModuleType, tmp_path: Path) -> None:
    result = {
        "machine": {"device": "NVIDIA H100 80GB HBM3", "processor": "Xeon", "torch": "2.13.0"},
        "tests": ["8 passed"],
        "demo": {"float32": {"seconds/sampling": 1.5, "peak_bytes": 2.0**31}},
    }
    path = gpu.save(tmp_path, result)
    assert path.name == "nvidia-h100-80gb-hbm3.md"
    assert "| float32 | 1.50 |  |  |  | 2.00 |" in path.read_text()
    assert json.loads(path.with_suffix(".json").read_text()) == result


def test_a_test_that_fails_ends_it_with_1(gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "tested", lambda device: (1, ["FAILED tests/marft/trainer/test_gpu.py::test_x"]))
    monkeypatch.setattr(gpu, "demo", lambda device, dtype, steps: {"peak_bytes": 0.0})
    assert gpu.main(["--device", "cpu", "--results", str(tmp_path)]) == 1
    (table,) = tmp_path.glob("*.md")
    assert "FAILED" in table.read_text()


@pytest.mark.slow
@BY_NIGHT
def test_a_step_of_the_demo_is_measured(gpu: ModuleType) -> None:
    found = gpu.demo("cpu", "float32", 2)
    assert found["seconds/sampling"] > 0
    assert found["seconds/learning"] > 0
