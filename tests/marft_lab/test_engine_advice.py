"""vLLM is suggested where it is installed, on a known GPU, and where the plan expects a shorter step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from marft.config import load_recipe
from marft.config.run import RunSettings
from marft.models.device_specs import find_device_spec
from marft.trainer.advice import find_advice
from marft_lab.planning.engine_advice import advise_engine
from marft_lab.planning.plan import PlanRequest, make_plan

H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Environment of vLLM, as ``marft engine install vllm`` makes it."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    python = tmp_path / "marft" / "engines" / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    return python


EAGER = "{ kind = 'local', enforce_eager = true }"  # CUDA graphs save most of what vLLM saves


def recipe(engine: str = EAGER, *overrides: str) -> RunSettings:
    model = "--models.base.path", "Qwen/Qwen2.5-3B-Instruct"
    return load_recipe("math_dual", ["--engine", engine, *model, *overrides])


def test_the_start_of_a_run_suggests_vllm_with_the_seconds_that_the_plan_expects(
    vllm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recipe()
    monkeypatch.setattr("marft.trainer.advice.device_name", lambda device: H100)
    (sentence,) = find_advice(run, torch.device("cuda"))
    assert vllm.is_file()
    found = re.search(r"save ([\d.]+) of ([\d.]+) seconds per step", sentence)
    assert found is not None
    saved, before = map(float, found.groups())
    expected = make_plan(run, PlanRequest(1, find_device_spec("h100"))).best.seconds
    assert before == pytest.approx(expected, rel=0.06)
    assert 0.2 * before < saved < before
    keys = re.findall(r"(--[\w.]+) (\S+)", sentence.partition(" is expected")[0])
    assert keys[0] == ("--engine.kind", "vllm")
    changed = recipe("{ kind = 'vllm' }", *(word for pair in keys[1:] for word in pair))
    faster = make_plan(changed, PlanRequest(1, find_device_spec("h100"))).best.seconds
    assert expected - faster == pytest.approx(saved, rel=0.06)


def test_nothing_is_suggested_on_a_cpu() -> None:
    assert find_advice(recipe(), torch.device("cpu")) == []


@pytest.mark.usefixtures("vllm")
def test_nothing_is_suggested_for_vllm_itself_an_unknown_gpu_or_an_unknown_model(tmp_path: Path) -> None:
    assert advise_engine(recipe("{ kind = 'vllm' }"), H100) == []
    assert advise_engine(recipe(), "NVIDIA GeForce RTX 2060") == []
    assert advise_engine(recipe(EAGER, "--models.base.path", str(tmp_path / "none")), H100) == []


def test_nothing_is_suggested_where_vllm_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert advise_engine(recipe(), H100) == []
