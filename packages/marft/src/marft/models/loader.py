"""Loading of a :class:`Backbone` from ``[models.*]``: any Hugging Face id or folder with a supported architecture.

A checkpoint in FP8 or MXFP4 is dequantized. GPTQ, AWQ and 4-bit bitsandbytes checkpoints keep their 4 bits, and
``quantization = "nf4"`` quantizes an unquantized checkpoint (:mod:`marft.models.quantization`). Other methods are
rejected by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.quantization_config import FineGrainedFP8Config, Mxfp4Config

from marft.common.errors import UserError
from marft.common.texts import sanitize
from marft.config.bundled import resolve_path
from marft.config.models import ModelSettings
from marft.models import attention
from marft.models.backbone import Backbone
from marft.models.checkpoint_checks import (
    check_complete,
    check_finite,
    check_layer_count,
    check_not_quantized,
    check_tensor_shapes,
    check_weight_index,
)
from marft.models.forward_check import select_forward
from marft.models.half_precision import has_fast_half
from marft.models.load_lock import with_load_lock
from marft.models.quantization import bitsandbytes_functions, count_quantized_weights
from marft.models.quantized_checkpoints import Nf4Config, PackedConfig, read_packed_config, unpack_layers
from marft.models.tokenizer_format import (
    MAX_SHOWN_LENGTH,
    MODEL_HINT,
    context_length,
    describe_cause,
    first_line,
    load_config,
)

TEXT_KEY_MAPPING = {
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
    r"^model\.language_model\.": "model.",
}  # text weights of multimodal checkpoints: names in the checkpoint, and in the text-only model
HINT = (
    "take the checkpoint that it was made from (the card of the model names it), or write it out where it can be read: "
    "load it with transformers, model.dequantize(), and save_pretrained(folder)"
)


def pick_device(name: str) -> torch.device:
    """Return the device with this name; ``"auto"`` is the GPU, or the CPU without a GPU.

    Raises:
        UserError: the device does not exist here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = "torch knows no such device" if str(error).startswith("Expected one of") else first_line(error)
        gpu = "'cuda' for an NVIDIA GPU, " if name.casefold().startswith(("gpu", "nvidia")) else ""
        raise UserError(f"device: cannot use {name!r} here ({reason}); use {gpu}'cpu' or 'auto'") from error
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype for a setting; ``"auto"`` is bfloat16 on a CUDA GPU and float32 elsewhere."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def training_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the training dtype for full fine-tuning.

    It is the model's own dtype, or float32 on a CPU where half-precision products are not faster.
    """
    if device.type == "cpu" and not has_fast_half():
        return torch.float32
    return pick_dtype(name, device)


@with_load_lock
def load_backbone(
    settings: ModelSettings, device: torch.device, dtype: torch.dtype, skip_forward_check: bool = False
) -> Backbone:
    """Load and check a base model; its weights are frozen by default.

    Args:
        skip_forward_check: whether another process selects the forward mode and sends it.

    Raises:
        UserError: the model does not exist, is unreadable, or has a computation that MARFT does not support.
    """
    attention.register_attention()
    config, label = load_config(settings), f"models: {settings.path!r}"
    text, quantization = text_config(config), read_quantization(config, settings, device, dtype, label)
    folder = Path(resolve_path(settings.path))
    key_mapping = {} if text is config else dict(TEXT_KEY_MAPPING)
    check_weight_index(folder, label)
    if quantization is None or isinstance(quantization, Nf4Config):
        check_not_quantized(folder, label)
    check_layer_count(text, folder, label)
    if folder.is_dir():
        check_tensor_shapes(_build_meta_model(text, dtype, label), text, folder, key_mapping, label)
    if isinstance(quantization, PackedConfig):
        key_mapping |= quantization.key_mapping
        quantization.key_mapping = key_mapping
    if isinstance(quantization, Nf4Config | PackedConfig):
        text.quantization_config = None  # transformers has no part in it
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            resolve_path(settings.path),
            config=text,
            revision=settings.revision,
            dtype=dtype,
            key_mapping=key_mapping or None,
            quantization_config=quantization,
            attn_implementation=attention.attention_implementation(text),
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except UserError:
        raise
    except Exception as error:  # transformers raises many types of errors
        raise UserError(f"models: cannot load {settings.path!r}: {describe_cause(error)}. {MODEL_HINT}") from error
    model, loading_info = loaded
    assert isinstance(model, PreTrainedModel)
    if isinstance(quantization, FineGrainedFP8Config | Mxfp4Config):
        convert_dtype(model, dtype)
    if quantization is not None or text is not config:
        # saved checkpoints are unquantized text-only models with the names of a text-only model
        model._weight_conversions = None  # type: ignore[assignment]
    check_complete(model, loading_info, label)
    if isinstance(quantization, PackedConfig):
        unpack_layers(model, quantization, dtype, device)
    if text is not config and (head := model.get_output_embeddings()) is not None:
        model.config.tie_word_embeddings = head.weight is model.get_input_embeddings().weight
    if isinstance(quantization, Nf4Config | PackedConfig):
        check_quantized(model, label)
    torch.nn.Module.to(model, device).eval().requires_grad_(False)
    check_finite(model.state_dict(), label)
    backbone = Backbone(model, context_length(config, settings))
    backbone.fused = backbone.fused and not settings.gradient_checkpointing  # gradient checkpointing recomputes modules
    if not skip_forward_check:
        select_forward(backbone, label)
    if settings.router_replay:
        backbone.enable_router_replay(label)
    if settings.gradient_checkpointing:
        backbone.checkpoint_activations()
    return backbone


@with_load_lock
def build_meta_backbone(settings: ModelSettings, device: torch.device, dtype: torch.dtype) -> Backbone:
    """Build a base model for weights in other processes: names, shapes and types, without values.

    Raises:
        UserError: its configuration cannot be read.
    """
    attention.register_attention()
    config = load_config(settings)
    label = f"models: {settings.path!r}"
    text, folder = text_config(config), Path(resolve_path(settings.path))
    check_layer_count(text, folder, label)
    model = _build_meta_model(text, dtype, label)
    backbone = Backbone(model.eval().requires_grad_(False), context_length(config, settings))
    backbone.mark_remote(device)
    return backbone


def _build_meta_model(config: PreTrainedConfig, dtype: torch.dtype, label: str) -> PreTrainedModel:
    """Build the configured model without memory, on the device "meta".

    Raises:
        UserError: the model cannot be built.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):  # keeps the run's random state unchanged
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=attention.attention_implementation(config)
            )
    except Exception as error:  # each model class has its own checks
        raise UserError(f"{label}: cannot make what its config.json asks for: {describe_cause(error)}") from error
    return model


@with_load_lock
def load_weights(backbone: Backbone, folder: Path) -> None:
    """Load full model weights from a folder written by ``save_pretrained``, with any names and file splits.

    Raises:
        UserError: the weights are damaged, or belong to another model.
    """
    model, label = backbone.model, f"the weights at {folder}"
    dtype = torch.float32 if backbone.master_weights else backbone.head.weight.dtype
    try:
        loaded: Any = type(model).from_pretrained(
            folder,
            config=deepcopy(model.config),
            dtype=dtype,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except Exception as error:  # transformers raises many types of errors
        raise UserError(f"cannot read {label}: {describe_cause(error)}") from error
    loaded_model, loading_info = loaded
    mismatches = {
        kind: sorted(map(str, loading_info[f"{kind}_keys"]))[:2] for kind in ("missing", "unexpected", "mismatched")
    }
    if any(mismatches.values()):
        problems = ", ".join(f"{kind} {names}" for kind, names in mismatches.items() if names)
        raise UserError(f"{label} do not fit: they are of another model ({problems})")
    check_finite(loaded_model.state_dict(), label)
    backbone.load_weights(loaded_model.state_dict())


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
        UserError: the tokenizer belongs to another model.
    """
    # added tokens may exceed the model's vocabulary
    rows, added = backbone.head.weight.shape[0], tokenizer.added_tokens_encoder
    if tokenizer.vocab_size > rows:
        raise UserError(
            f"models.{name}: its tokenizer has {tokenizer.vocab_size} tokens and its model knows {rows}; they are not "
            "of the same model"
        )
    ids = {id: token for token, id in tokenizer.get_vocab().items() if token not in added}
    if (last := max(ids, default=0)) >= rows:
        raise UserError(
            f"models.{name}: its tokenizer.json gives {sanitize(ids[last][:MAX_SHOWN_LENGTH])!r} the id {last}, and "
            f"its model knows {rows} tokens; they are not of the same model, or the file was changed: get the model "
            "again"
        )


QuantizationConfig = FineGrainedFP8Config | Mxfp4Config | Nf4Config | PackedConfig


def read_quantization(
    config: PreTrainedConfig, settings: ModelSettings, device: torch.device, dtype: torch.dtype, label: str
) -> QuantizationConfig | None:
    """Return how a checkpoint's weights are dequantized or quantized; None for unquantized weights.

    Args:
        label: the model's name in errors.

    Raises:
        UserError: the quantization method is unsupported, its configuration is invalid, or a package is missing.
    """
    quantization_config: Any = getattr(config, "quantization_config", None)
    if quantization_config is None:
        if settings.quantization == "none":
            return None
        bitsandbytes_functions()
        return Nf4Config(
            block_size=settings.quantization_block_size,
            double_quantization=settings.double_quantization,
            dtype=dtype,
            device=device,
        )
    table: Mapping[str, Any] = (
        quantization_config if isinstance(quantization_config, Mapping) else quantization_config.to_dict()
    )
    method = str(getattr(table.get("quant_method"), "value", table.get("quant_method")) or "")
    if not method and (table.get("load_in_4bit") or table.get("load_in_8bit")):
        method = "bitsandbytes"
    if settings.quantization != "none":
        raise UserError(
            f"{label} is already quantized ({method}), and quantization = {settings.quantization!r} needs an "
            "unquantized checkpoint: set quantization = 'none' to use its own, or take the checkpoint that it was made "
            "from"
        )
    return _read_quantized(method, table, label)


def _read_quantized(method: str, table: Mapping[str, Any], label: str) -> QuantizationConfig:
    """Return how a quantized checkpoint is read.

    Raises:
        UserError: the quantization method is unsupported, or its configuration is invalid.
    """
    skip_modules = table.get("modules_to_not_convert")
    try:
        if method == "mxfp4":
            return Mxfp4Config(modules_to_not_convert=skip_modules, dequantize=True)
        if method == "fp8":
            options = {key: table[key] for key in ("activation_scheme", "weight_block_size") if key in table}
            return FineGrainedFP8Config(modules_to_not_convert=skip_modules, dequantize=True, **options)
    except (TypeError, ValueError) as error:
        raise UserError(f"{label}: its quantization_config cannot be read ({error}): {HINT}") from error
    try:
        packed = read_packed_config(method, table, label)
    except UserError as error:
        raise UserError(f"{label} is quantised ({error}), which is not read here: {HINT}") from error
    if packed is None:
        raise UserError(f"{label} is quantised ({method or 'in an unknown way'}), which is not read here: {HINT}")
    return packed


def check_quantized(model: PreTrainedModel, label: str) -> None:
    """Check for layers in 4 bits.

    Raises:
        UserError: there are none.
    """
    if not count_quantized_weights(model):
        raise UserError(
            f"{label}: none of its weights are quantised linear layers of {type(model).__name__}, although recipe or "
            f"config.json say so: {HINT}"
        )


def convert_dtype(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Convert dequantized weights to the requested dtype, except weights that the model keeps in float32."""
    fp32_modules = {*(model._keep_in_fp32_modules or ()), *(model._keep_in_fp32_modules_strict or ())}
    for name, weight in model.named_parameters():
        if not any(part in name for part in fp32_modules):
            weight.data = weight.data.to(dtype)
