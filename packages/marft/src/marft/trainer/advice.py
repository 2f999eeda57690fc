"""Advice of installed packages on a recipe, printed when training starts.

A package registers a function ``(run, device name) -> sentences`` under the entry-point group ``marft.advice``. Advice
changes nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from marft.config.plugins import load_registered, plugin_names
from marft.config.run import RunSettings
from marft.models.devices import device_name

Advise = Callable[[RunSettings, str], Sequence[str]]


def find_advice(run: RunSettings, device: torch.device) -> list[str]:
    """Return the sentences of all packages for a run on a GPU; none on a CPU."""
    if device.type == "cpu":
        return []
    functions: list[Advise] = [load_registered("advice", name) for name in plugin_names("advice")]
    return [sentence for advise in functions for sentence in advise(run, device_name(device))]
