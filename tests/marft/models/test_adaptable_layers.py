"""Layers that take no adapter: routers, and layers whose weight is read without a call. Adapters lie with their base."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tools.model_families import linear_layer_names
from torch import nn
from transformers import AutoModelForCausalLM, HunYuanMoEV1Config, PreTrainedConfig

from marft.config.models import ModelSettings
from marft.models.backbone import Backbone
from marft.models.loader import load_backbone
from marft.models.lora import MultiLoraLinear, Routing
from marft.models.quantization import GroupedInt4Linear, QuantizedLinear
from tests.families import FAMILY, random_model
from tests.marft.models.test_families import CPU

ROUTER = "model.layers.0.router.proj"  # of Gemma 4 with experts


def built(config: PreTrainedConfig) -> Backbone:
    return Backbone(AutoModelForCausalLM.from_config(config), 64)


@pytest.mark.parametrize(
    ("family", "target", "layer"),
    [("Mamba", "dt_proj", "backbone.layers.0.mixer.dt_proj"), ("Gemma 4", "proj", ROUTER)],
)
def test_a_layer_that_takes_no_adapter_is_refused_by_name(family: str, target: str, layer: str) -> None:
    backbone = built(FAMILY[family].small_config())
    assert isinstance(backbone.model.get_submodule(layer), nn.Linear)
    with pytest.raises(ValueError, match=rf"'{target}' is {layer} \(Linear\), and adapters .* name some of"):
        backbone.add_adapter("one", 4, 8.0, (target,), seed=0)
    assert target not in linear_layer_names(backbone)


def test_a_router_of_another_name_takes_none() -> None:
    config = HunYuanMoEV1Config(
        vocab_size=96, hidden_size=32, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16, num_experts=4, moe_topk=2,
    )  # fmt: skip
    backbone = built(config)
    assert any(name.endswith(".gate.wg") for name, _ in backbone.model.named_modules())
    assert "wg" not in linear_layer_names(backbone)


def test_nf4_leaves_routers_as_they_are(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    random_model(FAMILY["Gemma 4"].small_config(), tmp_path)
    settings = ModelSettings(path=str(tmp_path), quantization="nf4")
    model = load_backbone(settings, CPU, torch.float32, skip_forward_check=True).model
    assert type(model.get_submodule(ROUTER)) is nn.Linear
    assert isinstance(model.get_submodule("model.layers.0.mlp.up_proj"), QuantizedLinear)


def test_an_adapter_dequantizes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, constants = torch.zeros(16, 16, dtype=torch.uint8), torch.ones(16, 1)
    base = GroupedInt4Linear(None, torch.float32, codes=codes, zeros=constants, scales=constants, order=None)
    monkeypatch.setattr(base, "dequantize", lambda: pytest.fail("dequantized"))
    layer = MultiLoraLinear(base, Routing())
    layer.add_adapter("one", 2, 4.0, torch.Generator().manual_seed(0))
    adapter = layer.get_adapter("one")
    assert adapter is not None
    assert adapter.a.device == codes.device
