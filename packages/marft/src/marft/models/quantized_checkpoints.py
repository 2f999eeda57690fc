"""Loading of 4-bit weights: NF4 of an unquantized checkpoint, and packed checkpoints (GPTQ, AWQ, bitsandbytes).

transformers loads the tensors, with its renamings and splits of files, through two quantizers. *NF4* quantizes each
matrix when it is read, so memory never holds the unquantized model. *Packed* checkpoints name their quantized layers:
each layer with packed tensors in the files' headers is replaced by a :class:`PackedTensors` with tensors of the same
names, types and shapes. After the load, :func:`unpack_layers` converts them to quantized layers.

The packed formats, for a weight [out, in] in groups of inputs with a common zero and scale:

- GPTQ: ``qweight`` [in / 8, out] has eight inputs per int32, the first in the lowest bits. ``qzeros`` [groups, out / 8]
  has eight outputs per int32, each zero minus 1 (format 1), or the zero itself (format 2). ``g_idx`` [in] is the group
  of each input.
- AWQ: ``qweight`` [in, out / 8] and ``qzeros`` [groups, out / 8] have eight outputs per int32, in the order of
  :data:`AWQ_ORDER`.
- bitsandbytes: ``weight`` has two codes per byte, row by row; its constants are named after it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from marft.common.errors import UserError
from marft.models.checkpoint_checks import DIFFERENT_MODEL, DOWNLOAD_AGAIN, read_header
from marft.models.experts import is_router
from marft.models.quantization import (
    BITS,
    MAX_CODE,
    BitsAndBytesLinear,
    GroupedInt4Linear,
    QuantizedLinear,
    bitsandbytes_functions,
    dequantized_layer,
)

PackedMethod = Literal["gptq", "awq", "bitsandbytes"]
NF4_NAME, PACKED_NAME = "marft-nf4", "marft-packed"  # of the quantizers in transformers' registry
PACKED = {"gptq": "qweight", "awq": "qweight", "bitsandbytes": "quant_state"}  # a tensor of each quantized layer
INTEGER_TENSORS = ("qweight", "qzeros", "scales", "g_idx", "bias")
BITSANDBYTES_TENSORS = {
    "absmax": "absmax",
    "quant_map": "values",
    "nested_absmax": "nested_absmax",
    "nested_quant_map": "nested_values",
    "quant_state.bitsandbytes__nf4": "quant_state",
    "quant_state.bitsandbytes__fp4": "quant_state",
}  # names in the files, after the name of the weight; and in PackedTensors
BITSANDBYTES_RENAMINGS = {rf"\.weight\.{re.escape(name)}$": f".{ours}" for name, ours in BITSANDBYTES_TENSORS.items()}
CODES_PER_INT = 32 // BITS
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # output of each 4 bits in an int32, from the lowest bits
ONE_PER_CODE = 0x11111111  # a 1 in each of the eight codes of an int32


@register_quantization_config(NF4_NAME)
@dataclass(kw_only=True)
class Nf4Config(QuantizationConfigMixin):
    """Quantization of a checkpoint to NF4 while it is read.

    Args:
        dtype: compute dtype.
        device: device that quantizes a matrix and keeps it.
    """

    block_size: int
    double_quantization: bool
    dtype: torch.dtype
    device: torch.device
    quant_method: Any = NF4_NAME


@register_quantization_config(PACKED_NAME)
@dataclass(kw_only=True)
class PackedConfig(QuantizationConfigMixin):
    """Packed checkpoint.

    Args:
        label: the model's name in errors.
        zero_offset: difference between a zero and its stored code, 0 or 1.
        key_mapping: patterns for names in the files, with their replacements in the model.
    """

    method: PackedMethod
    label: str
    zero_offset: int = 0
    key_mapping: Mapping[str, str] = field(default_factory=dict)
    quant_method: Any = PACKED_NAME


class _Quantizer(HfQuantizer):
    """Common part: the loaded model is an ordinary model without a quantization configuration."""

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> PreTrainedModel:  # noqa: ARG002
        self.remove_quantization_config(model)  # type: ignore[no-untyped-call]
        return model

    def is_serializable(self) -> bool:
        """Return False: a quantized base is never saved."""
        return False

    @property
    def is_trainable(self) -> bool:
        """True: gradients flow through the layers."""
        return True


@register_quantizer(NF4_NAME)
class _Nf4Quantizer(_Quantizer):
    quantization_config: Nf4Config

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> None:  # noqa: ARG002
        self.skipped = set(self.get_modules_to_not_convert(model, None, list(model._keep_in_fp32_modules or ())))

    def param_needs_quantization(self, model: PreTrainedModel, param_name: str, **kwargs: Any) -> bool:  # noqa: ARG002
        """Return whether a parameter is the weight of a linear layer other than the head and routers."""
        path, _, name = param_name.rpartition(".")
        skipped = any(f".{part}." in f".{path}." for part in self.skipped)
        is_linear = name == "weight" and isinstance(model.get_submodule(path), nn.Linear)
        return is_linear and not skipped and not is_router(model, path)

    def get_quantize_ops(self) -> ConversionOps:
        """Return the operation that quantizes a weight."""
        return _QuantizeNf4(self.quantization_config)


class _QuantizeNf4(ConversionOps):
    """Replacement of a linear layer by a quantized layer with a weight that was just read."""

    def __init__(self, config: Nf4Config) -> None:
        self.config = config

    def convert(  # type: ignore[override]
        self, input_dict: dict[str, Any], *, model: Any, missing_keys: set[str], **_: Any
    ) -> dict[str, Any]:
        """Quantize the weights; return no tensors, because the new layers have them."""
        config = self.config
        for name, value in input_dict.items():
            weight: Tensor = value[0] if isinstance(value, list) else value
            path = name.rpartition(".")[0]
            layer = model.get_submodule(path)
            if weight.shape != (layer.out_features, layer.in_features):
                continue  # the layer stays as it is, and its weight is reported as missing
            new_layer = BitsAndBytesLinear.from_weight(
                weight.to(config.device), layer.bias, config.dtype, config.block_size, config.double_quantization
            )
            new_layer._is_hf_initialized = True  # type: ignore[assignment]
            model.set_submodule(path, new_layer)
            missing_keys.discard(name)
        return {}


class PackedTensors(nn.Module):
    """Packed tensors of a linear layer under their names in the checkpoint, until :func:`unpack_layers`.

    Args:
        layer: the linear layer.
        headers: type and shape of each tensor.
    """

    def __init__(self, layer: nn.Linear, headers: Mapping[str, Header]) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.has_bias = layer.bias is not None
        for name, (dtype, shape) in headers.items():
            self.register_buffer(name, torch.empty(shape, dtype=dtype, device="meta"))
        if self.has_bias and "bias" not in headers:  # reported as missing
            self.register_buffer("bias", torch.empty(self.out_features, device="meta"))


Header = tuple[torch.dtype, tuple[int, ...]]
DTYPES = {
    "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64, "I8": torch.int8,
    "I16": torch.int16, "I32": torch.int32, "I64": torch.int64, "U8": torch.uint8,
}  # fmt: skip


@register_quantizer(PACKED_NAME)
class _PackedQuantizer(_Quantizer):
    quantization_config: PackedConfig

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, checkpoint_files: Sequence[str] | None = None, **_: Any
    ) -> None:
        """Replace the layers with packed tensors in the files.

        Modules outside the text model are ignored, as where they are not packed: a vision tower, layers that predict
        more tokens.

        Raises:
            UserError: packed tensors belong to a module that is no linear layer, as those of experts.
        """
        config, modules = self.quantization_config, dict(model.named_modules())
        marker = PACKED[config.method]
        headers = _read_headers(checkpoint_files or (), config.key_mapping)
        prefix = f"{model.base_model_prefix}."
        for path, tensors in headers.items():
            if marker not in tensors:
                continue
            name = path if path in modules or path.startswith(prefix) else prefix + path
            place = name
            while place not in modules:
                place = place.rpartition(".")[0]
            layer = modules[place]
            if isinstance(layer, PreTrainedModel | nn.ModuleList):
                continue
            if place != name or not isinstance(layer, nn.Linear):
                raise UserError(
                    f"{config.label}: {path} is packed ({config.method}), and {type(model).__name__} has no linear "
                    "layer of that name: packed experts are not read here. Take the unquantized checkpoint; "
                    "quantization = 'nf4' quantizes its linear layers"
                )
            if layer is model.get_output_embeddings() and model.config.tie_word_embeddings:  # it has its own weights
                model.config.tie_word_embeddings = False
                model.all_tied_weights_keys = model.get_expanded_tied_weights_keys()
            model.set_submodule(name, PackedTensors(layer, tensors))


def _read_headers(files: Sequence[str], key_mapping: Mapping[str, str]) -> dict[str, dict[str, Header]]:
    """Return the tensors of each module in the files: module → name → type and shape, by names in the model."""
    headers: dict[str, dict[str, Header]] = {}
    for file in files:
        for name, (kind, shape) in read_header(Path(file)).items():
            renamed = name
            for pattern, replacement in key_mapping.items():
                renamed = re.sub(pattern, replacement, renamed)
            path, _, tensor = renamed.rpartition(".")
            if kind in DTYPES:
                headers.setdefault(path, {})[tensor] = DTYPES[kind], shape
    return headers


def read_packed_config(method: str, table: Mapping[str, Any], label: str) -> PackedConfig | None:
    """Return how a packed checkpoint is read; None for a method that is not packed.

    Args:
        method: quantization method of the checkpoint.
        table: its quantization configuration.
        label: the model's name in errors.

    Raises:
        UserError: a variant of the method that is not supported; the message names only the variant.
    """
    if method == "bitsandbytes":
        _require(bool(table.get("load_in_4bit")), "bitsandbytes with 8 bits")
        storage = str(table.get("bnb_4bit_quant_storage", "uint8")).removeprefix("torch.")
        _require(storage == "uint8", f"bitsandbytes with bnb_4bit_quant_storage = {storage}")
        return PackedConfig(method="bitsandbytes", label=label, key_mapping=BITSANDBYTES_RENAMINGS)
    if method not in ("gptq", "awq"):
        return None
    bits = table.get("bits", table.get("w_bit"))
    _require(bits == BITS, f"{method} with {bits} bits")
    if method == "gptq":
        layout = str(table.get("checkpoint_format") or table.get("format") or "gptq")
        _require(layout in ("gptq", "gptq_v2"), f"gptq in the format {layout}")
        return PackedConfig(method="gptq", label=label, zero_offset=int(layout == "gptq"))
    layout = str(table.get("version") or table.get("checkpoint_format") or table.get("format") or "gemm").casefold()
    _require(layout == "gemm", f"awq in the format {layout}")
    return PackedConfig(method="awq", label=label)


def _require(condition: bool, variant: str) -> None:
    if not condition:
        raise UserError(variant)


def unpack_layers(model: PreTrainedModel, config: PackedConfig, dtype: torch.dtype, device: torch.device) -> None:
    """Convert the packed tensors of a loaded model to quantized layers on a device. A packed head is dequantized.

    Raises:
        UserError: tensors have other shapes than the configuration asks for, or are damaged.
    """
    names = [name for name, module in model.named_modules() if isinstance(module, PackedTensors)]
    for name in names:  # a list of modules would keep all packed tensors until the last layer
        tensors: Any = model.get_submodule(name)
        layer = _unpack(tensors.to(device), config, dtype, f"{config.label}: {name}")
        model.set_submodule(name, dequantized_layer(layer) if tensors is model.get_output_embeddings() else layer)


def _unpack(tensors: PackedTensors, config: PackedConfig, dtype: torch.dtype, label: str) -> QuantizedLinear:
    values = dict(tensors.named_buffers())
    bias = values.pop("bias", None)
    if bias is not None and not tensors.has_bias and not bias.any():
        bias = None  # some programs save zeros for a layer without a bias
    if bias is not None:
        _check_shapes({"bias": bias}, {"bias": (tensors.out_features,)}, label)
        bias = bias.to(dtype)
    shape = tensors.out_features, tensors.in_features
    if config.method == "bitsandbytes":
        return _unpack_bitsandbytes(values, shape, bias, dtype, label)
    missing = {"qweight", "qzeros", "scales"} - values.keys()
    if missing:
        raise UserError(f"{label} has no {', '.join(sorted(missing))}; {DOWNLOAD_AGAIN}")
    groups, rows = values["scales"].shape[:1].numel(), values["qweight"].shape[:1].numel()
    if shape[0] % CODES_PER_INT or shape[1] % CODES_PER_INT:
        raise UserError(f"{label} has {shape[0]} × {shape[1]} weights, which are no whole int32s; {DIFFERENT_MODEL}")
    if groups == 0 or shape[1] % groups:
        raise UserError(f"{label} has {groups} groups of scales for {shape[1]} inputs; {DIFFERENT_MODEL}")
    bits, remainder = divmod(32 * rows, shape[1])
    if config.method == "gptq" and bits != BITS and not remainder:
        raise UserError(
            f"{label} has {bits} bits, and only {BITS} bits are read here: take a checkpoint with {BITS} bits in every "
            "layer, or the unquantized one"
        )
    packed_rows = (shape[1] // CODES_PER_INT, shape[0])
    packed_columns = (shape[1], shape[0] // CODES_PER_INT)
    expected = {
        "qweight": packed_rows if config.method == "gptq" else packed_columns,
        "qzeros": (groups, shape[0] // CODES_PER_INT),
        "scales": (groups, shape[0]),
        "g_idx": (shape[1],),
    }
    _check_shapes(values, expected, label)
    if config.method == "awq":
        codes = pack_codes(unpack_columns(values["qweight"], AWQ_ORDER).t())
        zeros = unpack_columns(values["qzeros"], AWQ_ORDER).t()
    else:
        codes = values["qweight"].t().contiguous().view(torch.uint8)
        # added to the whole int32, with carries: the inverse of what programs do that write the format
        zeros = unpack_columns(values["qzeros"] + config.zero_offset * ONE_PER_CODE, range(CODES_PER_INT)).t()
    order = _input_order(values.get("g_idx"), groups, label)
    if order is not None:
        codes = pack_codes(unpack_bytes(codes)[:, order.argsort()])
    scales = values["scales"].t().contiguous()
    return GroupedInt4Linear(bias, dtype, codes=codes, zeros=zeros.contiguous(), scales=scales, order=order)


def _check_shapes(tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], label: str) -> None:
    for name, tensor in tensors.items():
        if name in expected and tensor.shape != expected[name]:
            raise UserError(
                f"{label}.{name} has shape {tuple(tensor.shape)} where config.json asks for {expected[name]}; "
                f"{DIFFERENT_MODEL}"
            )
        is_integer = not tensor.is_floating_point()
        if is_integer == (name in ("scales", "bias")) or (
            name in ("qweight", "qzeros") and tensor.dtype != torch.int32
        ):
            raise UserError(f"{label}.{name} holds numbers of type {tensor.dtype}; {DOWNLOAD_AGAIN}")


def unpack_columns(packed_RC: Tensor, order: Sequence[int]) -> Tensor:
    """Unpack int32 values with eight codes of neighboring columns each, [R, C] → uint8 [R, 8 C].

    Args:
        order: column of each four bits, from the lowest bits.
    """
    shifts = BITS * torch.arange(CODES_PER_INT, device=packed_RC.device)
    codes = (packed_RC[..., None] >> shifts.to(torch.int32)) & MAX_CODE  # [R, C, 8], by bits
    columns = torch.empty_like(codes, dtype=torch.uint8)
    columns[..., list(order)] = codes.to(torch.uint8)
    return columns.flatten(-2)


def pack_codes(codes_OI: Tensor) -> Tensor:
    """Pack codes of neighboring inputs into bytes, the first in the low bits, [O, I] → [O, I / 2]."""
    return (codes_OI[:, ::2] | (codes_OI[:, 1::2] << BITS)).contiguous()


def unpack_bytes(codes: Tensor) -> Tensor:
    """Invert :func:`pack_codes`, [O, I / 2] → [O, I]."""
    return torch.stack((codes & MAX_CODE, codes >> BITS), dim=-1).flatten(-2)


def _input_order(groups_I: Tensor | None, groups: int, label: str) -> Tensor | None:
    """Return the position of each input in the order of groups; None if the inputs are in this order.

    Raises:
        UserError: the groups do not have the same number of inputs.
    """
    if groups_I is None:
        return None
    size, device = len(groups_I) // groups, groups_I.device
    in_order, inputs = groups_I.argsort(stable=True), torch.arange(len(groups_I), device=device)
    if not torch.equal(groups_I[in_order].long(), inputs // size):
        raise UserError(f"{label}.g_idx does not assign {size} inputs to each of {groups} groups; {DOWNLOAD_AGAIN}")
    return None if torch.equal(in_order, inputs) else in_order.argsort()


def _unpack_bitsandbytes(
    values: Mapping[str, Tensor], shape: tuple[int, int], bias: Tensor | None, dtype: torch.dtype, label: str
) -> BitsAndBytesLinear:
    """Return the layer of a bitsandbytes checkpoint.

    Raises:
        UserError: its description is unreadable or does not fit its tensors, or bitsandbytes is not installed.
    """
    bitsandbytes_functions()
    try:
        state = json.loads(bytes(values["quant_state"].tolist()))
        quant_type, block_size, saved_shape = str(state["quant_type"]), int(state["blocksize"]), tuple(state["shape"])
        is_nested = "nested_blocksize" in state
        nested_block_size = int(state["nested_blocksize"]) if is_nested else 0
        offset = torch.tensor(float(state["nested_offset"])) if is_nested else None
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{label}: its quant_state cannot be read ({error!r}); {DOWNLOAD_AGAIN}") from error
    if quant_type not in ("nf4", "fp4") or block_size < 1 or (is_nested and nested_block_size < 1):
        raise UserError(f"{label}: its quant_state says {quant_type} in blocks of {block_size}; {DOWNLOAD_AGAIN}")
    if saved_shape != shape:
        raise UserError(f"{label} has shape {saved_shape} where config.json asks for {shape}; {DIFFERENT_MODEL}")
    nested: dict[str, Tensor] = {}
    count = shape[0] * shape[1]
    sizes = {"weight": -(-count // 2), "absmax": -(-count // block_size), "values": MAX_CODE + 1}
    if offset is not None:
        sizes |= {"nested_absmax": -(-sizes["absmax"] // nested_block_size), "nested_values": 256}
    for name, size in sizes.items():
        if name not in values or values[name].numel() != size:
            found = f"{values[name].numel()} numbers" if name in values else "none"
            raise UserError(f"{label}: its {name} needs {size} numbers and has {found}; {DOWNLOAD_AGAIN}")
    if offset is not None:
        nested = {
            "absmax": values["nested_absmax"],
            "values": values["nested_values"],
            "offset": offset.to(values["absmax"].device),
        }
    return BitsAndBytesLinear(
        shape,
        bias,
        dtype,
        codes=values["weight"],
        absmax=values["absmax"],
        values=values["values"],
        quant_type="nf4" if quant_type == "nf4" else "fp4",
        block_size=block_size,
        nested=nested,
        nested_block_size=nested_block_size,
    )
