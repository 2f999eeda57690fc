"""Dropout, off for good: what is learned from is scored as it was sampled.

That a model is in evaluation is not enough. transformers computes activations again only in layers that are training,
and some layers drop numbers themselves where they are.
"""

from __future__ import annotations

import re

from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from transformers import PreTrainedModel

PROBABILITY = re.compile(r"\w*(drop(out)?|pdrop|jitter_noise)(_prob|_rate|_p)?")


def switch_off(model: PreTrainedModel) -> None:
    """Set every probability of dropping to 0, in a model's modules and in its configuration."""
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        _to_zero(module)
    _to_zero(model.config)
    _to_zero(model.config.get_text_config())


def _to_zero(holder: nn.Module | object) -> None:
    for name, value in list(vars(holder).items()):
        if type(value) in (int, float) and PROBABILITY.fullmatch(name):
            setattr(holder, name, 0.0)
