"""Of checkpoints that also see, the language model is loaded: it reads and writes what the whole does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from tools.model_families import (
    HEADS_CONFIG,
    LINEAR_CONFIG,
    SCALED_ROPE,
    SMALL_CONFIG,
    WINDOW_CONFIG,
    forward_name,
    scale_up_weights,
)
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Ministral3Config,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PixtralVisionConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
)

from marft.config.models import LoraSettings, ModelSettings
from marft.inference.chat_messages import ChatFormat, tokenize_messages
from marft.models.adapter_files import save_adapter
from marft.models.control_tokens import exempt_reasoning_tags
from marft.models.loader import TEXT_KEY_MAPPING, load_backbone, load_weights, text_config
from marft.models.tokenizer_format import load_format
from tests.marft.models.test_families import CPU, expected, scored

TEXT = {**SMALL_CONFIG, **HEADS_CONFIG}
SMALL_TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SQUARES = {"image_size": 28, "patch_size": 14}


def gemma3() -> PreTrainedModel:
    config = Gemma3Config(
        text_config={**TEXT, **WINDOW_CONFIG, "num_hidden_layers": 6, "query_pre_attn_scalar": 16},
        vision_config={**SMALL_TOWER, **SQUARES}, image_token_index=90, mm_tokens_per_image=4,
    )  # fmt: skip
    return Gemma3ForConditionalGeneration(config)


def ministral3() -> PreTrainedModel:
    tower = PixtralVisionConfig(**SMALL_TOWER, **SQUARES, head_dim=8)
    text = Ministral3Config(**TEXT, rope_parameters=SCALED_ROPE)
    return Mistral3ForConditionalGeneration(
        Mistral3Config(
            text_config=text.to_dict(),
            vision_config=tower.to_dict(),
            image_token_index=90,
            tie_word_embeddings=False,
        )
    )


def qwen35() -> PreTrainedModel:
    tower = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32,
             "patch_size": 4, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}  # fmt: skip
    text = {**TEXT, **LINEAR_CONFIG, "num_hidden_layers": 4}
    return Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=text, vision_config=tower, image_token_id=90))


def gemma4() -> PreTrainedModel:
    text = {**TEXT, "vocab_size_per_layer_input": 96, "hidden_size_per_layer_input": 8, "pad_token_id": 0}
    return Gemma4ForConditionalGeneration(
        Gemma4Config(text_config=text, vision_config={**SMALL_TOWER, "head_dim": 8}, image_token_id=90, pad_token_id=0)
    )


WHOLE: dict[str, tuple[Callable[[], PreTrainedModel], str]] = {
    "gemma 3": (gemma3, "packed"), "ministral 3": (ministral3, "packed"), "qwen 3.5": (qwen35, "packed"),
    "gemma 4": (gemma4, "packed"),
}  # fmt: skip
EACH = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "gemma 3" else pytest.mark.slow) for name in WHOLE]
)


def saved(name: str, folder: Path) -> PreTrainedModel:
    torch.manual_seed(0)
    model = WHOLE[name][0]().eval()
    scale_up_weights(model)
    model.save_pretrained(folder)
    return model


@EACH
def test_the_language_model_says_what_the_whole_does_of_a_text(name: str, tmp_path: Path) -> None:
    whole = saved(name, tmp_path)
    backbone = load_backbone(ModelSettings(path=str(tmp_path)), CPU, torch.float32)
    assert forward_name(backbone) == WHOLE[name][1]
    with torch.no_grad():
        torch.testing.assert_close(scored(backbone), expected(whole), rtol=0, atol=1e-4)


@EACH
def test_its_format_is_its_texts(name: str, tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """Also where nothing is said of the ends of a turn but in what it says of its text."""
    saved(name, tmp_path)
    file = tmp_path / "config.json"
    table = json.loads(file.read_text())
    table.pop("eos_token_id", None)
    table["text_config"] |= {"eos_token_id": 5, "vocab_size": len(tiny_tokenizer)}
    file.write_text(json.dumps(table))
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    tiny_tokenizer.save_pretrained(tmp_path)
    assert 5 in load_format(ModelSettings(path=str(tmp_path))).stop_ids


def test_a_head_of_its_own_is_said_to_be_one(tmp_path: Path) -> None:
    """Whatever the whole says of heads: what is saved of it later is read by that."""
    config = ministral3().config
    config.tie_word_embeddings, config.text_config.tie_word_embeddings = True, False
    torch.manual_seed(0)
    model = Mistral3ForConditionalGeneration(config)
    model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight))
    scale_up_weights(model)
    model.save_pretrained(tmp_path)
    backbone = load_backbone(ModelSettings(path=str(tmp_path)), CPU, torch.float32)
    tied = backbone.head.weight is backbone.model.get_input_embeddings().weight
    assert backbone.model.config.tie_word_embeddings is tied


@EACH
def test_nothing_is_read_of_what_sees(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path)
    backbone = load_backbone(ModelSettings(path=str(tmp_path)), CPU, torch.float32)
    assert not [n for n in backbone.model.state_dict() if "vision" in n or "visual" in n or "projector" in n]
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert any("vi" in name for name in file.keys())  # noqa: SIM118  no mapping


@EACH
def test_adapters_are_pefts_on_the_language_model(name: str, tmp_path: Path) -> None:
    """Their names begin with base_model.model.model.layers, as for a model that only reads."""
    saved(name, tmp_path / "base")
    backbone = load_backbone(ModelSettings(path=str(tmp_path / "base")), CPU, torch.float32)
    lora = LoraSettings(rank=3, alpha=6.0, target_modules=("down_proj", "q_proj"))
    backbone.add_adapter("one", lora.rank, lora.alpha, lora.target_modules, seed=0)
    for adapter in backbone.adapters("one").values():
        nn.init.normal_(adapter.b, std=0.1)
    save_adapter(backbone.adapters("one"), lora, str(tmp_path / "base"), tmp_path / "adapter")
    with safe_open(tmp_path / "adapter" / "adapter_model.safetensors", "pt") as file:
        assert all(key.startswith("base_model.model.model.layers.") for key in file.keys())  # noqa: SIM118
    text = AutoModelForCausalLM.from_pretrained(
        tmp_path / "base",
        config=text_config(AutoConfig.from_pretrained(tmp_path / "base")),
        key_mapping=TEXT_KEY_MAPPING,
    )
    other = PeftModel.from_pretrained(text, str(tmp_path / "adapter")).eval()
    with torch.no_grad():
        mine = scored(backbone, "one")
        assert (mine - scored(backbone)).abs().max() > 0.01
        torch.testing.assert_close(mine, expected(other), rtol=0, atol=1e-4)


@EACH
def test_a_language_model_that_was_tuned_whole_is_saved_and_loaded_as_one(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path / "whole")
    backbone = load_backbone(ModelSettings(path=str(tmp_path / "whole")), CPU, torch.float32)
    with torch.no_grad():
        backbone.decoder.layers[0].mlp.up_proj.weight.add_(0.1)
        wanted = scored(backbone)
        backbone.model.save_pretrained(tmp_path / "tuned")
        again = load_backbone(ModelSettings(path=str(tmp_path / "tuned")), CPU, torch.float32)
        torch.testing.assert_close(scored(again), wanted, rtol=0, atol=1e-5)
        backbone.decoder.layers[0].mlp.up_proj.weight.sub_(0.1)
        load_weights(backbone, tmp_path / "tuned")
        torch.testing.assert_close(scored(backbone), wanted, rtol=0, atol=1e-5)


def test_nobody_can_write_an_image_into_a_chat(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """What stands for an image would be read as its embedding, which no image has filled."""
    tiny_tokenizer.add_special_tokens({"additional_special_tokens": ["<image>", "<|image_pad|>"]})
    exempt_reasoning_tags(tiny_tokenizer)
    format = ChatFormat(tiny_tokenizer, 512, {}, (tiny_tokenizer.eos_token_id,))
    images = tiny_tokenizer.convert_tokens_to_ids(["<image>", "<|image_pad|>"])
    ids = tokenize_messages(format, [{"role": "user", "content": "See <image> and <|image_pad|>."}])
    assert not {*ids.tolist()} & {*images}
