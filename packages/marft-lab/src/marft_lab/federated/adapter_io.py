"""Serialization of adapters for transfer between a site and the coordinator.

Outgoing files are rebuilt from known harmless parts: tensors with layer names, and four keys of the adapter
configuration. Model paths, file metadata and all other files of the folder stay at the site.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from marft.common import atomic
from marft.common.errors import UserError
from marft.models.adapter_files import CONFIG_FILE, WEIGHTS_FILE
from marft.runs.run_files import STATE_FILE
from marft.runs.state import CheckpointRecord, write_state_table

CONFIG_KEYS = ("peft_type", "r", "lora_alpha", "target_modules")
FIXED_CONFIG = {"task_type": "CAUSAL_LM", "base_model_name_or_path": "", "inference_mode": True, "bias": "none"}
# maximum absolute value sent by a site, and of aggregated adapters; aggregation of valid values cannot exceed the
# second
MAX_SENT, MAX_GIVEN = 1e6, 1e30
LAYER_NAME = re.compile(r"base_model\.model\.[\w.]{1,200}\.lora_[AB]\.weight")
Tensors = Mapping[str, Tensor]
Files = Mapping[str, bytes]
Adapters = Mapping[str, Tensors]  # by policy


def read_adapters(folder: Path) -> tuple[Adapters, dict[str, bytes]]:
    """Read the adapters in ``folder/POLICY``.

    Returns:
        The tensors by policy, and the reduced configurations by file name.
    """
    adapters, configs = dict[str, Tensors](), dict[str, bytes]()
    for policy in sorted(path for path in folder.iterdir() if path.is_dir()):
        adapters[policy.name] = load((policy / WEIGHTS_FILE).read_bytes())
        table = json.loads((policy / CONFIG_FILE).read_text(encoding="utf-8"))
        config = {key: table[key] for key in CONFIG_KEYS}
        configs[f"{policy.name}/{CONFIG_FILE}"] = (
            json.dumps({**FIXED_CONFIG, **config}, indent=2, sort_keys=True) + "\n"
        ).encode()
    return adapters, configs


def build_files(adapters: Adapters, configs: Files) -> dict[str, bytes]:
    """Return adapter files: ``POLICY/adapter_model.safetensors`` and the configuration per policy."""
    weights = {f"{policy}/{WEIGHTS_FILE}": serialize_weights(tensors) for policy, tensors in adapters.items()}
    return dict(sorted({**weights, **configs}.items()))


def serialize_weights(tensors: Tensors) -> bytes:
    """Return tensors in safetensors format."""
    data: bytes = save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata={"format": "pt"})
    return data


def parse_files(files: Files, max_value: float = MAX_GIVEN) -> tuple[Adapters, dict[str, bytes]]:
    """Parse and check received adapter files.

    Args:
        files: received files, by name.
        max_value: maximum absolute value.

    Returns:
        The tensors by policy, and the configurations by file name.

    Raises:
        UserError: the files are not exactly adapters of finite float32 values with their configurations.
    """
    adapters, configs = dict[str, Tensors](), dict[str, bytes]()
    for name, data in files.items():
        policy, _, file = name.partition("/")
        if not re.fullmatch(r"[\w-]{1,64}", policy) or file not in (WEIGHTS_FILE, CONFIG_FILE):
            raise UserError(f"a file that is no adapter's: {name[:100]!r}")
        if file == CONFIG_FILE:
            _check_config(name, data)
            configs[name] = data
        else:
            adapters[policy] = _parse_tensors(name, data, max_value)
    if not adapters or {f"{policy}/{CONFIG_FILE}" for policy in adapters} != configs.keys():
        raise UserError("adapters without their configurations, or none at all")
    return adapters, configs


def _check_config(name: str, data: bytes) -> None:
    try:
        table = json.loads(data)
        is_valid = isinstance(table, dict) and table.keys() == {*CONFIG_KEYS, *FIXED_CONFIG}
    except (ValueError, RecursionError):
        is_valid = False
    if not is_valid or any(table[key] != value for key, value in FIXED_CONFIG.items()) or table["peft_type"] != "LORA":
        raise UserError(f"{name} is no configuration of an adapter as it leaves a site")


def _parse_tensors(name: str, data: bytes, max_value: float) -> Tensors:
    try:
        tensors: Tensors = load(data)
    except SafetensorError as error:
        raise UserError(f"{name} cannot be read: {error}") from error
    for layer, tensor in tensors.items():
        if not LAYER_NAME.fullmatch(layer) or tensor.dtype != torch.float32 or tensor.ndim != 2:
            raise UserError(f"{name} holds what is no adapter's: {layer[:100]!r}")
        if not bool((tensor.abs() <= max_value).all()):
            raise UserError(f"{name}: {layer} holds what is no number, or one that is none of a model's")
    if data != serialize_weights(tensors):
        raise UserError(f"{name} holds more than its numbers")
    return tensors


def find_differences(
    first_configs: Files, first_adapters: Adapters, second_configs: Files, second_adapters: Adapters
) -> Iterable[str]:
    """Yield each reason why the adapters of two sites cannot be averaged.

    Args:
        first_configs: configurations of the first site, by file name.
        first_adapters: adapters of the first site.
        second_configs: configurations of the second site, by file name.
        second_adapters: adapters of the second site.
    """
    if first_adapters.keys() != second_adapters.keys():
        yield f"trains {sorted(second_adapters)} where another trains {sorted(first_adapters)}"
        return
    for policy, first_tensors in first_adapters.items():
        second_tensors = second_adapters[policy]
        if {name: tensor.shape for name, tensor in first_tensors.items()} != {
            n: tensor.shape for n, tensor in second_tensors.items()
        }:
            yield f"has a {policy!r} of other layers or ranks than another; set the same lora.rank and targets"
        elif first_configs[f"{policy}/{CONFIG_FILE}"] != second_configs[f"{policy}/{CONFIG_FILE}"]:
            yield f"has a {policy!r} of another lora.alpha, or other targets, than another; set the same"


def write_adapters(folder: Path, files: Files) -> None:
    """Write adapters atomically as folders in peft's format."""
    with atomic.new_folder(folder) as draft:
        for name, data in files.items():
            (draft / name).parent.mkdir(exist_ok=True)
            (draft / name).write_bytes(data)


def replace_adapters(record: CheckpointRecord, adapters: Mapping[str, Path]) -> None:
    """Replace adapters in a checkpoint, atomically.

    Critic, optimizer and progress are kept. If the checkpoint is the best one, its score is reset, because it belongs
    to the old weights.

    Args:
        adapters: by policy, folders with weights of the same layers and shapes.
    """
    table = atomic.read_json(record.path / STATE_FILE)
    del table["digest"]
    with atomic.new_folder(record.path) as staging:
        shutil.copytree(record.path, staging, dirs_exist_ok=True)
        for policy, folder in adapters.items():
            name = f"policies/{policy}/{WEIGHTS_FILE}"
            assert name in table["files"], name
            shutil.copyfile(folder / WEIGHTS_FILE, staging / name)
            table["files"][name] = atomic.digest_of_file(staging / name)
        if table["best_step"] == record.state.step:
            table |= {"best_step": 0, "best_score": -1.0, "best_by": ""}
        write_state_table(staging, table)


def recover_checkpoint(checkpoint: Path) -> None:
    """Restore the old checkpoint after a crash during :func:`replace_adapters`."""
    for before in checkpoint.parent.glob(f"{atomic.TEMP_PREFIX}*{atomic.BACKUP_SUFFIX}"):
        if not checkpoint.exists():
            before.rename(checkpoint)
            atomic.sync_folder(checkpoint.parent)
