"""Small random copy of a model: the same architecture with few, narrow layers, for fast checks."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from marft.models.load_lock import with_load_lock

VOCAB_SIZE, HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_EXPERTS, WINDOW_SIZE, SEED = 96, 64, 48, 4, 7, 20
TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
LENGTH_SETTINGS = re.compile(
    r"\w*window|attention_chunk_size|floor_scale|\w+_n_floor|original_max_position_embeddings|compress_rate\w*"
)  # settings in tokens above which the computation changes
# rotary embeddings that depend on the row length; ``context`` stays below their limits
DYNAMIC_ROPE_TYPES = ("longrope", "dynamic")


@with_load_lock
def build_small_copy(model: PreTrainedModel, decoder: nn.Module) -> PreTrainedModel | None:
    """Build a float32 copy with each kind of layer; None if shrinking the configuration fails.

    Windows are short, and weights are large enough for caps, sinks and scales to affect the result. Parameters that a
    new model initializes to 0 or 1 get other values. The copy does not depend on the global random generator and does
    not advance it.
    """
    try:
        config = build_small_config(model, decoder)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            copy = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    except Exception:  # noqa: BLE001  each configuration class has its own checks
        return None
    if type(copy.get_decoder()) is not type(decoder):
        return None
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for weight in [*copy.parameters(), *_constant_buffers(copy)]:
            weight.copy_(_random_values(weight, generator))
    ready: PreTrainedModel = copy.eval().requires_grad_(False)
    return ready


def build_small_config(model: PreTrainedModel, decoder: nn.Module) -> PreTrainedConfig:
    """Return a configuration with few, narrow layers of every kind, and with lengths below typical row lengths.

    Raises:
        Exception: any exception, if the configuration has an unknown structure.
    """
    config: Any = deepcopy(model.config.get_text_config())
    depth, layers = config.num_hidden_layers, _num_layers(decoder, config)
    for name, value in vars(config).items():
        if isinstance(value, list | tuple) and len(value) == depth:
            setattr(config, name, type(value)(value[:layers]))
    config.num_hidden_layers = layers
    config.vocab_size = VOCAB_SIZE
    for name, value in TOKEN_IDS.items():
        setattr(config, name, value)
    _reduce_heads(config)
    _limit_lengths(vars(config))
    for name in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"):
        if (getattr(config, name, None) or 0) > NUM_EXPERTS:
            setattr(config, name, NUM_EXPERTS)
    if (getattr(config, "num_experts_per_tok", None) or 0) >= NUM_EXPERTS:
        config.num_experts_per_tok = 2
    small: PreTrainedConfig = config
    return small


def _limit_lengths(table: dict[str, Any], parent: str = "") -> None:
    """Limit windows and length thresholds to ``WINDOW_SIZE``, also in nested tables."""
    for name, value in table.items():
        if isinstance(value, dict) and value.get("rope_type") not in DYNAMIC_ROPE_TYPES:
            _limit_lengths(value, name)
        elif type(value) is int and (LENGTH_SETTINGS.fullmatch(name) or LENGTH_SETTINGS.fullmatch(parent)):
            table[name] = min(value, WINDOW_SIZE)


def _reduce_heads(config: Any) -> None:
    """Reduce the number of heads, but keep their size, because rotary embeddings depend on it."""
    heads = config.num_attention_heads
    keys = getattr(config, "num_key_value_heads", None) or heads
    fewer_keys = min(keys, 2)
    fewer = fewer_keys * min(heads // keys, 2)
    head = getattr(config, "head_dim", None)
    config.hidden_size = HIDDEN_SIZE if head else config.hidden_size // heads * fewer
    config.num_attention_heads = fewer
    if getattr(config, "num_key_value_heads", None):
        config.num_key_value_heads = fewer_keys
    for name in ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size"):
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, INTERMEDIATE_SIZE)


def _num_layers(decoder: Any, config: Any) -> int:
    """Return the smallest number of leading layers, at least two, with every kind of layer."""
    kinds = [_describe_layer(layer, index, config) for index, layer in enumerate(decoder.layers)]
    return max(2, max(kinds.index(kind) for kind in set(kinds)) + 1) if len(kinds) > 1 else 1


def _describe_layer(layer: nn.Module, index: int, config: Any) -> str:
    """Describe a layer: modules, their settings, and per-layer values in the configuration."""
    parts = [(name, type(module).__name__, _module_settings(module)) for name, module in layer.named_modules()]
    listed = [
        (name, value[index])
        for name, value in sorted(vars(config).items())
        if isinstance(value, list | tuple) and len(value) == config.num_hidden_layers
    ]
    return repr((parts, listed))


def _module_settings(module: nn.Module) -> list[tuple[str, object]]:
    return sorted(
        (name, value)
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | str | None) and "layer_idx" not in name and "layer_index" not in name
    )


def _constant_buffers(model: nn.Module) -> list[Tensor]:
    """Return saved buffers with a constant initial value in a new model, such as a router's correction bias."""
    saved = model.state_dict()
    buffers = [buffer for name, buffer in model.named_buffers() if name in saved and buffer.is_floating_point()]
    return [buffer for buffer in buffers if bool((buffer == buffer.flatten()[0]).all())]


def _random_values(parameter: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(parameter.shape, generator=generator)
    if parameter.dim() < 2:
        return parameter + 0.3 * noise  # norms, biases, sinks
    return noise.mul(2 / parameter.shape[-1] ** 0.5)
