"""Dropout, permanently disabled: scores in training must equal scores in sampling.

Evaluation mode alone is not enough. transformers recomputes activations only in layers in training mode, and some
layers then apply dropout themselves.
"""

from __future__ import annotations

import re

from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from transformers import PreTrainedModel

DROPOUT_NAMES = re.compile(r"\w*(drop(out)?|pdrop|jitter_noise)(_prob|_rate|_p)?")


def disable_dropout(model: PreTrainedModel) -> None:
    """Set every dropout probability to 0, in a model's modules and configuration."""
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        _set_to_zero(module)
    _set_to_zero(model.config)
    _set_to_zero(model.config.get_text_config())


def _set_to_zero(holder: nn.Module | object) -> None:
    for name, value in list(vars(holder).items()):
        if type(value) in (int, float) and DROPOUT_NAMES.fullmatch(name):
            setattr(holder, name, 0.0)
