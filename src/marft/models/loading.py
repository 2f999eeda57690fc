"""From ``[models.*]`` to a :class:`Backbone`: any Hugging Face id or folder whose attention can be plugged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from marft.config.models import ModelSettings
from marft.models import attention
from marft.models.backbone import Backbone, PackedRows
from marft.models.checking import refuse_gaps, refuse_not_finite
from marft.models.formats import WHAT_TO_GIVE, cause_of, context_of, first_line, load_config
from marft.models.log_probs import scaled_logits
from marft.models.paths import resolve_path
from marft.types import TokenIds


def pick_device(name: str) -> torch.device:
    """``"auto"`` → the GPU where there is one.

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
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def load_backbone(settings: ModelSettings, device: torch.device, dtype: torch.dtype) -> Backbone:
    """Load and check a base model; its weights are frozen until a policy asks for them.

    Raises:
        ValueError: the model cannot be found or read, or computes something that MARFT's forward does not.
    """
    attention.register()
    config, what = load_config(settings), f"models: {settings.path!r}"
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            resolve_path(settings.path), revision=settings.revision, dtype=dtype,
            attn_implementation=attention.IMPLEMENTATION,
            use_safetensors=True, trust_remote_code=False, ignore_mismatched_sizes=True, output_loading_info=True,
        )  # fmt: skip
    except Exception as error:
        raise ValueError(f"models: cannot load {settings.path!r}: {cause_of(error)}. {WHAT_TO_GIVE}") from error
    model, found = loaded
    assert isinstance(model, PreTrainedModel)
    refuse_gaps(model, found, what)
    torch.nn.Module.to(model, device).eval().requires_grad_(False)
    refuse_not_finite(dict(model.named_parameters()), what)
    backbone = Backbone(model, context_of(config, settings))
    check_forward(backbone, settings.path)
    if settings.gradient_checkpointing:
        backbone.recompute_activations()
    return backbone


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, backbone: Backbone, name: str) -> None:
    """See that a model has an embedding for what its tokenizer says.

    Raises:
        ValueError: the tokenizer is of another model.
    """
    rows = backbone.head.weight.shape[0]
    if tokenizer.vocab_size > rows:
        raise ValueError(
            f"models.{name}: its tokenizer has {tokenizer.vocab_size} tokens and its model knows {rows}; they are not "
            "of the same model"
        )


@torch.no_grad()
def check_forward(backbone: Backbone, name: str) -> None:
    """Hold MARFT's packed forward to the model's own, on two short rows.

    Raises:
        ValueError: they differ: the architecture scales its logits, caps its attention, or does something else
            that the packed forward leaves out.
    """
    model = backbone.model
    if not getattr(model, "_supports_attention_backend", False):
        raise ValueError(
            f"models: the attention of {name!r} ({type(model).__name__}) cannot be plugged; use another model"
        )
    vocabulary = backbone.head.weight.shape[0]
    rows = [(torch.arange(length) * 7919 % vocabulary).numpy().astype("int32") for length in (5, 9)]
    model.set_attn_implementation("eager")
    try:
        own = torch.cat([model(torch.from_numpy(row).long()[None].to(backbone.device)).logits[0] for row in rows])
    finally:
        model.set_attn_implementation(attention.IMPLEMENTATION)
    tolerance = 1e-3 if backbone.head.weight.dtype == own.dtype == torch.float32 else 0.25
    error = _largest_difference(backbone, rows, own)
    if backbone.fused and not error < tolerance:
        backbone.fused = False
        error = _largest_difference(backbone, rows, own)
    if not error < tolerance:
        raise ValueError(
            f"models: {name!r} ({type(model).__name__}) computes something that the packed forward does not "
            f"(log-probs differ by {error:.2g}); use a model of a plainer architecture, such as Qwen2, Qwen3 or Llama"
        )


def _largest_difference(backbone: Backbone, rows: Sequence[TokenIds], logits: Tensor) -> float:
    """Of log-probs, between the packed forward and given logits."""
    packed = PackedRows.of(rows, [None] * len(rows), backbone.device)
    mine = scaled_logits(backbone.hidden_states(packed), backbone.head.weight, backbone.head.bias, None)
    return (mine.log_softmax(-1) - logits.float().log_softmax(-1)).abs().max().item()
