"""Loading of a :class:`Backbone` from ``[models.*]``: any Hugging Face id or folder with a supported architecture."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from marft.common.texts import visible
from marft.config.models import ModelSettings
from marft.models import attention
from marft.models.alone import one_at_a_time
from marft.models.backbone import Backbone
from marft.models.checking import (
    refuse_gaps,
    refuse_index,
    refuse_layers,
    refuse_not_finite,
    refuse_shapes,
    refuse_whole_numbers,
)
from marft.models.formats import SHOWN, WHAT_TO_GIVE, cause_of, context_of, first_line, load_config
from marft.models.forward_check import settle_forward
from marft.models.held_in_half import multiplies_halves_faster
from marft.models.paths import resolve_path
from marft.models.quantised import to_one_dtype, written_out

OF_TEXT = {
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
    r"^model\.language_model\.": "model.",
}  # text weights of multimodal checkpoints: names in the checkpoint, and in the text-only model


def pick_device(name: str) -> torch.device:
    """Return the device with this name; ``"auto"`` is the GPU, or the CPU without a GPU.

    Raises:
        ValueError: the device does not exist here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        why = "torch knows no such device" if str(error).startswith("Expected one of") else first_line(error)
        gpu = "'cuda' for an NVIDIA GPU, " if name.casefold().startswith(("gpu", "nvidia")) else ""
        raise ValueError(f"device: cannot use {name!r} here ({why}); use {gpu}'cpu' or 'auto'") from error
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype for a setting; ``"auto"`` is bfloat16 on a CUDA GPU and float32 elsewhere."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def learned_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the training dtype for full fine-tuning.

    It is the model's own dtype, or float32 on a CPU where half-precision products are not faster.
    """
    if device.type == "cpu" and not multiplies_halves_faster():
        return torch.float32
    return pick_dtype(name, device)


@one_at_a_time
def load_backbone(settings: ModelSettings, device: torch.device, dtype: torch.dtype, settled: bool = False) -> Backbone:
    """Load and check a base model; its weights are frozen by default.

    Args:
        settled: whether another process selects the forward mode and sends it.

    Raises:
        ValueError: the model does not exist, is unreadable, or has a computation that MARFT does not support.
    """
    attention.register()
    config, what = load_config(settings), f"models: {settings.path!r}"
    text, packed = text_config(config), written_out(config, what)
    folder = Path(resolve_path(settings.path))
    refuse_index(folder, what)
    if packed is None:
        refuse_whole_numbers(folder, what)
    refuse_layers(text, folder, what)
    if folder.is_dir():
        refuse_shapes(_made_of(text, dtype, what), text, folder, {} if text is config else OF_TEXT, what)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            resolve_path(settings.path), config=text, revision=settings.revision, dtype=dtype,
            key_mapping=None if text is config else OF_TEXT, quantization_config=packed,
            attn_implementation=attention.implementation_for(text),
            use_safetensors=True, trust_remote_code=False, ignore_mismatched_sizes=True, output_loading_info=True,
        )  # fmt: skip
    except Exception as error:
        raise ValueError(f"models: cannot load {settings.path!r}: {cause_of(error)}. {WHAT_TO_GIVE}") from error
    model, found = loaded
    assert isinstance(model, PreTrainedModel)
    if packed is not None:
        to_one_dtype(model, dtype)
    if packed is not None or text is not config:
        # saved checkpoints are unquantized text-only models with the names of a text-only model
        model._weight_conversions = None  # type: ignore[assignment]
    if text is not config and (head := model.get_output_embeddings()) is not None:
        model.config.tie_word_embeddings = head.weight is model.get_input_embeddings().weight
    refuse_gaps(model, found, what)
    torch.nn.Module.to(model, device).eval().requires_grad_(False)
    refuse_not_finite(model.state_dict(), what)
    backbone = Backbone(model, context_of(config, settings))
    backbone.fused = backbone.fused and not settings.gradient_checkpointing  # gradient checkpointing recomputes modules
    if not settled:
        settle_forward(backbone, what)
    if settings.gradient_checkpointing:
        backbone.recompute_activations()
    return backbone


@one_at_a_time
def outline(settings: ModelSettings, device: torch.device, dtype: torch.dtype) -> Backbone:
    """Build a base model for weights in other processes: names, shapes and types, without values.

    Raises:
        ValueError: its configuration cannot be read.
    """
    attention.register()
    config = load_config(settings)
    what = f"models: {settings.path!r}"
    text, folder = text_config(config), Path(resolve_path(settings.path))
    refuse_layers(text, folder, what)
    model = _made_of(text, dtype, what)
    backbone = Backbone(model.eval().requires_grad_(False), context_of(config, settings))
    backbone.lies_elsewhere(device)
    return backbone


def _made_of(config: PreTrainedConfig, dtype: torch.dtype, what: str) -> PreTrainedModel:
    """Build the configured model without memory, on the device "meta".

    Raises:
        ValueError: the model cannot be built.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):  # keeps the run's random state unchanged
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=attention.implementation_for(config)
            )
    except Exception as error:
        raise ValueError(f"{what}: cannot make what its config.json asks for: {cause_of(error)}") from error
    return model


@one_at_a_time
def load_weights(backbone: Backbone, folder: Path) -> None:
    """Load full model weights from a folder written by ``save_pretrained``, with any names and file splits.

    Raises:
        ValueError: the weights are damaged, or belong to another model.
    """
    model, what = backbone.model, f"the weights at {folder}"
    exact = torch.float32 if backbone.masters else backbone.head.weight.dtype
    try:
        loaded: Any = type(model).from_pretrained(
            folder, config=deepcopy(model.config), dtype=exact, use_safetensors=True,
            ignore_mismatched_sizes=True, output_loading_info=True,
        )  # fmt: skip
    except Exception as error:
        raise ValueError(f"cannot read {what}: {cause_of(error)}") from error
    read, found = loaded
    wrong = {kind: sorted(map(str, found[f"{kind}_keys"]))[:2] for kind in ("missing", "unexpected", "mismatched")}
    if any(wrong.values()):
        said = ", ".join(f"{kind} {names}" for kind, names in wrong.items() if names)
        raise ValueError(f"{what} do not fit: they are of another model ({said})")
    refuse_not_finite(read.state_dict(), what)
    backbone.take(read.state_dict())


def text_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the text configuration of a multimodal model, or the configuration itself.

    MARFT loads only the language model of a multimodal model.
    """
    if not isinstance(getattr(config, "text_config", None), PreTrainedConfig):
        return config
    text: PreTrainedConfig = deepcopy(config.get_text_config())
    for name in ("tie_word_embeddings", "quantization_config"):  # declared for the whole model
        if hasattr(config, name):
            setattr(text, name, getattr(config, name))
    return text


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, backbone: Backbone, name: str) -> None:
    """Check for an embedding row for every token of the tokenizer.

    Raises:
        ValueError: the tokenizer belongs to another model.
    """
    # added tokens may exceed the model's vocabulary
    rows, added = backbone.head.weight.shape[0], tokenizer.added_tokens_encoder
    if tokenizer.vocab_size > rows:
        raise ValueError(
            f"models.{name}: its tokenizer has {tokenizer.vocab_size} tokens and its model knows {rows}; they are not "
            "of the same model"
        )
    ids = {id: token for token, id in tokenizer.get_vocab().items() if token not in added}
    if (last := max(ids, default=0)) >= rows:
        raise ValueError(
            f"models.{name}: its tokenizer.json gives {visible(ids[last][:SHOWN])!r} the id {last}, and its model "
            f"knows {rows} tokens; they are not of the same model, or the file was changed: get the model again"
        )
