"""Copies of several tensors between devices: packed, except a tensor that is large by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from marft.models import devices
from marft.models.devices import copy_together
from tests.simulated_gpu import CPU, CUDA, simulated_gpu


def test_tensors_arrive_from_and_at_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both directions and two types at once; tensors above the limit go without a packed copy."""
    monkeypatch.setattr(devices, "MAX_PACKED_BYTES", 64)
    packed, cat = [], torch.cat

    def record(tensors: list[torch.Tensor], *args: Any) -> torch.Tensor:
        packed.append([tensor.numel() for tensor in tensors])
        return cat(tensors, *args)

    monkeypatch.setattr(torch, "cat", record)
    with simulated_gpu():
        sizes, routes = (3, 40, 5, 1), ((CPU, CUDA), (CUDA, CPU), (CPU, CPU))
        values = [
            (torch.arange(size, dtype=dtype) + size, source, target)
            for size in sizes
            for source, target in routes
            for dtype in (torch.float32, torch.int64)
        ]
        targets = [torch.zeros_like(value).to(target) for value, _, target in values]
        copy_together(targets, [value.to(source) for value, source, _ in values])
        for target, (value, _, device) in zip(targets, values, strict=True):
            assert target.device == device
            assert torch.equal(target.cpu(), value)
    assert sorted(packed) == [[5, 1]] * 4
