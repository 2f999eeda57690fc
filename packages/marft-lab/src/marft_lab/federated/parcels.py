"""Adapters as they leave a site and arrive: the numbers, and what a reader of peft's format needs to know of them.

What leaves is made anew from what is known to be harmless: tensors under the names of layers, and four keys of their
configuration. Paths of models, notes in the files' heads and whatever else a folder holds stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from marft.common import atomic
from marft.models.adapters import CONFIG, WEIGHTS

KEPT = ("peft_type", "r", "lora_alpha", "target_modules")
FIXED = {"task_type": "CAUSAL_LM", "base_model_name_or_path": "", "inference_mode": True, "bias": "none"}
SENT, GIVEN = 1e6, 1e30  # the largest number of a site; and of what is made of them, which no such numbers can reach
LAYER = re.compile(r"base_model\.model\.[\w.]{1,200}\.lora_[AB]\.weight")
Tensors = Mapping[str, Tensor]
Files = Mapping[str, bytes]
Adapters = Mapping[str, Tensors]  # by policy


def read_folder(folder: Path) -> tuple[Adapters, dict[str, bytes]]:
    """The adapters in ``folder/POLICY`` → their numbers, and what of their configurations may leave, by file."""
    adapters, configs = dict[str, Tensors](), dict[str, bytes]()
    for policy in sorted(path for path in folder.iterdir() if path.is_dir()):
        adapters[policy.name] = load((policy / WEIGHTS).read_bytes())
        table = json.loads((policy / CONFIG).read_text(encoding="utf-8"))
        kept = {key: table[key] for key in KEPT}
        configs[f"{policy.name}/{CONFIG}"] = (json.dumps({**FIXED, **kept}, indent=2, sort_keys=True) + "\n").encode()
    return adapters, configs


def files_with(adapters: Adapters, configs: Files) -> dict[str, bytes]:
    """What leaves, or arrives, by file: ``POLICY/adapter_model.safetensors`` and its configuration."""
    weights = {f"{policy}/{WEIGHTS}": weights_of(tensors) for policy, tensors in adapters.items()}
    return dict(sorted({**weights, **configs}.items()))


def weights_of(tensors: Tensors) -> bytes:
    """A file of adapter weights."""
    data: bytes = save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata={"format": "pt"})
    return data


def opened(files: Files, most: float = GIVEN) -> tuple[Adapters, dict[str, bytes]]:
    """What arrived, looked at → the adapters, and their configurations by file.

    Args:
        most: the largest number that there may be.

    Raises:
        ValueError: it is something else than adapters of finite float32 numbers and their configurations.
    """
    adapters, configs = dict[str, Tensors](), dict[str, bytes]()
    for name, data in files.items():
        policy, _, file = name.partition("/")
        if not re.fullmatch(r"[\w-]{1,64}", policy) or file not in (WEIGHTS, CONFIG):
            raise ValueError(f"a file that is no adapter's: {name[:100]!r}")
        if file == CONFIG:
            _check_config(name, data)
            configs[name] = data
        else:
            adapters[policy] = _tensors(name, data, most)
    if not adapters or {f"{policy}/{CONFIG}" for policy in adapters} != configs.keys():
        raise ValueError("adapters without their configurations, or none at all")
    return adapters, configs


def _check_config(name: str, data: bytes) -> None:
    try:
        table = json.loads(data)
        known = isinstance(table, dict) and table.keys() == {*KEPT, *FIXED}
    except (ValueError, RecursionError):
        known = False
    if not known or any(table[key] != value for key, value in FIXED.items()) or table["peft_type"] != "LORA":
        raise ValueError(f"{name} is no configuration of an adapter as it leaves a site")


def _tensors(name: str, data: bytes, most: float) -> Tensors:
    try:
        tensors: Tensors = load(data)
    except SafetensorError as error:
        raise ValueError(f"{name} cannot be read: {error}") from error
    for layer, tensor in tensors.items():
        if not LAYER.fullmatch(layer) or tensor.dtype != torch.float32 or tensor.ndim != 2:
            raise ValueError(f"{name} holds what is no adapter's: {layer[:100]!r}")
        if not bool((tensor.abs() <= most).all()):
            raise ValueError(f"{name}: {layer} holds what is no number, or one that is none of a model's")
    if data != weights_of(tensors):
        raise ValueError(f"{name} holds more than its numbers")
    return tensors


def differences(one: Files, one_adapters: Adapters, other: Files, other_adapters: Adapters) -> Iterable[str]:
    """Why two sites' adapters cannot be averaged.

    Args:
        one: the configurations of the first, by file.
    """
    if one_adapters.keys() != other_adapters.keys():
        yield f"trains {sorted(other_adapters)} where another trains {sorted(one_adapters)}"
        return
    for policy, mine in one_adapters.items():
        theirs = other_adapters[policy]
        if {name: tensor.shape for name, tensor in mine.items()} != {n: tensor.shape for n, tensor in theirs.items()}:
            yield f"has a {policy!r} of other layers or ranks than another; set the same lora.rank and targets"
        elif one[f"{policy}/{CONFIG}"] != other[f"{policy}/{CONFIG}"]:
            yield f"has a {policy!r} of another lora.alpha, or other targets, than another; set the same"


def write_folder(folder: Path, files: Files) -> None:
    """Adapters as folders that peft reads, whole or not there."""
    with atomic.new_folder(folder) as draft:
        for name, data in files.items():
            (draft / name).parent.mkdir(exist_ok=True)
            (draft / name).write_bytes(data)
