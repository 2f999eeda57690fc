"""Model weights for a run: one backbone for each set of base weights, and an entry for each policy."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from marft.common.errors import UserError
from marft.config.bundled import resolve_path
from marft.config.models import LoraSettings, ModelSettings, PolicySettings, is_later_version, local_model
from marft.config.run import RunSettings
from marft.models.adapter_files import attach_adapter, load_adapter, save_adapter
from marft.models.backbone import Backbone, ForwardMode
from marft.models.devices import copy_to_host, keep_freed_memory, to_device
from marft.models.half_precision import MasterWeights, store_in_half
from marft.models.load_lock import with_load_lock
from marft.models.loader import (
    build_meta_backbone,
    check_vocabulary,
    load_backbone,
    load_weights,
    pick_device,
    pick_dtype,
    training_dtype,
)
from marft.models.quantization import count_quantized_weights
from marft.models.tokenizer_format import TokenizerFormat, load_tokenizer_formats, policy_context_length

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

CPU_DEVICE = torch.device("cpu")
SAMPLES_PER_TENSOR = 64  # values per tensor, evenly spread
MIN_NAMED_SHARE = 0.05  # minimum share of experts in a quantized base's weights for a warning


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """Policy π_θ: a backbone and, for LoRA, an adapter on the backbone.

    ``reference`` is the base model for the KL penalty, in the precision of the policy's computation. ``reader`` is the
    base model as loaded, which the critic uses. A policy on a remote model has the backbone and tokenizer of its local
    reader, and no tokens are sampled from that backbone for it.
    """

    name: str
    settings: PolicySettings
    backbone: Backbone
    adapter: str | None
    lora: LoraSettings
    reference: Backbone
    reader: Backbone
    tokenizer: PreTrainedTokenizerBase
    stop_ids: tuple[int, ...]
    base: str  # name of the local model of ``reader`` and ``tokenizer``
    context: int  # maximum tokens of prompt and action together

    @property
    def is_trained(self) -> bool:
        """True for a trained policy."""
        return self.settings.train != "frozen"

    @property
    def master_weights(self) -> MasterWeights | None:
        """Master weights for full fine-tuning in half precision; else None."""
        return self.backbone.master_weights if self.adapter is None else None

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by name; empty for a frozen policy."""
        if not self.is_trained:
            return {}
        if self.adapter is None:
            return self.backbone.full_tuning_parameters()
        parameters: dict[str, nn.Parameter] = {}
        for layer, adapter in self.backbone.adapters(self.adapter).items():
            if self.settings.lora.trained_matrices == "both":
                parameters[f"{layer}.lora_A"] = adapter.a
            parameters[f"{layer}.lora_B"] = adapter.b
        return parameters


class PolicyRegistry:
    """Policies in a run, with their shared backbones.

    Args:
        formats: tokenizers of the run's local models by name, if already loaded.
        remote_models: models with weights on other ranks only.
        keep_on_cpu: keep weights in CPU memory until :meth:`shard` moves this rank's shard to the device, layer by
            layer.
        skip_forward_check: whether another rank selects the forward modes and sends them for
            :meth:`set_forward_modes`.

    Raises:
        UserError: a model, tokenizer or adapter cannot be loaded.
    """

    @with_load_lock
    def __init__(
        self,
        run: RunSettings,
        formats: Mapping[str, TokenizerFormat] | None = None,
        remote_models: Collection[str] = (),
        keep_on_cpu: bool = False,
        skip_forward_check: bool = False,
    ) -> None:
        if run.threads:
            torch.set_num_threads(run.threads)
        self.device = pick_device(run.device)
        if self.device.type == "cpu":
            keep_freed_memory()
        self._remote_models, self._keep_on_cpu = remote_models, keep_on_cpu
        self._skip_forward_check = skip_forward_check
        self.base_models: dict[str, Backbone] = {}
        # float32 base models, for fully fine-tuned policies that did not start as the rounded base model
        self.float32_bases: dict[str, Backbone] = {}
        self.formats = load_tokenizer_formats(run) if formats is None else formats
        local = {name: model for name, model in run.models.items() if model.endpoint is None}
        for name, model in local.items():
            dtype = pick_dtype(model.dtype, self.device)
            self.base_models[name] = self._load_base(name, model, dtype)
            if self.base_models[name].has_weights:
                if self.device.type == "cpu" and not skip_forward_check:
                    store_in_half(self.base_models[name])
                check_vocabulary(self.formats[name].tokenizer, self.base_models[name], name)
        self.policies = {
            name: self._build_policy(run, name, settings) for name, settings in run.loaded_policies.items()
        }
        self.base_paths = {name: model.path for name, model in local.items()}

    def _build_policy(self, run: RunSettings, name: str, settings: PolicySettings) -> Policy:
        base_name = local_model(run.models, settings.model)
        base, format = self.base_models[base_name], self.formats[base_name]
        backbone, reference, adapter, lora = base, base, None, settings.lora
        if settings.train == "full":
            dtype = training_dtype(run.models[settings.model].dtype, self.device)
            backbone = self._load_base(base_name, run.models[settings.model], dtype)
            if backbone.is_quantized:
                raise UserError(
                    f"policies.{name}: train = 'full' needs an unquantized base, and models.{settings.model} has 4-bit "
                    "weights; set train = 'lora', or take the checkpoint that it was made from"
                )
            backbone.model.requires_grad_(True)
            reference = base if backbone.is_half else self._float32_base(run, base_name)
        elif settings.train == "lora" or settings.adapter or settings.pool:
            adapter = name
            if settings.adapter:
                lora = attach_adapter(base, name, Path(settings.adapter), run.seed)
            else:
                base.add_adapter(name, lora.rank, lora.alpha, lora.target_modules, run.seed, lora.target_parameters)
            for half in base.adapters(name).values():
                half.a.requires_grad_(settings.lora.trained_matrices == "both")
        context = policy_context_length(run, settings.model, base_name, {n: f.context for n, f in self.formats.items()})
        return Policy(
            name,
            settings,
            backbone,
            adapter,
            lora,
            reference,
            base,
            format.tokenizer,
            format.stop_ids,
            base_name,
            context,
        )

    def _load_base(self, name: str, model: ModelSettings, dtype: torch.dtype) -> Backbone:
        if name in self._remote_models:
            return build_meta_backbone(model, self.device, dtype)
        return load_backbone(model, CPU_DEVICE if self._keep_on_cpu else self.device, dtype, self._skip_forward_check)

    def _float32_base(self, run: RunSettings, name: str) -> Backbone:
        """Return a base model in float32.

        The KL between a float32 policy and a rounded base model would not start at 0.
        """
        if pick_dtype(run.models[name].dtype, self.device) == torch.float32:
            return self.base_models[name]
        if name not in self.float32_bases:
            self.float32_bases[name] = self._load_base(name, run.models[name], torch.float32)
        return self.float32_bases[name]

    def list_backbones(self) -> list[tuple[str, Backbone]]:
        """Return every backbone once, with its base model's name, in the same order in each process."""
        named_backbones = [
            *self.base_models.items(),
            *((policy.base, policy.backbone) for policy in self.policies.values()),
            *self.float32_bases.items(),
        ]
        return list({id(backbone): (name, backbone) for name, backbone in named_backbones}.values())

    def forward_modes(self) -> list[ForwardMode]:
        """Return the forward modes for :meth:`list_backbones`, in the same order."""
        return [backbone.forward_mode for _, backbone in self.list_backbones()]

    def set_forward_modes(self, modes: Sequence[ForwardMode]) -> None:
        """Set the forward modes for :meth:`list_backbones`, as selected by another process."""
        for (_, backbone), forward in zip(self.list_backbones(), modes, strict=True):
            if backbone.has_weights:
                backbone.forward_mode = forward
        if self.device.type == "cpu":
            for base in self.base_models.values():
                if base.has_weights:
                    store_in_half(base)

    def shard(self, mesh_of: Callable[[str], DeviceMesh | None]) -> None:
        """Shard every backbone over the ranks in a mesh, until :meth:`gather_weights`.

        Args:
            mesh_of: returns the ranks that train on a base model; None if this rank does not.

        Raises:
            UserError: the number of forwards for a model differs between ranks, which would block collectives forever.
        """
        from marft.models.sharding import shard_backbone  # not needed by single-process runs

        for name, base in self.base_models.items():
            if base.has_weights and base.is_quantized:
                raise UserError(
                    f"training.shard: models.{name} has 4-bit weights, which lie whole on every rank; set shard = false"
                )
            if base.native:
                raise UserError(
                    f"training.shard: models.{name} runs on transformers' own forward, in as many passes as its rows "
                    "have lengths, and cannot lie in parts; set shard = false"
                )
        for name, backbone in self.list_backbones():
            mesh = mesh_of(name)
            if mesh is not None:
                shard_backbone(backbone, mesh)
            elif backbone.has_weights:
                torch.nn.Module.to(backbone.model, self.device)

    def gather_weights(self, keep: bool, to_cpu: bool = False) -> None:
        """Gather the sharded weights; a collective call for every rank.

        Args:
            keep: whether this rank keeps the full weights, until :meth:`release_weights`.
            to_cpu: gather into CPU memory, where weights can be read but not used for computation.
        """
        for shards in [backbone.shards for _, backbone in self.list_backbones() if backbone.shards is not None]:
            if to_cpu:
                shards.gather_to_cpu(keep)
            else:
                shards.gather_weights(keep)

    def release_weights(self) -> None:
        """Release gathered weights and keep only this rank's shards."""
        for _, backbone in self.list_backbones():
            if backbone.shards is not None:
                backbone.shards.release_weights()

    def slow_model_warnings(self) -> Iterator[str]:
        """Yield warnings about models that train slowly."""
        for name, base in self.base_models.items():
            if base.native:
                yield (
                    f"models.{name}: rows of {type(base.model).__name__} cannot be packed; it runs on transformers' "
                    "own forward, which is slower (docs/models.md)"
                )
            if base.has_weights and base.is_quantized and (share := _expert_share(base)) > MIN_NAMED_SHARE:
                dtype = str(base.head.weight.dtype).removeprefix("torch.")
                yield (
                    f"models.{name}: {share:.0%} of its layers' weights are experts, which are not quantized and stay "
                    f"in {dtype} (docs/models.md)"
                )

    def save_policy(self, name: str, folder: Path) -> None:
        """Save a trained policy: an adapter folder, or a full model for full fine-tuning."""
        policy = self.policies[name]
        if policy.adapter is None:
            backbone = policy.backbone
            weights = None if backbone.shards is None else backbone.weights()
            backbone.model.save_pretrained(folder, state_dict=weights)
            policy.tokenizer.save_pretrained(folder)
        else:
            path = resolve_path(self.base_paths[policy.settings.model])
            save_adapter(policy.backbone.adapters(policy.adapter), policy.lora, path, folder)

    def load_policy(self, name: str, folder: Path) -> None:
        """Load a policy saved by :meth:`save_policy`.

        Raises:
            UserError: the files are damaged or do not fit.
        """
        policy = self.policies[name]
        if policy.adapter is None:
            load_weights(policy.backbone, folder)
        else:
            load_adapter(policy.backbone, policy.adapter, folder)

    def compute_digests(self) -> dict[str, str]:
        """Return digests for each base model (with tokenizer and chat template) and each frozen adapter.

        The digest samples a few bfloat16 values from every tensor. This detects other weights at low cost and is the
        same on every device.
        """
        digests = {
            f"models.{name}": compute_digest(base.base_weights(), tokenizer_text(self.formats[name].tokenizer))
            for name, base in self.base_models.items()
        }
        for name, policy in self.policies.items():
            if policy.adapter is not None and not policy.is_trained and not is_later_version(name):
                halves = {
                    f"{layer}.{half}": tensor
                    for layer, adapter in policy.backbone.adapters(name).items()
                    for half, tensor in (("a", adapter.a), ("b", adapter.b))
                }
                digests[f"policies.{name}.adapter"] = compute_digest(halves)
        return digests

    @torch.no_grad()
    def copy_adapter(self, source: str, target: str) -> None:
        """Copy a policy's current weights to a version in an opponent pool."""
        source_adapters, target_adapters = (self.policies[name].backbone.adapters(name) for name in (source, target))
        for layer, adapter in target_adapters.items():
            adapter.a.copy_(source_adapters[layer].a)
            adapter.b.copy_(source_adapters[layer].b)

    def reset_policy(self, name: str) -> None:
        """Reset a policy to the base model."""
        policy = self.policies[name]
        with torch.no_grad():
            if policy.adapter is not None:
                for adapter in policy.backbone.adapters(policy.adapter).values():
                    adapter.b.zero_()
            elif policy.is_trained:
                policy.backbone.load_weights(policy.reference.base_weights())


def _expert_share(base: Backbone) -> float:
    """Return the share of experts, which have three dimensions, in the layers' weights of a quantized base."""
    experts: int = sum(weight.numel() for weight in base.decoder.parameters() if weight.dim() > 2)
    return experts / (experts + count_quantized_weights(base.model))


@torch.no_grad()
def compute_digest(tensors: Mapping[str, Tensor], *texts: str) -> str:
    """Return a digest over names, shapes, sampled bfloat16 values from every tensor, and texts.

    >>> compute_digest({"a": torch.ones(3)}) == compute_digest({"a": torch.ones(3, dtype=torch.bfloat16)})
    True
    """
    digest = hashlib.sha256()
    samples = copy_to_host({name: _sample_values(tensor) for name, tensor in sorted(tensors.items())})
    for name, sample in samples.items():
        digest.update(f"{name} {tuple(tensors[name].shape)}".encode())
        digest.update(sample.numpy().tobytes())
    for text in texts:
        digest.update(text.encode("utf-8", "replace"))
    return digest.hexdigest()


def _sample_values(tensor: Tensor) -> Tensor:
    """Return some values of a tensor, evenly spaced, as the bits of bfloat16."""
    flat = tensor.detach().reshape(-1)
    indices = np.linspace(0, max(0, len(flat) - 1), min(SAMPLES_PER_TENSOR, len(flat))).astype(np.int64)
    return flat[to_device(indices, flat.device)].to(torch.bfloat16).view(torch.int16)


def tokenizer_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the vocabulary and chat template as text: they determine the token ids."""
    return f"{sorted(tokenizer.get_vocab().items())} {tokenizer.chat_template}"
