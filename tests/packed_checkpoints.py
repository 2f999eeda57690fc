"""Checkpoints in 4 bits for tests, written number by number, each with the weights that it stands for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

GROUP = 8  # inputs with a common zero and scale
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # output in each four bits of an int32, from the lowest
Packed = tuple[dict[str, Tensor], Tensor]  # tensors by the end of their name; the weight that they stand for
NF4_VALUES = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # QLoRA, appendix E  # fmt: skip


def grouped(weight: Tensor, groups: np.ndarray, low: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, Tensor]:
    """Codes [out, in], zeros and float16 scales [groups, out] of a weight, and the weight that they stand for.

    Args:
        groups: group of each input, [in].
        low: the least zero.
    """
    count = int(groups.max()) + 1
    codes, stands_for = np.zeros(weight.shape, np.int64), np.zeros(weight.shape, np.float32)
    zeros, scales = np.zeros((count, len(weight)), np.int64), np.zeros((count, len(weight)), np.float16)
    for group in range(count):
        (columns,) = np.nonzero(groups == group)
        values = weight.numpy()[:, columns]
        scale = (np.maximum(np.ptp(values, axis=1), 1e-3) / 14).astype(np.float16)
        zero = np.clip(np.rint(-values.min(1) / scale), low, 15).astype(np.int64)
        code = np.clip(np.rint(values / scale[:, None]) + zero[:, None], 0, 15).astype(np.int64)
        zeros[group], scales[group], codes[:, columns] = zero, scale, code
        stands_for[:, columns] = (code - zero[:, None]) * scale[:, None].astype(np.float32)
    return codes, zeros, scales, torch.from_numpy(stands_for)


def packed_ints(values: np.ndarray, columns: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Eight codes of neighboring columns in each int32, [R, C] → [R, C / 8]."""
    result = np.zeros((values.shape[0], values.shape[1] // 8), np.uint32)
    for place, column in enumerate(columns):
        result |= values[:, column::8].astype(np.uint32) << np.uint32(4 * place)
    return torch.from_numpy(result.view(np.int32))


def gptq(weight: Tensor, version: int = 1, shuffled: bool = False) -> Packed:
    """GPTQ in format 1, whose zeros are stored less 1, or 2; shuffled: inputs lie in groups in any order."""
    groups = np.arange(weight.shape[1]) // GROUP
    if shuffled:
        groups = np.random.default_rng(0).permutation(groups)
    codes, zeros, scales, stands_for = grouped(weight, groups, low=2 - version)
    return {
        ".qweight": packed_ints(codes).T.contiguous(),
        ".qzeros": packed_ints(zeros - (version == 1)),
        ".scales": torch.from_numpy(scales),
        ".g_idx": torch.from_numpy(groups.astype(np.int32)),
    }, stands_for


def awq(weight: Tensor) -> Packed:
    codes, zeros, scales, stands_for = grouped(weight, np.arange(weight.shape[1]) // GROUP, low=0)
    return {
        ".qweight": packed_ints(codes.T, AWQ_COLUMNS),
        ".qzeros": packed_ints(zeros, AWQ_COLUMNS),
        ".scales": torch.from_numpy(scales),
    }, stands_for


def bitsandbytes(weight: Tensor, quant_type: str = "nf4", nested: bool = True) -> Packed:
    """As transformers saves a model that bitsandbytes quantized."""
    from bitsandbytes import functional

    codes, state = functional.quantize_4bit(weight, blocksize=64, compress_statistics=nested, quant_type=quant_type)
    constants = {f".weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}
    state.shape = torch.Size((weight.numel(),))  # its CPU kernel needs rows without a part of a block
    return {".weight": codes, **constants}, functional.dequantize_4bit(codes, state).view(weight.shape)


def nf4(weight: Tensor, block: int) -> Tensor:
    """What a weight becomes in NF4 without double quantization: of each block the nearest multiples of its largest."""
    result = torch.zeros(weight.numel())
    for start in range(0, weight.numel(), block):
        values = weight.flatten()[start : start + block]
        largest = float(values.abs().max())
        for offset, value in enumerate(values.tolist()):
            result[start + offset] = min((level * largest for level in NF4_VALUES), key=lambda it: abs(it - value))
    return result.view(weight.shape)


FORMATS: Mapping[str, tuple[Callable[[Tensor], Packed], dict[str, Any]]] = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP}),
    "gptq 2": (
        lambda weight: gptq(weight, version=2),
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "checkpoint_format": "gptq_v2"},
    ),
    "gptq in any order": (
        lambda weight: gptq(weight, shuffled=True), {"quant_method": "gptq", "bits": 4, "desc_act": True}
    ),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}),
    "bitsandbytes": (bitsandbytes, {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    "bitsandbytes fp4": (
        lambda weight: bitsandbytes(weight, "fp4", nested=False), {"quant_method": "bitsandbytes", "load_in_4bit": True}
    ),
}  # fmt: skip


def pack(folder: Path, name: str, layers: tuple[str, ...] = ("proj.weight",)) -> dict[str, Tensor]:
    """Write the layers of a saved model whose names end so in a format of FORMATS → the weights they stand for."""
    how, config = FORMATS[name]
    weights = load_file(folder / "model.safetensors")
    stand_for = dict[str, Tensor]()
    written = dict[str, Tensor]()
    for key, weight in weights.items():
        if not key.endswith(layers):
            written[key] = weight
            continue
        tensors, stand_for[key] = how(weight)
        written |= {key.removesuffix(".weight") + end: tensor.contiguous() for end, tensor in tensors.items()}
    save_file(written, folder / "model.safetensors", metadata={"format": "pt"})
    describe(folder, config)
    return stand_for


def describe(folder: Path, config: dict[str, Any]) -> None:
    """Write a quantization_config into a model's config.json."""
    table = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**table, "quantization_config": config}))
