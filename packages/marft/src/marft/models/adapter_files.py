"""LoRA adapters on disk, in PEFT's format: readable by ``peft`` and vLLM."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from peft import LoraConfig
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from marft.common.errors import UserError
from marft.common.user_modules import verify_export_folder
from marft.config.models import MAX_LORA_RANK, LoraSettings, unsupported_targets
from marft.models.backbone import Backbone
from marft.models.checkpoint_checks import check_finite, check_no_pickle
from marft.models.devices import copy_to_host, copy_together
from marft.models.lora import Adapter

WEIGHTS_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"
SUPPORTED_KEYS = (
    "peft_type", "r", "lora_alpha", "target_modules", "target_parameters", "use_rslora", "init_lora_weights",
)  # fmt: skip
IGNORED_KEYS = (
    "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "lora_dropout", "layers_pattern", "megatron_config", "megatron_core", "loftq_config", "corda_config", "eva_config",
    "lora_ga_config", "qalora_group_size", "runtime_config", "ensure_weight_tying",
)  # keys without effect on a loaded adapter's computation; any other key changes the computation  # fmt: skip
BASE_CHANGING_INITS = ("pissa", "olora", "loftq", "corda", "lora_ga")


def save_adapter(adapters: Mapping[str, Adapter], lora: LoraSettings, base: str, folder: Path) -> None:
    """Write ``adapter_model.safetensors`` and ``adapter_config.json``.

    Args:
        adapters: by the full name of their layer.
        base: path or id of the base model, for the configuration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_file(copy_to_host(_named_halves(adapters)), folder / WEIGHTS_FILE, metadata={"format": "pt"})
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        target_modules=list(lora.target_modules),
        target_parameters=list(lora.target_parameters) or None,
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    # peft converts the list to a set, which would make the order in the file random
    config.target_modules = list(lora.target_modules)
    config.save_pretrained(str(folder))


def read_lora_settings(folder: Path) -> LoraSettings:
    """Read the rank, alpha and targets of an adapter folder.

    An rsLoRA adapter scales by alpha / √rank (Kalajdzievski 2023), so it is returned as a plain adapter with a larger
    alpha. If the targets are a pattern or ``all-linear``, the result lists the layers with weights in the file.

    Raises:
        UserError: the folder holds no LoRA adapter, or a kind of adapter that MARFT does not support.
    """
    verify_export_folder(folder)
    if not (folder / CONFIG_FILE).is_file():
        missing = f"it has no {CONFIG_FILE}" if folder.is_dir() else f"there is no folder {folder.absolute()}"
        raise UserError(
            f"no adapter at {folder}: {missing}. Give a folder that peft or MARFT wrote, such as "
            "runs/name/checkpoints/step_000050/policies/actor"
        )
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"no adapter at {folder}: {error}") from error
    problems = list(_find_problems(config))
    if problems:
        raise UserError(
            f"the adapter at {folder} is not plain LoRA: its {CONFIG_FILE} {'; '.join(problems)}. Give one with r, "
            "lora_alpha and a list of target_modules, and nothing else that changes what is computed"
        )
    rank, alpha, targets = config["r"], float(config["lora_alpha"]), config.get("target_modules") or ()
    if rank > MAX_LORA_RANK:
        raise UserError(f"the adapter at {folder} says r = {rank}, and no layer has so many inputs or outputs")
    if isinstance(targets, str):
        targets = _adapted_layers(folder, config.get("target_parameters") or ())
    if outside := unsupported_targets(targets):
        raise UserError(
            f"the adapter at {folder} changes {outside[0]}, an output layer or an embedding: adapters are computed on "
            "linear layers of the decoder alone. Train one with other target_modules, or merge it into the base "
            "(peft: merge_and_unload, save_pretrained) and give that model"
        )
    return LoraSettings(
        rank=rank,
        alpha=alpha * math.sqrt(rank) if config.get("use_rslora") else alpha,
        target_modules=tuple(sorted(targets)),
        target_parameters=tuple(sorted(config.get("target_parameters") or ())),
    )


def attach_adapter(backbone: Backbone, policy: str, folder: Path, seed: int = 0) -> LoraSettings:
    """Attach an adapter from a folder to a policy; return the adapter's settings.

    The shapes in the file header are checked against the model's layers before any memory is allocated.

    Raises:
        UserError: the adapter is missing or damaged, or it does not fit the model.
    """
    lora = read_lora_settings(folder)
    layers = backbone.target_layers(policy, lora.target_modules)
    experts = backbone.target_experts(policy, lora.target_parameters)
    sizes = {name: (*size, 1) for name, size in layers.items()}
    sizes |= {name: (shape.in_features, shape.out_features, shape.experts) for name, shape in experts.items()}
    shapes, file_names = dict[str, tuple[int, ...]](), _file_names(layers, experts)
    for layer, (size_in, size_out, copies) in sizes.items():
        if lora.rank > max(size_in, size_out):
            raise UserError(
                f"the adapter at {folder} says r = {lora.rank}, and {layer} has {size_in} inputs and {size_out} "
                f"outputs: its {CONFIG_FILE} is damaged, or of another model"
            )
        name, rank = file_names[layer], lora.rank * copies
        shapes |= {_tensor_name(name, "A"): (rank, size_in), _tensor_name(name, "B"): (size_out, rank)}
    _check_shapes(folder, shapes)
    backbone.add_adapter(policy, lora.rank, lora.alpha, lora.target_modules, seed, lora.target_parameters)
    load_adapter(backbone, policy, folder)
    return lora


def load_adapter(backbone: Backbone, policy: str, folder: Path) -> None:
    """Load a saved adapter into the policy's existing adapter with the same shape.

    Raises:
        UserError: the file is missing or damaged, or it does not fit.
    """
    halves = _named_halves(backbone.adapters(policy))
    _check_shapes(folder, {name: tuple(half.shape) for name, half in halves.items()})
    tensors = _load_tensors(folder)
    check_finite(tensors, f"the adapter at {folder}")
    copy_together(halves.values(), [tensors[name].to(half.dtype) for name, half in halves.items()])


def _tensor_name(layer: str, half: str) -> str:
    return f"base_model.model.{layer}.lora_{half}.weight"


def _file_names(layers: Iterable[str], experts: Iterable[str]) -> dict[str, str]:
    """Return PEFT's layer names for linear layers and weights of experts.

    PEFT wraps the module of experts once for each weight. The last weight is the outermost, and ``base_layer`` is the
    module inside.

    >>> names = _file_names([], ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
    >>> names["mlp.experts.gate_up_proj"], names["mlp.experts.down_proj"]
    ('mlp.experts.base_layer', 'mlp.experts')
    """
    names, depths = {layer: layer for layer in layers}, Counter[str]()
    for weight in reversed(list(experts)):
        module = weight.rpartition(".")[0]
        names[weight] = module + ".base_layer" * depths[module]
        depths[module] += 1
    return names


def _named_halves(adapters: Mapping[str, Adapter]) -> dict[str, Tensor]:
    """Return the matrices of adapters by their names in a file."""
    experts = [name for name, adapter in adapters.items() if adapter.copies > 1]
    names = _file_names(adapters, experts)
    return {
        _tensor_name(names[layer], half): tensor
        for layer, adapter in adapters.items()
        for half, tensor in (("A", adapter.a), ("B", adapter.b))
    }


def _check_shapes(folder: Path, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Check the shapes in an adapter file's header against the layers.

    Raises:
        UserError: the shapes differ, or the file is missing or damaged.
    """
    shapes = _read_shapes(folder)
    if full_weights := sorted(name for name in shapes if ".lora_" not in name):
        raise UserError(
            f"the adapter at {folder} holds whole weights, {full_weights[0]}, beside its changes, and they would not "
            "be computed: merge it into the base (peft: merge_and_unload, save_pretrained) and give that model"
        )
    if set(shapes) != set(expected):
        missing, extra = sorted(set(expected) - set(shapes)), sorted(set(shapes) - set(expected))
        raise UserError(
            f"the adapter at {folder} is for other layers: missing {missing[:2]}, unexpected {extra[:2]}; "
            "set lora.target_modules to the adapter's"
        )
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise UserError(
                f"the adapter at {folder} has shape {shapes[name]} where {shape} is needed; "
                "set lora.rank to the adapter's"
            )


def _read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the tensor shapes in an adapter file by name. Reads only the file header."""
    check_no_pickle(folder, f"the adapter at {folder}")
    try:
        with safe_open(folder / WEIGHTS_FILE, framework="pt") as tensors:
            return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read the adapter at {folder}: {error}") from error


def _load_tensors(folder: Path) -> dict[str, Tensor]:
    try:
        return load_file(folder / WEIGHTS_FILE)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read the adapter at {folder}: {error}") from error


def _adapted_layers(folder: Path, parameters: Iterable[str]) -> set[str]:
    """Return the last name component for each linear layer with weights in the adapter.

    Args:
        parameters: targeted weights of experts.
    """
    layers = {name.rpartition(".lora_")[0] for name in _read_shapes(folder) if ".lora_" in name}
    experts = {name.rpartition(".")[0].rpartition(".")[2] for name in parameters}
    return {layer.replace(".base_layer", "").rpartition(".")[2] for layer in layers} - experts


def _find_problems(config: object) -> Iterator[str]:
    """Yield the problems of an adapter's configuration: missing keys and unsupported options."""
    if not isinstance(config, dict):
        yield "holds no table"
        return
    if config.get("peft_type") != "LORA":
        yield f"says peft_type {config.get('peft_type')!r}"
    rank, alpha, targets = (config.get(key) for key in ("r", "lora_alpha", "target_modules"))
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        yield "lacks r" if rank is None else f"says r = {rank!r}"
    if not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
        yield "lacks lora_alpha" if alpha is None else f"says lora_alpha = {alpha!r}"
    parameters = config.get("target_parameters") or []
    if not _are_names(parameters):
        yield f"says target_parameters = {parameters!r}, which names no weights"
    if not (targets or parameters) or not (_are_names(targets or []) or isinstance(targets, str)):
        yield "lacks target_modules" if targets is None else f"says target_modules = {targets!r}, which names no layers"
    for key in config:
        if key not in (*SUPPORTED_KEYS, *IGNORED_KEYS) and _is_set(config, key):
            yield f"asks for {key}"
    if str(config.get("init_lora_weights")).lower().startswith(BASE_CHANGING_INITS):
        yield f"was begun with {config['init_lora_weights']}, which changes the base too"


def _are_names(targets: object) -> bool:
    return isinstance(targets, list) and all(isinstance(target, str) for target in targets)


def _is_set(config: Mapping[str, object], key: str) -> bool:
    value = config.get(key)
    return type(value) is int or value not in (None, False, "none", {}, [])  # 0 is a valid layer index
