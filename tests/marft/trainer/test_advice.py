"""Advice of packages on a recipe: printed once when training starts, and for GPUs alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from marft.config.run import RunSettings
from marft.runs.run_folder import RunFolder
from marft.trainer import advice
from marft.trainer.train import train
from tests.helpers import settings
from tests.runs import Listening


def advise(run: RunSettings, device: str) -> list[str]:
    """Advise on every run; registered by :func:`registered`."""
    return [f"{run.name}: {device} can do more"]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register :func:`advise` alone, and name every device."""
    functions = {("advice", "mine"): advise}
    monkeypatch.setattr(advice, "plugin_names", lambda kind: [name for group, name in functions if group == kind])
    monkeypatch.setattr(advice, "load_registered", lambda *key: functions[key])
    monkeypatch.setattr(advice, "device_name", lambda device: f"a {device.type} card")


@pytest.mark.usefixtures("registered")
def test_packages_advise_on_runs_on_a_gpu(tmp_path: Path) -> None:
    run = settings("tiny", tmp_path)
    assert advice.find_advice(run, torch.device("cuda")) == [f"{run.name}: a cuda card can do more"]
    assert advice.find_advice(run, torch.device("cpu")) == []


@pytest.mark.slow
def test_a_run_prints_advice_when_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft.trainer.train.find_advice", lambda run, device: [f"use more than a {device.type}"])
    run, listening = settings("tiny", tmp_path, "--training.steps", "1"), Listening()
    train(run, RunFolder.create(run), callbacks=[listening])
    assert listening.notes.count("use more than a cpu") == 1
