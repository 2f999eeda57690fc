"""Selection of a model's forward mode, verified numerically at load time.

Two checks tell rounding from a different architecture. The first uses a small float32 copy of the model with active
windows, caps and sinks. The mode's result must equal the copy's own forward, because only a different computation could
cause a difference. The second uses the real weights. The difference from the model's own forward may be only slightly
larger than the model's own noise, measured with another attention implementation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from marft.common.errors import UserError
from marft.common.types import TokenIds
from marft.models import attention
from marft.models.backbone import Backbone
from marft.models.decode_cache import new_decode_cache
from marft.models.load_lock import with_load_lock
from marft.models.packed_rows import PackedRows

FLOAT32_TOLERANCE = 1e-3  # nats: tolerance for the order of sums in float32
HALF_TOLERANCE = 0.02  # nats per token: tolerance for half precision, on average
NOISE_MULTIPLE = 4.0  # alternative tolerance, as a multiple of the model's own noise
OTHER_MODEL_HINT = "use a model of another architecture (docs/models.md lists them)"
CALL_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
# layer types that can be packed; the last ones have neither attention nor states
PACKABLE_LAYERS = {"full_attention", "sliding_attention", "linear_attention", "conv", "hybrid", "moe", "mlp"}
COMPARED_TOKENS = 8  # tokens compared at each position; other tokens are practically never sampled
COPY_LENGTHS, MODEL_LENGTHS = (5, 40, 17), (7, 36)  # row lengths for the small copy and the real model
VOCAB_SIZE, HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_EXPERTS, WINDOW_SIZE, CHUNK_SIZE, SEED = 96, 64, 48, 4, 7, 16, 20
TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
LENGTH_SETTINGS = re.compile(
    r"\w*window|attention_chunk_size|floor_scale|\w+_n_floor|original_max_position_embeddings|compress_rate\w*"
)  # settings in tokens above which the computation changes
# rotary embeddings that depend on the row length; ``context`` stays below their limits
DYNAMIC_ROPE_TYPES = ("longrope", "dynamic")


def select_forward(backbone: Backbone, label: str) -> None:
    """Select the fastest forward mode with the same results as the model.

    Args:
        label: the model's name in errors.

    Raises:
        UserError: no mode gives the same results.
    """
    native_logits = None
    while not backbone.native:
        if _same_architecture(backbone):
            if native_logits is None:
                native_logits = _native_logits(backbone.model, _model_rows(backbone), "eager")
            for fp32_residual in (True, False) if backbone.is_half else (False,):
                backbone.fp32_residual = fp32_residual
                if _matches_on_weights(backbone, native_logits):
                    return
        backbone.use_slower_forward()
    _check_row_independence(backbone, label)


def _same_architecture(backbone: Backbone) -> bool:
    """Return whether the backbone's forward matches the model's own forward on a small copy."""
    key = type(backbone.model), backbone.fused, backbone.native, backbone.model.config.to_json_string()
    if key not in _checked:
        copy = build_small_copy(backbone.model, backbone.decoder)
        native_logits = None if copy is None else _try_native_logits(copy)
        matches = (
            native_logits is not None
            and copy is not None
            and _matches_native(copy, native_logits, backbone.fused, backbone.native)
        )
        _checked[key] = matches or (backbone.native and native_logits is None)
    return _checked[key]


_checked: dict[tuple[type, bool, bool, str], bool] = {}  # a run may load a model several times


def _try_native_logits(copy: PreTrainedModel) -> Tensor | None:
    """Return the logits from a small model's own forward; None if its configuration cannot be shrunk."""
    try:
        return _native_logits(copy, _make_rows(COPY_LENGTHS, VOCAB_SIZE), "eager")
    except CALL_ERRORS:
        return None


def _matches_native(copy: PreTrainedModel, native_logits: Tensor, fused: bool, native: bool) -> bool:
    """Return whether a small model's packed forward and decoding match its own logits."""
    if not native and not _supports_packing(copy):
        return False
    rows = _make_rows(COPY_LENGTHS, VOCAB_SIZE)
    try:
        backbone = Backbone(copy, max(COPY_LENGTHS))
        backbone.fused, backbone.native = fused, native
        if not native:
            copy.set_attn_implementation(attention.IMPLEMENTATION)
        packed, decoded = _packed_logits(backbone, rows), _decoded_logits(backbone, rows)
    except CALL_ERRORS:
        return False
    last = native_logits[torch.tensor(COPY_LENGTHS).cumsum(0) - 1]
    return bool(
        _log_prob_errors(packed, native_logits).max() < FLOAT32_TOLERANCE
        and _log_prob_errors(decoded, last).max() < FLOAT32_TOLERANCE
    )


def _supports_packing(model: PreTrainedModel) -> bool:
    """Return whether a model uses the attention interface, if it attends at all, and has only known layer types."""
    kinds = set(getattr(model.config, "layer_types", None) or {"full_attention"})
    attends = kinds != {"linear_attention"}
    return kinds <= PACKABLE_LAYERS and (attention.uses_attention_interface(type(model)) or not attends)


def _matches_on_weights(backbone: Backbone, native_logits: Tensor) -> bool:
    """Return whether, on the real weights, log-probabilities match the model's own up to rounding."""
    try:
        logits = _packed_logits(backbone, _model_rows(backbone))
    except CALL_ERRORS:
        return False
    mean_error = float(_log_prob_errors(logits, native_logits).mean())
    tolerance = HALF_TOLERANCE if backbone.is_half else FLOAT32_TOLERANCE
    return mean_error < tolerance or mean_error < NOISE_MULTIPLE * _measure_noise(backbone, native_logits)


def _check_row_independence(backbone: Backbone, label: str) -> None:
    """Check a model's own forward for equal results in a batch, in decoding and with separate rows.

    Raises:
        UserError: the results differ.
    """
    name = type(backbone.model).__name__
    if not _same_architecture(backbone):
        raise UserError(
            f"{label}: the logits or states of {name} are made in a way that is not known here; {OTHER_MODEL_HINT}"
        )
    rows = _model_rows(backbone)
    native_logits = _native_logits(backbone.model, rows, None)
    try:
        packed, decoded = _packed_logits(backbone, rows), _decoded_logits(backbone, rows)
    except CALL_ERRORS as error:
        raise UserError(
            f"{label}: {name} cannot be run row by row with a cache ({error}); {OTHER_MODEL_HINT}"
        ) from error
    last = torch.tensor(MODEL_LENGTHS).cumsum(0) - 1
    tolerance = FLOAT32_TOLERANCE
    if backbone.is_half:
        tolerance = max(HALF_TOLERANCE, NOISE_MULTIPLE * _measure_noise(backbone, native_logits))
    for logits, expected, case in ((packed, native_logits, "in a batch"), (decoded, native_logits[last], "decoded")):
        mean_error = float(_log_prob_errors(logits, expected).mean())
        if not mean_error < tolerance:
            raise UserError(
                f"{label}: log-probs of {name} are others {case} than transformers' own of a row alone, by "
                f"{mean_error:.2g} nats a token; {OTHER_MODEL_HINT}"
            )


def _measure_noise(backbone: Backbone, native_logits: Tensor) -> float:
    """Return the mean difference in log-probabilities between two computations with the model's own forward.

    Another attention implementation does not change what recurrent layers round.
    """
    model, rows, fp32_residual = backbone.model, _model_rows(backbone), backbone.fp32_residual
    backbone.fp32_residual = False
    if getattr(model, "_supports_sdpa", False) and not backbone.native and not backbone.recurrent:
        second_logits = _native_logits(model, rows, "sdpa")
    else:
        with _perturb_embeddings(model.get_input_embeddings()):
            second_logits = _native_logits(model, rows, None if backbone.native else "eager")
    backbone.fp32_residual = fp32_residual
    return float(_log_prob_errors(second_logits, native_logits).mean())


def _model_rows(backbone: Backbone) -> list[TokenIds]:
    return _make_rows(MODEL_LENGTHS, backbone.head.weight.shape[0])


def _make_rows(lengths: Sequence[int], vocabulary: int) -> list[TokenIds]:
    """Return test rows with frequent tokens, found at the start of vocabularies learned from text."""
    num_frequent = min(vocabulary, 2000)
    return [(np.arange(3, length + 3) ** 2 * 7919 % num_frequent).astype(np.int32) for length in lengths]


@torch.no_grad()
def _native_logits(model: PreTrainedModel, rows: Sequence[TokenIds], implementation: str | None) -> Tensor:
    """Return the logits for each row separately from transformers, [N, V].

    Args:
        implementation: attention implementation; None keeps the model's.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation or before)
    try:
        ids = [torch.from_numpy(row).long()[None].to(model.device) for row in rows]
        return torch.cat([model(input_ids=row, use_cache=False).logits[0] for row in ids])
    finally:
        model.set_attn_implementation(before)


@torch.no_grad()
def _packed_logits(backbone: Backbone, rows: Sequence[TokenIds]) -> Tensor:
    packed = PackedRows.from_rows(rows, [None] * len(rows), backbone.device)
    return backbone.compute_logits(backbone.hidden_states(packed), None)


@torch.no_grad()
def _decoded_logits(backbone: Backbone, rows: Sequence[TokenIds]) -> Tensor:
    """Return the logits after each row's last token, decoded with the other tokens cached, [B, V]."""
    running = new_decode_cache(backbone)
    packed = PackedRows.from_rows([row[:-1] for row in rows], [None] * len(rows), backbone.device)
    running.prefill(packed, [[slot] for slot in range(len(rows))])
    last = torch.tensor([int(row[-1]) for row in rows], device=backbone.device)
    return backbone.compute_logits(running.step(last, packed.lengths, [None] * len(rows)), None)


def _log_prob_errors(logits: Tensor, reference: Tensor) -> Tensor:
    """Return the log-probability differences for tokens likely under ``reference``, [N, likely]."""
    reference_log_probs, tokens = reference.float().log_softmax(-1).topk(min(COMPARED_TOKENS, reference.shape[-1]))
    return (logits.float().log_softmax(-1).gather(1, tokens) - reference_log_probs).abs()


@contextmanager
def _perturb_embeddings(embeddings: nn.Module) -> Iterator[None]:
    """Perturb the embeddings by their rounding error within the context."""

    def perturb(_: nn.Module, __: object, x: Tensor) -> Tensor:
        signs = torch.ones(x.shape[-1], dtype=x.dtype, device=x.device)
        signs[::2] = -1
        return x * (1 + signs * torch.finfo(x.dtype).eps / 2)

    handle = embeddings.register_forward_hook(perturb)
    try:
        yield
    finally:
        handle.remove()


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
    config: PreTrainedConfig = deepcopy(model.config.get_text_config())
    depth, layers = config.num_hidden_layers, _num_layers(decoder, config)
    overrides = config.to_dict().get("per_layer_config") or {}  # settings that differ between layers
    if overrides:
        config.per_layer_config = None
    for name, value in vars(config).items():
        if isinstance(value, list | tuple) and len(value) == depth:
            setattr(config, name, type(value)(value[:layers]))
    config.num_hidden_layers = layers
    if getattr(config, "num_kv_shared_layers", 0):
        config.num_kv_shared_layers = max(0, config.num_kv_shared_layers - (depth - layers))
    for name in ("vocab_size", "vocab_size_per_layer_input"):
        if hasattr(config, name):
            setattr(config, name, VOCAB_SIZE)
    for name, token in TOKEN_IDS.items():
        setattr(config, name, token)
    _reduce_heads(config)
    _limit_lengths(vars(config))
    for name in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"):
        if (getattr(config, name, None) or 0) > NUM_EXPERTS:
            setattr(config, name, NUM_EXPERTS)
    for name in ("num_experts_per_tok", "top_k_experts"):
        if (getattr(config, name, None) or 0) >= NUM_EXPERTS:
            setattr(config, name, 2)
    for name in ("chunk_size", "mamba_chunk_size"):
        if hasattr(config, name):
            setattr(config, name, CHUNK_SIZE)
    if (getattr(config, "n_group", None) or 1) > 1:  # two groups of experts, of which a token selects one
        config.n_group, config.topk_group = 2, 1
    if overrides:
        config.per_layer_config = {
            int(index): {
                name: min(value, 2) if name == "num_key_value_heads" else value for name, value in table.items()
            }
            for index, table in overrides.items()
            if int(index) < layers
        }
    return config


def _limit_lengths(table: dict[str, object], parent: str = "") -> None:
    """Limit windows and length thresholds to ``WINDOW_SIZE``, also in nested tables."""
    for name, value in table.items():
        if isinstance(value, dict) and value.get("rope_type") not in DYNAMIC_ROPE_TYPES:
            _limit_lengths(value, name)
        elif type(value) is int and (LENGTH_SETTINGS.fullmatch(name) or LENGTH_SETTINGS.fullmatch(parent)):
            table[name] = min(value, WINDOW_SIZE)


def _reduce_heads(config: PreTrainedConfig) -> None:
    """Reduce the number of heads, but keep their size, because rotary embeddings depend on it."""
    heads = getattr(config, "num_attention_heads", 0)
    if heads:
        keys = getattr(config, "num_key_value_heads", None) or heads
        fewer_keys = min(keys, 2)
        fewer = fewer_keys * min(heads // keys, 2)
        config.hidden_size = HIDDEN_SIZE if getattr(config, "head_dim", None) else config.hidden_size // heads * fewer
        config.num_attention_heads = fewer
        if getattr(config, "num_key_value_heads", None):
            config.num_key_value_heads = fewer_keys
    _reduce_state_heads(config)
    for name in ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size"):
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, INTERMEDIATE_SIZE)


def _reduce_state_heads(config: PreTrainedConfig) -> None:
    """Adapt the number of heads of state spaces, if their sum must be a multiple of the hidden size."""
    if hasattr(config, "mamba_n_heads"):
        if getattr(config, "mamba_d_ssm", None) is None:
            config.mamba_n_heads = int(config.mamba_expand * config.hidden_size) // config.mamba_d_head
    elif hasattr(config, "state_size"):
        config.hidden_size = HIDDEN_SIZE
        if hasattr(config, "n_groups"):
            config.num_heads = 2 * config.n_groups
            config.hidden_size = config.num_heads * config.head_dim // config.expand


def _num_layers(decoder: nn.Module, config: PreTrainedConfig) -> int:
    """Return the smallest number of leading layers, at least two, with every kind of layer."""
    layers = next(child for child in decoder.children() if isinstance(child, nn.ModuleList))
    kinds = [_describe_layer(layer, index, config) for index, layer in enumerate(layers)]
    return max(2, max(kinds.index(kind) for kind in set(kinds)) + 1) if len(kinds) > 1 else 1


def _describe_layer(layer: nn.Module, index: int, config: PreTrainedConfig) -> str:
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
