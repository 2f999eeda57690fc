"""Validation of third-party models: rejects pickles, incomplete weights, wrong shapes and non-finite values."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedConfig

from marft.common.atomic import read_json
from marft.common.errors import UserError

INDEX_FILE = "model.safetensors.index.json"
DTYPE_BITS = {"BOOL": 1, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64}
INTEGER_DTYPES = set(DTYPE_BITS)  # each number packs several weights of a quantized model, at most one per bit
# maximum ratio of parameters in the model to weights in its files; smaller gaps are reported by weight name
MAX_SIZE_RATIO = 2
SIZE_KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
)  # sizes in config.json that are divisors, shapes or lengths
MAX_SIZES = {
    "hidden_size": 2**20, "num_hidden_layers": 10_000, "num_attention_heads": 2**16, "num_key_value_heads": 2**16,
    "vocab_size": 2**24, "max_position_embeddings": 2**30, "intermediate_size": 2**24, "moe_intermediate_size": 2**24,
    "n_layer": 10_000, "n_layers": 10_000, "num_layers": 10_000, "n_embd": 2**20, "d_model": 2**20, "n_head": 2**16,
    "n_inner": 2**24, "n_positions": 2**30, "head_dim": 2**16, "num_experts": 2**16,
    "num_local_experts": 2**16, "n_routed_experts": 2**16,
}  # far above every existing model  # fmt: skip
MAX_BUFFER_SIZE = 2**32  # elements of a buffer computed from the configuration, such as a mask
DIFFERENT_MODEL = "config and weights are not of the same model"
DOWNLOAD_AGAIN = "the download is incomplete or the file was changed; get the model again"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
CONVERT_HINT = (
    "pickled weights can run code when they are read. Convert them where you trust them: load the model with "
    "transformers and save_pretrained(folder), which writes *.safetensors"
)


def check_no_pickle(folder: Path, label: str) -> None:
    """Check for weights in a data-only format.

    Raises:
        UserError: the folder has only pickled weights, or it contains an irregular file, on which a read could block
            forever.
    """
    entries = sorted(folder.glob("*"))
    if odd := [path.name for path in entries if path.exists() and not path.is_file() and not path.is_dir()]:
        raise UserError(
            f"{label} has {odd[0]}, a pipe, a device or a socket, and only regular files are read; remove it"
        )
    pickle_files = [path.name for path in entries if path.suffix in PICKLE_SUFFIXES]
    if pickle_files and not any(folder.glob("*.safetensors")):
        raise UserError(f"{label} has {pickle_files[0]} and no *.safetensors: {CONVERT_HINT}")


def check_config_sizes(config: Any, label: str) -> None:
    """Check the sizes in a configuration, for a clear error instead of a division by zero.

    Raises:
        UserError: a size is below 1, or the text configuration is not a model configuration.
    """
    if not hasattr(config, "to_dict"):
        raise UserError(f"{label}: text_config in its config.json is no configuration of a model; {DOWNLOAD_AGAIN}")
    layers = config.per_layer_config if getattr(config, "is_heterogeneous", False) else [config]
    for name, layer in product(SIZE_KEYS, layers):
        size = getattr(layer, name, None)
        if isinstance(size, int) and size < 1:
            raise UserError(f"{label}: its config.json says {name} = {size}; {DOWNLOAD_AGAIN}")


def check_size_limits(folder: Path, label: str) -> None:
    """Check a folder's config.json for implausibly large sizes, before transformers builds a list of its layers.

    Raises:
        UserError: a size exceeds its limit.
    """
    try:
        tables = [read_json(folder / "config.json")]
    except (OSError, ValueError, RecursionError):
        return  # the later configuration load reports the error
    for table in tables:
        for name, size in table.items() if isinstance(table, dict) else ():
            if isinstance(size, dict):
                tables.append(size)
            elif isinstance(size, int | float) and size > MAX_SIZES.get(name, math.inf):
                limit = MAX_SIZES[name]
                raise UserError(
                    f"{label}: its config.json says {name} = {size}, and {limit} is the most; {DOWNLOAD_AGAIN}"
                )


def check_layer_count(config: PreTrainedConfig, folder: Path, label: str) -> None:
    """Compare a configuration's number of layers with the tensor names in a folder.

    Raises:
        UserError: the files contain fewer layers.
    """
    files = _weight_files(folder)
    names = [name for file in files for name in read_header(file)]
    numbers = {matches[0] for name in names if (matches := re.findall(r"(?<=\.)\d+(?=\.)", name))}
    layers = config.num_hidden_layers
    if names and isinstance(layers, int) and layers > len(numbers):
        raise UserError(
            f"{label}: its config.json says num_hidden_layers = {layers}, and "
            f"{_list_names([file.name for file in files])} has weights of {len(numbers)}; {DIFFERENT_MODEL}"
        )


def check_tensor_shapes(
    model: nn.Module, config: PreTrainedConfig, folder: Path, key_mapping: Mapping[str, str], label: str
) -> None:
    """Compare a configuration's sizes with the tensor headers in a folder, before memory is allocated.

    Args:
        model: the configured model without memory (on the device "meta").
        key_mapping: patterns for names in the files, with their replacements in the model.

    Raises:
        UserError: the configuration asks for a larger tensor than the files contain, too many weights in total, or a
            too large buffer.
    """
    expected, files = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}, _weight_files(folder)
    for name, buffer in model.named_buffers():
        if buffer.numel() > MAX_BUFFER_SIZE:
            raise UserError(
                f"{label}: config.json asks for {name} of shape {_format_shape(config, buffer.shape)}; {DOWNLOAD_AGAIN}"
            )
    file_weights = 0
    for file in files:
        for name, (kind, shape) in read_header(file).items():
            model_name = next((re.sub(old, new, name) for old, new in key_mapping.items() if re.match(old, name)), name)
            size = math.prod(shape)
            file_weights += size * DTYPE_BITS.get(kind, 1)
            if kind not in INTEGER_DTYPES and model_name in expected and math.prod(expected[model_name]) > size:
                raise UserError(
                    f"{label}: {file.name}: {name} has shape {shape} where config.json asks for "
                    f"{_format_shape(config, expected[model_name], shape)}; {DIFFERENT_MODEL}"
                )
    model_weights = sum(tensor.numel() for tensor in model.parameters())
    if file_weights and model_weights > MAX_SIZE_RATIO * file_weights:
        raise UserError(
            f"{label}: its config.json asks for {model_weights} weights, of which the largest are "
            f"{_format_shape(config, max(expected.values(), key=math.prod))}, and "
            f"{_list_names([file.name for file in files])} holds {file_weights} at most; {DIFFERENT_MODEL}"
        )


def _format_shape(config: PreTrainedConfig, expected: Sequence[int], actual: Sequence[int] = ()) -> str:
    """Format a shape with the configuration keys behind its sizes.

    Args:
        actual: the actual shape; keys for its sizes are left out.
    """
    sizes = set(expected) - set(actual)
    config_sizes = {name: value for name, value in config.to_dict().items() if type(value) is int and value > 1}
    named = {name: value for name, value in config_sizes.items() if value in sizes}
    if not named and sizes:  # the size is a product, such as the number of heads times their size
        named = {name: value for name, value in config_sizes.items() if name in MAX_SIZES and max(sizes) % value == 0}
    says = ", ".join(f"{name} = {value}" for name, value in named.items())
    return f"{tuple(expected)}{f' ({says})' if says else ''}"


def _weight_files(folder: Path) -> list[Path]:
    """Return a folder's weight files; empty if a file is missing, because the loader reports that error."""
    single_file = folder / "model.safetensors"
    if single_file.is_file():
        return [single_file]
    try:
        files = [folder / name for name in sorted(set(read_json(folder / INDEX_FILE)["weight_map"].values()))]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []
    return files if all(file.is_file() for file in files) else []


def check_weight_index(folder: Path, label: str) -> None:
    """Check the weight index: every tensor belongs to exactly one file in the folder.

    transformers would read any file that the index names, whatever its place and type. For a tensor in two files, it
    would use the last file.

    Raises:
        UserError: the index is unreadable, it names files outside the folder, or two files contain the same tensor.
    """
    if (folder / "model.safetensors").is_file() or not (folder / INDEX_FILE).exists():
        return
    try:
        weight_map = read_json(folder / INDEX_FILE)["weight_map"]
        files = sorted(set(weight_map.values()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"{label}: {INDEX_FILE} does not say which file holds which weights; {DOWNLOAD_AGAIN}"
        ) from error
    for name in files:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(
                f"{label}: {INDEX_FILE} names {name!r}, which is no *.safetensors in the folder; {DOWNLOAD_AGAIN}"
            )
    file_by_tensor: dict[str, str] = {}
    for name in files:
        for tensor in read_header(folder / name):
            if tensor in file_by_tensor:
                raise UserError(f"{label}: {file_by_tensor[tensor]} and {name} both hold {tensor}; {DOWNLOAD_AGAIN}")
            file_by_tensor[tensor] = name


def check_not_quantized(folder: Path, label: str) -> None:
    """Check for unquantized weights in a checkpoint without a quantization configuration.

    Raises:
        UserError: some weights are integers.
    """
    for file in sorted(folder.glob("model*.safetensors")):
        header = read_header(file)
        integer_weights = [
            name for name, (kind, _) in header.items() if kind in INTEGER_DTYPES and name.endswith(".weight")
        ]
        if integer_weights:
            raise UserError(
                f"{label} holds whole numbers as {_list_names(integer_weights)}: its weights are quantised, and its "
                "config.json does not say how; take the checkpoint that it was made from"
            )


def read_header(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the types and shapes in a file's header; empty if unreadable, because the loader reports that error."""
    try:
        with safe_open(file, framework="pt") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {
                name: (tensor_slice.get_dtype(), tuple(tensor_slice.get_shape()))
                for name, tensor_slice in slices.items()
            }
    except (OSError, SafetensorError):
        return {}


def check_complete(model: nn.Module, loading_info: Mapping[str, Any], label: str) -> None:
    """Check for a complete checkpoint: missing weights would stay random.

    Args:
        loading_info: loading information from transformers.

    Raises:
        UserError: weights are missing, have other shapes, or belong to a layer that does not use them.
    """
    if loading_info["missing_keys"]:
        raise UserError(
            f"{label} lacks {_list_names(loading_info['missing_keys'])}: they would stay random. The download is "
            "incomplete, or these are the weights of something else than a causal language model; get the whole "
            "checkpoint"
        )
    if loading_info["mismatched_keys"]:
        name, actual, expected = sorted(loading_info["mismatched_keys"])[0]
        raise UserError(
            f"{label}: {name} has shape {tuple(actual)} where config.json asks for {tuple(expected)}; {DIFFERENT_MODEL}"
        )
    modules = dict(model.named_modules())
    unused = [key for key in loading_info["unexpected_keys"] if key.rpartition(".")[0] in modules and "." in key]
    if unused:
        raise UserError(
            f"{label} holds {_list_names(unused)}, which {type(model).__name__} does not compute: its config.json is "
            "of another model, or its weights are quantised or adapted in a way that this project does not read"
        )


@torch.no_grad()
def check_finite(tensors: Mapping[str, Tensor], label: str) -> None:
    """Check for finite weights.

    Raises:
        UserError: a weight contains NaN or infinity.
    """
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        low, high = tensor.aminmax()  # propagates NaN to both results; reads the tensor once without a copy
        if not (torch.isfinite(low) & torch.isfinite(high)):
            raise UserError(
                f"{label}: {name} holds NaN or infinities; the file is damaged, or what was saved had broken down. "
                "Take an earlier checkpoint, or get the model again"
            )


def _list_names(names: Collection[str]) -> str:
    first = ", ".join(sorted(names)[:3])
    return first if len(names) <= 3 else f"{first} and {len(names) - 3} more"
