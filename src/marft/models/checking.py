"""What is refused of models that others made: weights that run code, are not all there, or are no numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

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
