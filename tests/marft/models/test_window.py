"""A window of w tokens is a token itself and the w − 1 before it, as transformers has it: to the token, at its edge."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformers
from tools.model_families import SMALL_CONFIG, scale_up_weights
from torch import Tensor
from transformers import AutoModelForCausalLM

from marft.models import attention
from marft.models.backbone import Backbone
from marft.models.forward_check import _decoded_logits, _log_prob_errors, _make_rows, _native_logits, _packed_logits

WINDOW = 20  # longer than what every row is padded to
LENGTHS = (WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + 2, 3 * WINDOW)
MADE: dict[str, tuple[str, dict[str, object], bool]] = {
    "fused": ("MistralConfig", {}, True),
    "modules": ("MistralConfig", {}, False),
    "cap": ("Gemma2Config", {"head_dim": 16, "attn_logit_softcapping": 5.0}, False),
    "sinks": ("GptOssConfig", {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}, False),
}


def backbone_of(kind: str, changes: dict[str, object], fused: bool) -> Backbone:
    """Of a random model whose forward has not been checked: what is wrong shows here."""
    attention.register_attention()
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**SMALL_CONFIG, "sliding_window": WINDOW, **changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention.IMPLEMENTATION)
    scale_up_weights(model)
    backbone = Backbone(model.eval().requires_grad_(False), 256)
    backbone.fused = fused
    return backbone


def off(backbone: Backbone, length: int, compute: Callable[..., Tensor]) -> float:
    """How far log-probs are from transformers' own, at the last tokens of a row that another lies beside."""
    rows = _make_rows((length, 7), 96)
    own = _native_logits(backbone.model, rows, "eager")
    last = torch.tensor([length - 1, length + 6])
    found = compute(backbone, rows)
    return float(_log_prob_errors(found if len(found) == 2 else found[last], own[last]).max())


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("length", LENGTHS)
def test_a_token_sees_as_many_before_it_as_the_window_has_and_no_more(name: str, length: int) -> None:
    """The first token leaves the window where the row has one token more than it."""
    backbone = backbone_of(*MADE[name])
    assert off(backbone, length, _packed_logits) < 1e-4
    assert off(backbone, length, _decoded_logits) < 1e-4


@pytest.mark.parametrize("name", MADE)
def test_a_window_of_one_more_or_less_would_show(name: str) -> None:
    kind, changes, fused = MADE[name]
    rows = _make_rows((WINDOW + 1, 7), 96)
    logits = [
        _packed_logits(backbone_of(kind, {**changes, "sliding_window": window}, fused), rows)
        for window in (WINDOW - 1, WINDOW, WINDOW + 1)
    ]
    for other in (logits[0], logits[2]):
        assert _log_prob_errors(other, logits[1])[WINDOW].max() > 0.01
