"""What a step takes of a device: absent on a CPU, and what the driver counts on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from marft.common.types import Choice, Episode, Option, Task
from marft.config import RunSettings, load_recipe
from marft.models.device_specs import DRIVER_NAMES
from marft.models.model_sizes import COMMON_MODELS
from marft.trainer import gpu_monitor
from marft.trainer.gpu_monitor import MEMORY, MFU, GpuMonitor, RowTokens, Utilization
from tests.episodes import make_action

SHAPE = COMMON_MODELS["qwen2.5-3b"]
ADAPTER = SHAPE.adapter_parameters(8, ("q_proj", "v_proj"))
H100 = "NVIDIA H100 80GB HBM3"
GPU = torch.device("cuda")


def math(*overrides: str) -> RunSettings:
    return load_recipe("math_dual", ["--models.base.path", "Qwen/Qwen2.5-3B-Instruct", *overrides])


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A GPU's driver, as far as it is asked."""
    says: dict[str, Any] = {"name": H100, "most": 0, "asked": []}

    def forget(device: torch.device) -> None:
        says["most"] = 0
        says["asked"].append(device)

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: says["name"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", forget)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: says["most"])
    return says


def operations(read: int, scored: int, weights: int = 4) -> float:
    """Of a row, forward and backward: 4 a weight of a frozen base or 6 of one that is trained, adapters, the head."""
    adapters = 6 * ADAPTER if weights == 4 else 0
    attention = 3.5 * 2 * read * SHAPE.query_dim * SHAPE.layers
    head = (4 if weights == 4 else 8) * SHAPE.head_parameters * scored
    return read * (weights * SHAPE.matrix_parameters + adapters + attention) + head


def test_on_a_processor_there_is_neither_figure() -> None:
    gauge = GpuMonitor(math(), torch.device("cpu"))
    gauge.on_train_start(0, 9)
    assert gauge.metrics([], 1.0) == {}


def test_the_most_memory_is_that_of_the_step(driver: dict[str, Any]) -> None:
    driver["name"] = "some other card"
    gauge = GpuMonitor(math(), GPU)
    gauge.on_train_start(0, 2)
    for step, most in enumerate((7_000_000_000, 3_000_000_000), 1):
        assert driver["most"] == 0
        driver["most"] = most
        metrics = {"seconds/learning": 1.0}
        gauge.on_update(step, [], metrics)
        assert metrics == {"seconds/learning": 1.0, MEMORY: float(most)}
        gauge.on_step_end(step, metrics)
    assert driver["asked"] == [GPU] * 3


def test_utilization_is_of_all_rows_that_were_learned_from(driver: dict[str, Any]) -> None:
    first = make_action("reasoner", prompt=(5,) * 30, tokens=(8,) * 11)
    choice = Choice(
        (Option(np.array([7, 8], np.int32), 1.0), Option(np.array([9], np.int32), 1.0)), 0,
        np.log(np.array([0.5, 0.5], np.float32)),
    )  # fmt: skip
    second = make_action("actor", prompt=(5,) * 20, tokens=(7, 8))
    object.__setattr__(second, "choice", choice)
    other = make_action("actor", policy="somebody else's")
    episode = Episode(Task("t", "o"), "train/0", 0, (first, second, other), "terminated")
    run = math("--algorithm.epochs", "3", "--training.ranks", "2")
    share = GpuMonitor(run, GPU).metrics([episode], 0.5)[MFU]
    done = 3 * (operations(40, 11) + operations(21, 2) + operations(20, 1))
    assert share == pytest.approx(done / (989e12 * 0.5 * 2))


@pytest.mark.parametrize(("dtype", "rate"), [("bfloat16", 989e12), ("float32", 67e12)])
def test_what_is_trained_whole_is_held_to_the_rate_that_it_is_computed_at(dtype: str, rate: float) -> None:
    words = ("--policies.actor.train", "full", "--policies.reasoner.train", "frozen", "--algorithm.epochs", "1")
    found = Utilization.from_run(math(*words, "--models.base.dtype", dtype), H100)
    assert found is not None
    share = found.model_flops_utilization([RowTokens("actor", 100, 30), RowTokens("reasoner", 100, 30)], 2.0)
    assert share == pytest.approx(operations(100, 30, weights=6) / (rate * 2.0))


def test_recomputing_makes_it_no_better() -> None:
    plain, again = (
        Utilization.from_run(math("--models.base.gradient_checkpointing", said), H100) for said in ("false", "true")
    )
    assert plain is not None
    assert again is not None
    assert plain.model_flops_utilization([RowTokens("actor", 100, 30)], 1.0) == again.model_flops_utilization(
        [RowTokens("actor", 100, 30)], 1.0
    )


@pytest.mark.parametrize("device", ["", "NVIDIA H100 PCIe", "Tesla T4"])
def test_of_cards_that_are_not_known_nothing_is_said(device: str) -> None:
    assert Utilization.from_run(math(), device) is None


def test_of_models_whose_sizes_are_not_known_nothing_is_said() -> None:
    assert Utilization.from_run(math("--models.base.path", "somebody/model-of-mine"), H100) is None
    assert Utilization.from_run(math("--policies.actor.lora.target_modules", '["c_attn"]'), H100) is None


def test_every_card_but_a_processor_has_a_name_that_its_driver_gives() -> None:
    from marft.models.device_specs import DEVICE_SPECS

    assert sorted(DRIVER_NAMES.values()) == sorted(DEVICE_SPECS.keys() - {"cpu"})


def test_its_names_are_in_the_catalogue() -> None:
    from marft.common.metrics import require_metric

    assert {require_metric(name).name for name in (gpu_monitor.MEMORY, gpu_monitor.MFU)} == {MEMORY, MFU}
