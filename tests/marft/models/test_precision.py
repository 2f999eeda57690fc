"""In half precision nothing is rounded that need not be, so that engine and learner agree."""

from __future__ import annotations

import pytest
import torch
from tools.model_families import SMALL_CONFIG, scale_up_weights
from torch import Tensor
from torch.nn.functional import rms_norm
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from marft.models import attention
from marft.models.backbone import Backbone
from marft.models.fused_decoder import apply_rms_norm
from marft.models.log_probs import OutputHead, score_tokens
from marft.models.packed_rows import PackedRows
from tests.marft.models.test_families import CPU, ROWS, decode


@pytest.fixture
def deep() -> Backbone:
    """24 layers that add little to large embeddings, as those of real models do."""
    attention.register_attention()
    torch.manual_seed(0)
    config = LlamaConfig(**{**SMALL_CONFIG, "num_hidden_layers": 24, "hidden_size": 64})
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention.IMPLEMENTATION)
    scale_up_weights(model)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(20)
    return Backbone(model.bfloat16().eval().requires_grad_(False), 256)


@torch.inference_mode()
def difference(backbone: Backbone) -> float:
    """Between decoding and scoring, of likely tokens, in nats."""
    whole = backbone.compute_logits(
        backbone.hidden_states(PackedRows.from_rows(ROWS, [None] * 3, CPU)), None
    ).log_softmax(-1)
    likely = whole.topk(8).indices
    return float((decode(backbone, [1, 7, 3]) - whole).gather(1, likely).abs().mean())


@pytest.mark.slow
@pytest.mark.parametrize("fused", [True, False])
def test_a_float32_stream_takes_a_third_off_what_engine_and_learner_differ_by(deep: Backbone, fused: bool) -> None:
    deep.fused, deep.fp32_residual = fused, False
    rounded = difference(deep)
    deep.fp32_residual = True
    assert difference(deep) < 0.7 * rounded
    assert difference(deep) < 0.02


def test_weights_are_multiplied_in_their_own_precision_and_the_stream_is_float32(deep: Backbone) -> None:
    deep.fused, deep.fp32_residual = False, True
    seen: list[Tensor] = []
    layer = deep.decoder.layers[3]
    handles = [layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))]
    handles.append(layer.mlp.up_proj.register_forward_hook(lambda _, __, out: seen.append(out)))
    with torch.no_grad():
        hidden = deep.hidden_states(PackedRows.from_rows(ROWS, [None] * 3, CPU))
    for handle in handles:
        handle.remove()
    assert [x.dtype for x in (*seen, hidden)] == [torch.float32, torch.bfloat16, torch.bfloat16]


def test_adapters_learn_the_same_when_activations_are_computed_again(deep: Backbone) -> None:
    deep.fused, deep.fp32_residual = False, True
    deep.add_adapter("one", 4, 8.0, ("q_proj", "up_proj"), seed=0)
    gradients = []
    for again in (False, True):
        if again:
            deep.checkpoint_activations()
        for adapter in deep.adapters("one").values():
            adapter.b.grad = None
        hidden = deep.hidden_states(PackedRows.from_rows(ROWS, ["one"] * 3, CPU))
        (hidden.float() * torch.linspace(-1, 1, 64)).sum().backward()
        gradients.append([adapter.b.grad.clone() for adapter in deep.adapters("one").values()])
    for plain, recomputed in zip(*gradients, strict=True):
        assert torch.equal(recomputed, plain)


def test_a_norm_is_rounded_once() -> None:
    """And has the epsilon of its own layer, which weighs where activations are small."""
    norm = LlamaRMSNorm(48, eps=0.1).bfloat16()
    torch.manual_seed(0)
    torch.nn.init.normal_(norm.weight)
    for x in (torch.randn(5, 48).bfloat16(), torch.randn(5, 48)):
        exact = rms_norm(x.double(), (48,), norm.weight.double(), norm.variance_epsilon)
        assert torch.equal(apply_rms_norm(norm, x), exact.bfloat16())


def test_scores_of_a_half_precision_head_are_float32() -> None:
    hidden, weight = torch.randn(3, 8).bfloat16(), torch.randn(20, 8).bfloat16()
    scores = score_tokens(hidden, OutputHead(weight), torch.tensor([1, 2, 3]), None)
    assert scores.log_probs.dtype == scores.entropies.dtype == torch.float32
