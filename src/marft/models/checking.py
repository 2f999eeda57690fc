"""What is refused of models that others made: weights that run code, are not all there, or are no numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from marft.atomic import read_json

INDEX = "model.safetensors.index.json"
WHOLE_NUMBERS = {"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"}
SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
    "max_position_embeddings",
)  # what config.json says under these names divides, or is a shape or a length  # fmt: skip
AGAIN = "the download is incomplete or the file was changed; get the model again"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
CONVERT = (
    "pickled weights can run code when they are read. Convert them where you trust them: load the model with "
    "transformers and save_pretrained(folder), which writes *.safetensors"
)


def refuse_pickled(folder: Path, what: str) -> None:
    """See that a folder has weights that are data and nothing else.

    Raises:
        ValueError: it has pickled weights alone.
    """
    pickled = sorted(path.name for path in folder.glob("*") if path.suffix in PICKLED)
    if pickled and not any(folder.glob("*.safetensors")):
        raise ValueError(f"{what} has {pickled[0]} and no *.safetensors: {CONVERT}")


def refuse_sizes(config: object, what: str) -> None:
    """See that a configuration speaks of a model: one that divides by no heads says nothing that helps.

    Raises:
        ValueError: a size is below 1, or what it says of its language model is no configuration.
    """
    if not hasattr(config, "to_dict"):
        raise ValueError(f"{what}: text_config in its config.json is no configuration of a model; {AGAIN}")
    for name in SIZES:
        size = getattr(config, name, None)
        if isinstance(size, int) and size < 1:
            raise ValueError(f"{what}: its config.json says {name} = {size}; {AGAIN}")


def refuse_index(folder: Path, what: str) -> None:
    """See that a folder's weights are in files of its own, each tensor in one of them, as its index says.

    transformers would read a file that the index names wherever it lies and whatever it is, and take a tensor that two
    files have from the last of them.

    Raises:
        ValueError: the index cannot be read, names other files, or two files hold one tensor.
    """
    if (folder / "model.safetensors").is_file() or not (folder / INDEX).exists():
        return
    try:
        places = read_json(folder / INDEX)["weight_map"]
        files = sorted(set(places.values()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{what}: {INDEX} does not say which file holds which weights; {AGAIN}") from error
    for name in files:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise ValueError(f"{what}: {INDEX} names {name!r}, which is no *.safetensors in the folder; {AGAIN}")
    found: dict[str, str] = {}
    for name in files:
        for tensor in _header(folder / name):
            if tensor in found:
                raise ValueError(f"{what}: {found[tensor]} and {name} both hold {tensor}; {AGAIN}")
            found[tensor] = name


def refuse_whole_numbers(folder: Path, what: str) -> None:
    """See that weights of a checkpoint that does not say how it was quantised are no quantised ones.

    Raises:
        ValueError: some are whole numbers.
    """
    for file in sorted(folder.glob("model*.safetensors")):
        whole = [name for name, kind in _header(file).items() if kind in WHOLE_NUMBERS and name.endswith(".weight")]
        if whole:
            raise ValueError(
                f"{what} holds whole numbers as {_some(whole)}: its weights are quantised, and its config.json does "
                "not say how; take the checkpoint that it was made from"
            )


def _header(file: Path) -> dict[str, str]:
    """The tensors of a file and their types; nothing where it cannot be read, which whoever loads it says."""
    try:
        with safe_open(file, framework="pt") as tensors:
            return {name: tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return {}


def refuse_gaps(model: nn.Module, found: Mapping[str, Any], what: str) -> None:
    """See that every weight came from the checkpoint: what did not would be random.

    Args:
        found: what transformers says that it found and missed.

    Raises:
        ValueError: weights are missing, have other shapes, or are there for a layer that does not use them.
    """
    if found["missing_keys"]:
        raise ValueError(
            f"{what} lacks {_some(found['missing_keys'])}: they would stay random. The download is incomplete, or "
            "these are the weights of something else than a causal language model; get the whole checkpoint"
        )
    if found["mismatched_keys"]:
        name, there, wanted = sorted(found["mismatched_keys"])[0]
        raise ValueError(
            f"{what}: {name} has shape {tuple(there)} where config.json asks for {tuple(wanted)}; config and weights "
            "are not of the same model"
        )
    modules = dict(model.named_modules())
    unused = [key for key in found["unexpected_keys"] if key.rpartition(".")[0] in modules and "." in key]
    if unused:
        raise ValueError(
            f"{what} holds {_some(unused)}, which {type(model).__name__} does not compute: its config.json is of "
            "another model, or its weights are quantised or adapted in a way that this project does not read"
        )


@torch.no_grad()
def refuse_not_finite(tensors: Mapping[str, Tensor], what: str) -> None:
    """See that weights are numbers.

    Raises:
        ValueError: one holds NaN or infinities.
    """
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        low, high = tensor.aminmax()  # NaN wins both; reads the tensor once and copies nothing
        if not (torch.isfinite(low) & torch.isfinite(high)):
            raise ValueError(
                f"{what}: {name} holds NaN or infinities; the file is damaged, or what was saved had broken down. "
                "Take an earlier checkpoint, or get the model again"
            )


def _some(names: Collection[str]) -> str:
    first = ", ".join(sorted(names)[:3])
    return first if len(names) <= 3 else f"{first} and {len(names) - 3} more"
