"""A base in 4 bits computes and learns what its dequantized weights do, on every forward, and is refused if damaged."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig

from marft.config.models import ModelSettings
from marft.models.backbone import Backbone
from marft.models.half_precision import store_in_half
from marft.models.loader import load_backbone
from marft.models.packed_rows import PackedRows
from marft.models.quantization import (
    BitsAndBytesLinear,
    GroupedInt4Linear,
    QuantizedLinear,
    count_quantized_weights,
    replace_by_dequantized,
)
from marft.models.quantized_checkpoints import PackedTensors
from tests.families import FAMILY, random_model
from tests.marft.models import test_multimodal as multimodal
from tests.marft.models.test_families import CPU, ROWS, decode, expected, scored
from tests.packed_checkpoints import FORMATS, bitsandbytes, describe, nf4, pack
from tests.simulated_gpu import capturable, simulated_gpu

pytest.importorskip("bitsandbytes")
FORWARDS = ("Qwen 2", "Gemma 2", "Granite 4 hybrid")  # fused, packed, and one that may have its own
WAYS = ("nf4", "gptq in any order", "awq")
PACKED_LAYERS = tuple(f"{name}_proj.weight" for name in ("q", "k", "v", "o", "gate", "up", "down", "out"))
TARGETS = ("q_proj", "v_proj", "o_proj")


def loaded(folder: Path, dtype: torch.dtype = torch.float32, **settings: Any) -> Backbone:
    return load_backbone(ModelSettings(path=str(folder), **settings), CPU, dtype)


def quantised(folder: Path, way: str, dtype: torch.dtype = torch.float32, **settings: Any) -> Backbone:
    """The model of a folder: as it is, for ``nf4``, or packed first."""
    if way == "nf4":
        return loaded(folder, dtype, quantization="nf4", quantization_block_size=32, **settings)
    pack(folder, way, PACKED_LAYERS)
    return loaded(folder, dtype, **settings)


def layers_of(model: nn.Module) -> dict[str, QuantizedLinear]:
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, QuantizedLinear)}


def adapted(backbone: Backbone) -> Backbone:
    for number, policy in enumerate(("one", "two")):
        backbone.add_adapter(policy, 4, 8.0, TARGETS, seed=number)
        for name, adapter in backbone.adapters(policy).items():
            nn.init.normal_(adapter.b, std=0.1, generator=torch.Generator().manual_seed(len(name) + number))
    return backbone


def learned(backbone: Backbone) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probs of the policy ``two``, and the gradients of its adapters of a sum of them."""
    log_probs = scored(backbone, "two")
    (log_probs * torch.linspace(-1, 2, len(log_probs))).sum().backward()
    grads = {}
    for name, adapter in backbone.adapters("two").items():
        assert adapter.a.grad is not None
        assert adapter.b.grad is not None
        grads |= {f"{name}.a": adapter.a.grad, f"{name}.b": adapter.b.grad}
    return log_probs.detach(), grads


def same(mine: Mapping[str, Tensor], other: Mapping[str, Tensor], tolerance: float = 1e-5) -> None:
    assert mine.keys() == other.keys()
    for name, gradient in other.items():
        scale = gradient.abs().max() + 1e-12
        torch.testing.assert_close(mine[name] / scale, gradient / scale, rtol=0, atol=tolerance, msg=name)


class TestWhatTheBitsStandFor:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("way", FORMATS)
    def test_packed_layers_are_read_number_by_number(self, way: str, dtype: torch.dtype, tmp_path: Path) -> None:
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        plain = load_file(tmp_path / "model.safetensors")
        stand_for = pack(tmp_path, way)
        model = loaded(tmp_path, dtype).model
        for name, layer in layers_of(model).items():
            assert torch.equal(layer.weight, stand_for.pop(f"{name}.weight").to(dtype)), name
        assert not stand_for
        kept = {name: tensor for name, tensor in model.named_parameters() if name in plain}
        assert len(kept) == len(plain) - 2 * 7  # embeddings, norms and biases
        assert all(torch.equal(tensor, plain[name].to(dtype)) for name, tensor in kept.items())
        assert not hasattr(model.config, "quantization_config")

    def test_zeros_of_0_in_gptqs_first_format_borrow_from_their_neighbors(self, tmp_path: Path) -> None:
        """Current programs subtract a 1 from each four bits in one subtraction of int32s, for any zeros."""
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        stand_for = pack(tmp_path, "gptq 2")
        describe(tmp_path, FORMATS["gptq"][1])
        weights = load_file(tmp_path / "model.safetensors")
        zeros = {name: tensor for name, tensor in weights.items() if name.endswith("qzeros")}
        assert any(((tensor & 15) == 0).any() for tensor in zeros.values())
        weights |= {name: tensor - 0x11111111 for name, tensor in zeros.items()}
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        for name, layer in layers_of(loaded(tmp_path).model).items():
            assert torch.equal(layer.weight, stand_for[f"{name}.weight"]), name

    @pytest.mark.parametrize("block", [32, 64])
    def test_nf4_is_the_nearest_multiple_of_a_blocks_largest(self, block: int, tmp_path: Path) -> None:
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        plain = load_file(tmp_path / "model.safetensors")
        settings = {"quantization_block_size": block, "double_quantization": False}
        layers = layers_of(loaded(tmp_path, quantization="nf4", **settings).model)
        assert len(layers) == 2 * 7
        for name, layer in layers.items():
            torch.testing.assert_close(layer.weight, nf4(plain[f"{name}.weight"], block), rtol=1e-6, atol=1e-7)

    def test_nf4_is_what_bitsandbytes_makes_of_it_and_takes_a_seventh_of_float32(self, tmp_path: Path) -> None:
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        plain = load_file(tmp_path / "model.safetensors")
        for name, layer in layers_of(loaded(tmp_path, quantization="nf4").model).items():
            assert torch.equal(layer.weight, bitsandbytes(plain[f"{name}.weight"])[1]), name
        weight = torch.randn(512, 512)
        layer = BitsAndBytesLinear.from_weight(weight, None, torch.float32, 64, double_quantization=True)
        bits = 8 * sum(tensor.numel() * tensor.element_size() for tensor in layer.buffers()) / weight.numel()
        assert bits == pytest.approx(4.127, abs=0.04)  # QLoRA, section 3; the value tables weigh in a small layer

    @pytest.mark.slow
    def test_it_is_what_transformers_and_bitsandbytes_hold_and_save(self, tmp_path: Path) -> None:
        config = LlamaConfig(
            vocab_size=96, hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64,
        )  # fmt: skip
        random_model(config, tmp_path / "plain")
        from bitsandbytes.functional import dequantize_4bit

        options = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
        model: Any = AutoModelForCausalLM.from_pretrained(
            tmp_path / "plain", quantization_config=options, dtype=torch.float32, attn_implementation="eager"
        )
        model.save_pretrained(tmp_path / "packed")
        quantized, saved = loaded(tmp_path / "plain", quantization="nf4"), loaded(tmp_path / "packed")
        for name, layer in layers_of(quantized.model).items():
            weight = model.get_submodule(name).weight
            assert torch.equal(layer.weight, dequantize_4bit(weight.data, weight.quant_state)), name
            assert torch.equal(layer.weight, layers_of(saved.model)[name].weight), name

    @pytest.mark.slow
    def test_the_language_model_of_a_checkpoint_that_also_sees(self, tmp_path: Path) -> None:
        multimodal.saved("ministral 3", tmp_path)
        names = [name for name in load_file(tmp_path / "model.safetensors") if name.startswith("language_model.")]
        ends = tuple(name.removeprefix("language_model.") for name in names if name.endswith("_proj.weight"))
        stand_for = pack(tmp_path, "awq", ends)
        for name, layer in layers_of(loaded(tmp_path).model).items():
            assert torch.equal(layer.weight, stand_for.pop(f"language_model.{name}.weight")), name
        assert not stand_for

    def test_a_packed_head_is_dequantized_and_zeros_as_bias_are_left_out(self, tmp_path: Path) -> None:
        random_model(FAMILY["Llama"].small_config(), tmp_path)
        stand_for = pack(tmp_path, "gptq", ("proj.weight", "lm_head.weight"))
        weights = load_file(tmp_path / "model.safetensors")
        zeros = {f"model.layers.{layer}.self_attn.o_proj.bias": torch.zeros(32) for layer in (0, 1)}
        save_file({**weights, **zeros}, tmp_path / "model.safetensors", metadata={"format": "pt"})
        backbone = loaded(tmp_path)
        assert type(backbone.head) is nn.Linear
        assert torch.equal(backbone.head.weight, stand_for["lm_head.weight"])
        assert all(layer.bias is None for layer in layers_of(backbone.model).values())

    def test_a_packed_head_counts_although_the_configuration_ties_it(self, tmp_path: Path) -> None:
        random_model(FAMILY["Llama"].small_config(), tmp_path)
        stand_for = pack(tmp_path, "gptq", ("proj.weight", "lm_head.weight"))
        table = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**table, "tie_word_embeddings": True}))
        backbone = loaded(tmp_path)
        assert torch.equal(backbone.head.weight, stand_for["lm_head.weight"])
        assert not backbone.model.config.tie_word_embeddings

    def test_the_packed_head_of_a_checkpoint_that_also_sees_whose_tower_is_packed_too(self, tmp_path: Path) -> None:
        """The tower is ignored, packed or not."""
        multimodal.saved("ministral 3", tmp_path)
        weights = load_file(tmp_path / "model.safetensors")
        weights["language_model.lm_head.weight"] = torch.randn_like(weights["language_model.model.embed_tokens.weight"])
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        stand_for = pack(tmp_path, "gptq", ("_proj.weight", "lm_head.weight"))
        assert any(name.startswith("vision_tower.") for name in stand_for)
        backbone = loaded(tmp_path)
        assert torch.equal(backbone.head.weight, stand_for["language_model.lm_head.weight"])
        assert not backbone.model.config.tie_word_embeddings

    def test_packed_layers_outside_the_model_are_ignored(self, tmp_path: Path) -> None:
        """As layers that predict more tokens are, also with a number after the last layer's."""
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        pack(tmp_path, "gptq")
        weights = load_file(tmp_path / "model.safetensors")
        first = "model.layers.0."
        more = {name.removeprefix(first): it for name, it in weights.items() if name.startswith(first)}
        weights |= {
            f"{place}.{name}": it.clone() for place in ("mtp.layers.0", "model.layers.2") for name, it in more.items()
        }
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        assert len(layers_of(loaded(tmp_path).model)) == 2 * 7

    def test_packed_tensors_are_freed_layer_by_layer(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        pack(tmp_path, "gptq")
        packed, counts = WeakSet[PackedTensors](), list[int]()
        start, unpack = PackedTensors.__init__, GroupedInt4Linear.__init__

        def count_started(self: PackedTensors, *args: Any) -> None:
            start(self, *args)
            packed.add(self)

        def count_left(self: GroupedInt4Linear, *args: Any, **keywords: Any) -> None:
            counts.append(len(packed))
            unpack(self, *args, **keywords)

        monkeypatch.setattr(PackedTensors, "__init__", count_started)
        monkeypatch.setattr(GroupedInt4Linear, "__init__", count_left)
        loaded(tmp_path)
        assert counts == list(range(14, 0, -1))


class TestItComputesWhatItsDequantizedWeightsDo:
    @pytest.mark.parametrize("recomputed", [False, True], ids=["", "gradient checkpointing"])
    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("family", FORWARDS[:2])
    def test_log_probs_and_gradients(self, family: str, way: str, recomputed: bool, tmp_path: Path) -> None:
        random_model(FAMILY[family].small_config(), tmp_path)
        backbone = quantised(tmp_path, way, gradient_checkpointing=recomputed)
        assert backbone.fused == (family == "Qwen 2" and not recomputed)
        same_as_plain(backbone)

    @pytest.mark.slow
    @pytest.mark.parametrize("way", WAYS)
    def test_through_another_forward(self, way: str, tmp_path: Path) -> None:
        random_model(FAMILY[FORWARDS[2]].small_config(), tmp_path)
        same_as_plain(quantised(tmp_path, way))

    def test_on_the_models_own_forward(self, tmp_path: Path) -> None:
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        backbone = quantised(tmp_path, "nf4")
        backbone.use_slower_forward()
        backbone.use_slower_forward()
        assert backbone.native
        same_as_plain(backbone)

    @pytest.mark.parametrize("way", WAYS)
    def test_bfloat16_weights_on_a_cpu(self, way: str, tmp_path: Path) -> None:
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        backbone = quantised(tmp_path, way, torch.bfloat16)
        store_in_half(backbone)
        same_as_plain(backbone)

    def test_the_gradient_of_a_layers_input(self, tmp_path: Path) -> None:
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        for layer in layers_of(quantised(tmp_path, "awq").model).values():
            x = torch.randn(3, 5, layer.in_features, requires_grad=True)
            y = torch.nn.functional.linear(x, layer.weight, layer.bias)
            seen = torch.randn_like(y)
            (wanted,) = torch.autograd.grad(y, x, seen)
            out = layer(x)
            assert torch.equal(out, y)
            assert torch.equal(torch.autograd.grad(out, x, seen)[0], wanted)

    def test_packed_layers_on_a_gpu_as_on_the_host_and_in_a_cuda_graph(self, tmp_path: Path) -> None:
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        pack(tmp_path, "gptq in any order")
        with simulated_gpu():
            gpu = torch.device("cuda:0")
            layers = layers_of(load_backbone(ModelSettings(path=str(tmp_path)), gpu, torch.bfloat16).model)
            for name, layer in layers_of(loaded(tmp_path, torch.bfloat16).model).items():
                x = torch.randn(5, layer.in_features, dtype=torch.bfloat16)
                there = x.to(gpu)
                with torch.no_grad(), capturable():
                    out = layers[name](there)
                assert torch.equal(out.cpu(), layer(x)), name

    @pytest.mark.parametrize("family", FORWARDS[:2])
    def test_autograd_keeps_no_dequantized_matrix(self, family: str, tmp_path: Path) -> None:
        random_model(FAMILY[family].small_config(), tmp_path)
        backbone, kept = adapted(quantised(tmp_path, "nf4")), list[tuple[int, ...]]()

        def keep(tensor: Tensor) -> Tensor:
            kept.append(tuple(tensor.shape))
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            backbone.hidden_states(PackedRows.from_rows(ROWS, ["two"] * len(ROWS), CPU))
        matrices = {(layer.out_features, layer.in_features) for layer in layers_of(backbone.model).values()}
        states = {(37, width) for width in (16, 32, 48, 64)}  # of all tokens
        assert states & {shape[-2:] for shape in kept}
        assert not matrices & {shape[::order] for shape in kept for order in (1, -1)}

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("family", FORWARDS[:2])
    def test_decoding_gives_what_scoring_gives(self, family: str, way: str, tmp_path: Path) -> None:
        random_model(FAMILY[family].small_config(), tmp_path)
        backbone = quantised(tmp_path, way)
        plain = deepcopy(backbone.model)
        replace_by_dequantized(plain)
        assert not count_quantized_weights(plain)
        plain.set_attn_implementation("eager")
        with torch.no_grad():
            torch.testing.assert_close(scored(backbone), expected(plain), rtol=0, atol=1e-4)
            from_parts, whole = (decode(backbone, prompts) for prompts in ([1, 7, 3], [2, 22, 10]))
        torch.testing.assert_close(from_parts, whole, rtol=0, atol=1e-4)


def same_as_plain(backbone: Backbone) -> None:
    """Log-probs and gradients of adapters, with quantized layers and then with their dequantized weights."""
    mine = learned(adapted(backbone))
    assert len(layers_of(backbone.model)) > 3
    replace_by_dequantized(backbone.model)
    for layer in backbone.layers.values():
        assert type(layer.base) is nn.Linear
        layer.zero_grad()
    other = learned(backbone)
    torch.testing.assert_close(mine[0], other[0], rtol=0, atol=1e-6)
    same(mine[1], other[1])


class TestRefused:
    @pytest.mark.parametrize(
        ("way", "damage", "message"),
        [
            ("gptq", {"qzeros": None}, "lacks .*qzeros|has no qzeros"),
            ("gptq", {"scales": lambda it: it[:-1]}, "has 3 groups of scales for 32 inputs"),
            ("gptq", {"qweight": lambda it: it[:, :-8]}, "qweight has shape .* where config.json asks for"),
            ("gptq", {"qweight": lambda it: it.float()}, "qweight holds numbers of type torch.float32"),
            ("gptq", {"g_idx": lambda it: it * 0}, "g_idx does not assign 8 inputs to each of 4 groups"),
            ("awq", {"qweight": lambda it: it.T.contiguous()}, "qweight has shape"),
            ("awq", {"scales": lambda it: it * float("nan")}, "holds NaN or infinities"),
            ("bitsandbytes", {"weight.absmax": lambda it: it[:-1]}, "its absmax needs 16 numbers and has 15"),
            ("bitsandbytes", {"weight.quant_state.bitsandbytes__nf4": lambda it: it[:-9]}, "quant_state cannot be read"),
        ],
    )  # fmt: skip
    def test_damaged_tensors_are_named(self, way: str, damage: dict[str, Any], message: str, tmp_path: Path) -> None:
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        pack(tmp_path, way)
        weights = load_file(tmp_path / "model.safetensors")
        for end, change in damage.items():
            for name in [name for name in weights if "layers.1.self_attn.q_proj." in name and name.endswith(end)]:
                tensor = weights.pop(name)
                if change is not None:
                    weights[name] = change(tensor).contiguous()
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ValueError, match=message) as raised:
            loaded(tmp_path)
        assert str(raised.value).startswith("models: ")
        assert "q_proj" in str(raised.value)

    @pytest.mark.parametrize("double", [True, False])
    def test_weights_that_are_no_numbers(self, double: bool, tmp_path: Path) -> None:
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        weights = load_file(tmp_path / "model.safetensors")
        weights["model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ValueError, match=r"up_proj.* holds NaN or infinities"):
            loaded(tmp_path, quantization="nf4", double_quantization=double)

    def test_weights_of_another_shape(self, tmp_path: Path) -> None:
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        weights = load_file(tmp_path / "model.safetensors")
        weights["model.layers.1.mlp.up_proj.weight"] = torch.randn(50, 32)
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ValueError, match=r"up_proj"):
            loaded(tmp_path, quantization="nf4")

    def test_a_truncated_file(self, tmp_path: Path) -> None:
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        pack(tmp_path, "gptq")
        file = tmp_path / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(ValueError, match="cannot load"):
            loaded(tmp_path)

    @pytest.mark.parametrize(
        ("config", "named"),
        [
            ({"quant_method": "gptq", "bits": 8}, "gptq with 8 bits"),
            ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "gptq in the format marlin"),
            ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "awq in the format gemv"),
            ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes with 8 bits"),
            ({"load_in_4bit": True, "bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage = bfloat16"),
            ({"quant_method": "hqq"}, "hqq"),
        ],
    )
    def test_variants_are_named_with_what_to_do(self, config: dict[str, Any], named: str, tmp_path: Path) -> None:
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        describe(tmp_path, config)
        with pytest.raises(ValueError, match=rf"is quantised \(.*{named}\), which is not read here: take the"):
            loaded(tmp_path)

    def test_weights_that_are_not_packed_although_the_configuration_says_so(self, tmp_path: Path) -> None:
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        describe(tmp_path, FORMATS["gptq"][1])
        with pytest.raises(ValueError, match="none of its weights are quantised"):
            loaded(tmp_path)

    def test_nf4_of_what_is_quantized(self, tmp_path: Path) -> None:
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        pack(tmp_path, "awq")
        with pytest.raises(ValueError, match=r"is already quantized \(awq\).*set quantization = 'none'"):
            loaded(tmp_path, quantization="nf4")

    def test_packed_experts(self, tmp_path: Path) -> None:
        random_model(FAMILY["Qwen 3 with experts"].small_config(), tmp_path)
        pack(tmp_path, "gptq")
        with pytest.raises(ValueError, match=r"mlp.experts.0.*is packed \(gptq\).*packed experts are not read"):
            loaded(tmp_path)

    def test_a_layer_in_other_bits_is_named_with_them(self, tmp_path: Path) -> None:
        """As GPTQModel writes layers that ``dynamic`` names."""
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        pack(tmp_path, "gptq")
        weights, name = load_file(tmp_path / "model.safetensors"), "model.layers.1.mlp.up_proj"
        weights |= {f"{name}.{kind}": weights[f"{name}.{kind}"].repeat(*times) for kind, times in
                    (("qweight", (2, 1)), ("qzeros", (1, 2)))}  # fmt: skip
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ValueError, match=rf"^models: .*{name} has 8 bits, and only 4 bits are read here: take a"):
            loaded(tmp_path)

    def test_without_bitsandbytes_its_extra_is_named(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        monkeypatch.setitem(sys.modules, "bitsandbytes.functional", None)
        with pytest.raises(ValueError, match=r"bitsandbytes, which is not installed: pip install .*marft\[qlora\]"):
            loaded(tmp_path, quantization="nf4")
        pack(tmp_path, "gptq")
        assert layers_of(loaded(tmp_path).model)

    def test_a_wrong_layout_of_config_is_no_crash(self, tmp_path: Path) -> None:
        random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
        pack(tmp_path, "gptq")
        table = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**table, "intermediate_size": 40}))
        with pytest.raises(ValueError, match=r"qweight has shape|config.json asks for"):
            loaded(tmp_path)
