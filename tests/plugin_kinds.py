"""Every kind of plugins, those of the laboratory included."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from marft.config.plugin_kinds import PLUGIN_KINDS

import_module("marft.config.run")
import_module("marft.config.interfaces.memory")
if find_spec("marft_lab"):
    for module in (
        "federated.combiner",
        "prompt_optimization.proposals",
        "safety.agent_outputs",
        "synthesis.candidates",
        "world_models.interface",
    ):
        import_module(f"marft_lab.{module}")
KINDS = dict(PLUGIN_KINDS)
