"""``[engine]``: what its keys are to the engine in this process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from marft.inference.engine_settings import Local
from marft.models.policy_registry import PolicyRegistry
from tests.helpers import settings


@pytest.mark.parametrize(
    ("admission", "device", "in_order"),
    [
        ("auto", "cpu", True), ("auto", "cuda", False), ("in_order", "cuda", True), ("continuous", "cpu", False),
    ],
)  # fmt: skip
def test_admission_is_in_order_where_that_is_asked_for_and_else_on_a_cpu(
    admission: Any, device: str, in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {}
    monkeypatch.setattr("marft.inference.local.LocalEngine", lambda policies, thread, **keys: made.update(keys))
    models = object.__new__(PolicyRegistry)
    models.device, models.policies = torch.device(device), {}
    run = settings().model_copy(update={"seed": 7})
    Local(admission=admission, max_batch_size=9, prefix_cache_mb=3).open(run, models, [], SimpleNamespace())  # type: ignore[arg-type]
    assert made == {"seed": 7, "max_rows": 9, "prefix_bytes": 3 * 2**20, "in_order": in_order, "cuda_graphs": True}
