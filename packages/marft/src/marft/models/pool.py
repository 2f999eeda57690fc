"""Model weights for a run: one backbone for each set of base weights, and an entry for each policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from marft.config.models import LoraSettings, ModelSettings, PolicySettings, local_model
from marft.config.pools import is_later
from marft.config.run import RunSettings
from marft.models.adapters import load_adapter, read_adapter, save_adapter
from marft.models.alone import one_at_a_time
from marft.models.backbone import Backbone, Forward
from marft.models.digests import digest_of, template_of
from marft.models.formats import Format, load_formats, policy_context
from marft.models.held_in_half import hold_in_half
from marft.models.loading import (
    check_vocabulary,
    learned_dtype,
    load_backbone,
    load_weights,
    outline,
    pick_device,
    pick_dtype,
)
from marft.models.masters import Masters
from marft.models.memory import keep_freed_memory
from marft.models.paths import resolve_path

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


HOST = torch.device("cpu")


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
    def trained(self) -> bool:
        """True for a trained policy."""
        return self.settings.train != "frozen"

    @property
    def masters(self) -> Masters | None:
        """Master weights for full fine-tuning in half precision; else None."""
        return self.backbone.masters if self.adapter is None else None

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by name; empty for a frozen policy."""
        if not self.trained:
            return {}
        if self.adapter is None:
            return self.backbone.learned()
        found: dict[str, nn.Parameter] = {}
        for layer, adapter in self.backbone.adapters(self.adapter).items():
            if self.settings.lora.trains == "both":
                found[f"{layer}.lora_A"] = adapter.a
            found[f"{layer}.lora_B"] = adapter.b
        return found


class Models:
    """Policies in a run, with their shared backbones.

    Args:
        formats: tokenizers of the run's local models by name, if already loaded.
        elsewhere: models with weights on other ranks only.
        for_parts: keep weights in CPU memory until :meth:`shard` moves this rank's shard to the device, layer by layer.
        settled: whether another rank selects the forward modes and sends them for :meth:`take_forwards`.

    Raises:
        ValueError: a model, tokenizer or adapter cannot be loaded.
    """

    @one_at_a_time
    def __init__(
        self,
        run: RunSettings,
        formats: Mapping[str, Format] | None = None,
        elsewhere: Collection[str] = (),
        for_parts: bool = False,
        settled: bool = False,
    ) -> None:
        if run.threads:
            torch.set_num_threads(run.threads)
        self.device = pick_device(run.device)
        if self.device.type == "cpu":
            keep_freed_memory()
        self._elsewhere, self._for_parts, self._settled = elsewhere, for_parts, settled
        self.bases: dict[str, Backbone] = {}
        # float32 base models, for fully fine-tuned policies that did not start as the rounded base model
        self.whole: dict[str, Backbone] = {}
        self.formats = load_formats(run) if formats is None else formats
        local = {name: model for name, model in run.models.items() if model.endpoint is None}
        for name, model in local.items():
            dtype = pick_dtype(model.dtype, self.device)
            self.bases[name] = self._load(name, model, dtype)
            if self.bases[name].here:
                if self.device.type == "cpu" and not settled:
                    hold_in_half(self.bases[name])
                check_vocabulary(self.formats[name].tokenizer, self.bases[name], name)
        self.policies = {name: self._policy(run, name, settings) for name, settings in run.loaded_policies.items()}
        self.base_paths = {name: model.path for name, model in local.items()}

    def _policy(self, run: RunSettings, name: str, settings: PolicySettings) -> Policy:
        base_name = local_model(run.models, settings.model)
        base, format = self.bases[base_name], self.formats[base_name]
        backbone, reference, adapter, lora = base, base, None, settings.lora
        if settings.train == "full":
            dtype = learned_dtype(run.models[settings.model].dtype, self.device)
            backbone = self._load(base_name, run.models[settings.model], dtype)
            backbone.model.requires_grad_(True)
            reference = base if backbone.half else self._in_float32(run, base_name)
        elif settings.train == "lora" or settings.adapter or settings.pool:
            adapter = name
            if settings.adapter:
                lora = read_adapter(base, name, Path(settings.adapter), run.seed)
            else:
                base.add_adapter(name, lora.rank, lora.alpha, lora.targets, run.seed)
            for half in base.adapters(name).values():
                half.a.requires_grad_(settings.lora.trains == "both")
        context = policy_context(run, settings.model, base_name, {n: f.context for n, f in self.formats.items()})
        return Policy(
            name, settings, backbone, adapter, lora, reference, base, format.tokenizer, format.stop_ids, base_name,
            context,
        )  # fmt: skip

    def _load(self, name: str, model: ModelSettings, dtype: torch.dtype) -> Backbone:
        if name in self._elsewhere:
            return outline(model, self.device, dtype)
        return load_backbone(model, HOST if self._for_parts else self.device, dtype, self._settled)

    def _in_float32(self, run: RunSettings, name: str) -> Backbone:
        """Return a base model in float32.

        The KL between a float32 policy and a rounded base model would not start at 0.
        """
        if pick_dtype(run.models[name].dtype, self.device) == torch.float32:
            return self.bases[name]
        if name not in self.whole:
            self.whole[name] = self._load(name, run.models[name], torch.float32)
        return self.whole[name]

    def backbones(self) -> list[tuple[str, Backbone]]:
        """Return every backbone once, with its base model's name, in the same order in each process."""
        found = [
            *self.bases.items(),
            *((policy.base, policy.backbone) for policy in self.policies.values()),
            *self.whole.items(),
        ]
        return list({id(backbone): (name, backbone) for name, backbone in found}.values())

    def forwards(self) -> list[Forward]:
        """Return the forward modes for :meth:`backbones`, in the same order."""
        return [backbone.forward for _, backbone in self.backbones()]

    def take_forwards(self, found: Sequence[Forward]) -> None:
        """Set the forward modes for :meth:`backbones`, as selected by another process."""
        for (_, backbone), forward in zip(self.backbones(), found, strict=True):
            if backbone.here:
                backbone.forward = forward
        if self.device.type == "cpu":
            for base in self.bases.values():
                if base.here:
                    hold_in_half(base)

    def shard(self, mesh_of: Callable[[str], DeviceMesh | None]) -> None:
        """Shard every backbone over the ranks in a mesh, until :meth:`gather`.

        Args:
            mesh_of: returns the ranks that train on a base model; None if this rank does not.

        Raises:
            ValueError: the number of forwards for a model differs between ranks, which would block collectives forever.
        """
        from marft.models.sharding import shard  # not needed by single-process runs

        for name, base in self.bases.items():
            if base.plain:
                raise ValueError(
                    f"training.shard: models.{name} runs on transformers' own forward, in as many passes as its rows "
                    "have lengths, and cannot lie in parts; set shard = false"
                )
        for name, backbone in self.backbones():
            mesh = mesh_of(name)
            if mesh is not None:
                shard(backbone, mesh)
            elif backbone.here:
                torch.nn.Module.to(backbone.model, self.device)

    def gather(self, keep: bool, on_host: bool = False) -> None:
        """Gather the sharded weights; a collective call for every rank.

        Args:
            keep: whether this rank keeps the full weights, until :meth:`let_go`.
            on_host: gather into CPU memory, where weights can be read but not used for computation.
        """
        for shards in [backbone.shards for _, backbone in self.backbones() if backbone.shards is not None]:
            if on_host:
                shards.copy(keep)
            else:
                shards.gather(keep)

    def let_go(self) -> None:
        """Release gathered weights and keep only this rank's shards."""
        for _, backbone in self.backbones():
            if backbone.shards is not None:
                backbone.shards.let_go()

    def notes(self) -> Iterator[str]:
        """Yield warnings about models that train slowly."""
        for name, base in self.bases.items():
            if base.plain:
                yield (
                    f"models.{name}: rows of {type(base.model).__name__} cannot be packed; it runs on transformers' "
                    "own forward, which is slower (docs/models.md)"
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
            ValueError: the files are damaged or do not fit.
        """
        policy = self.policies[name]
        if policy.adapter is None:
            load_weights(policy.backbone, folder)
        else:
            load_adapter(policy.backbone, policy.adapter, folder)

    def digests(self) -> dict[str, str]:
        """Return digests for each base model (with tokenizer and chat template) and each frozen adapter.

        The digest samples a few bfloat16 values from every tensor. This detects other weights at low cost and is the
        same on every device.
        """
        found = {
            f"models.{name}": digest_of(base.base_weights(), template_of(self.formats[name].tokenizer))
            for name, base in self.bases.items()
        }
        for name, policy in self.policies.items():
            if policy.adapter is not None and not policy.trained and not is_later(name):
                halves = {
                    f"{layer}.{half}": tensor
                    for layer, adapter in policy.backbone.adapters(name).items()
                    for half, tensor in (("a", adapter.a), ("b", adapter.b))
                }
                found[f"policies.{name}.adapter"] = digest_of(halves)
        return found

    @torch.no_grad()
    def copy_adapter(self, source: str, target: str) -> None:
        """Copy a policy's current weights to a version in an opponent pool."""
        mine, theirs = (self.policies[name].backbone.adapters(name) for name in (source, target))
        for layer, adapter in theirs.items():
            adapter.a.copy_(mine[layer].a)
            adapter.b.copy_(mine[layer].b)

    def reset_policy(self, name: str) -> None:
        """Reset a policy to the base model."""
        policy = self.policies[name]
        with torch.no_grad():
            if policy.adapter is not None:
                for adapter in policy.backbone.adapters(policy.adapter).values():
                    adapter.b.zero_()
            elif policy.trained:
                policy.backbone.take(policy.reference.base_weights())
