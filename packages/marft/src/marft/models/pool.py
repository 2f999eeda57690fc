"""All weights of a run: one backbone for each set of base weights, one entry for each policy."""

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
    """π_θ by name: a backbone and, for LoRA, the adapter on it.

    ``reference`` is what KL to the untuned base is measured against: the base, in the precision that the policy is
    computed in. ``reader`` is the base as it is loaded, which the critic reads with. A policy on a remote model has its
    reader's backbone and tokenizer; nothing is ever sampled from them in its name.
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
    base: str  # name of the local model that ``reader`` and ``tokenizer`` are of
    context: int  # tokens of prompt and action together

    @property
    def trained(self) -> bool:
        return self.settings.train != "frozen"

    @property
    def masters(self) -> Masters | None:
        """Of its weights, where those are what learns, and are in half precision."""
        return self.backbone.masters if self.adapter is None else None

    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that training moves, by name."""
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
    """The policies of a run and the backbones they share.

    Args:
        formats: of the run's local models, by name, where they have been loaded already.
        elsewhere: models whose weights other ranks hold, and this one does not.
        for_parts: weights stay in the host's memory until :meth:`shard` brings this rank's part to the device, layer by
            layer.
        settled: which forward each model has is for another rank to find out and to tell: :meth:`take_forwards`.

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
        self.whole: dict[str, Backbone] = {}  # float32 bases, where fully tuned policies began as more than the base
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
        """A base without rounding: KL of a float32 policy to rounded weights would not begin at 0."""
        if pick_dtype(run.models[name].dtype, self.device) == torch.float32:
            return self.bases[name]
        if name not in self.whole:
            self.whole[name] = self._load(name, run.models[name], torch.float32)
        return self.whole[name]

    def backbones(self) -> list[tuple[str, Backbone]]:
        """Every set of weights once, with the base model that it is of, in the same order in every process."""
        found = [
            *self.bases.items(),
            *((policy.base, policy.backbone) for policy in self.policies.values()),
            *self.whole.items(),
        ]
        return list({id(backbone): (name, backbone) for name, backbone in found}.values())

    def forwards(self) -> list[Forward]:
        """Which forward each of :meth:`backbones` has, in their order."""
        return [backbone.forward for _, backbone in self.backbones()]

    def take_forwards(self, found: Sequence[Forward]) -> None:
        """Give each of :meth:`backbones` the forward that another process has found for it."""
        for (_, backbone), forward in zip(self.backbones(), found, strict=True):
            if backbone.here:
                backbone.forward = forward
        if self.device.type == "cpu":
            for base in self.bases.values():
                if base.here:
                    hold_in_half(base)

    def shard(self, mesh_of: Callable[[str], DeviceMesh | None]) -> None:
        """Have the ranks of a mesh hold a part of every backbone each, until they are gathered.

        Args:
            mesh_of: the ranks that learn on a base model; None where this one does not.

        Raises:
            ValueError: a model's passes differ from rank to rank, so that ranks would wait for each other for ever.
        """
        from marft.models.sharding import shard  # what one process alone does without

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
        """Bring all weights together where ranks hold parts of them; all ranks make this call.

        Args:
            keep: this rank holds them all, until :meth:`let_go`.
            on_host: it holds them in the host's memory, where they can be read and nothing can be computed.
        """
        for shards in [backbone.shards for _, backbone in self.backbones() if backbone.shards is not None]:
            if on_host:
                shards.copy(keep)
            else:
                shards.gather(keep)

    def let_go(self) -> None:
        """Hold this rank's parts alone, where ranks hold parts."""
        for _, backbone in self.backbones():
            if backbone.shards is not None:
                backbone.shards.let_go()

    def notes(self) -> Iterator[str]:
        """What whoever trains these models should know of them."""
        for name, base in self.bases.items():
            if base.plain:
                yield (
                    f"models.{name}: rows of {type(base.model).__name__} cannot be packed; it runs on transformers' "
                    "own forward, which is slower (docs/models.md)"
                )

    def save_policy(self, name: str, folder: Path) -> None:
        """Write a trained policy: an adapter folder, or a whole model for full fine-tuning."""
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
        """Read what :meth:`save_policy` wrote.

        Raises:
            ValueError: it is damaged or does not fit.
        """
        policy = self.policies[name]
        if policy.adapter is None:
            load_weights(policy.backbone, folder)
        else:
            load_adapter(policy.backbone, policy.adapter, folder)

    def digests(self) -> dict[str, str]:
        """What each base, with its tokenizer and chat template, and each frozen adapter is known by.

        A few numbers of every tensor are looked at, as bfloat16: enough to tell other weights, at no cost, and the same
        on every device.
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
        """Give a version of a pool the weights that the policy has now."""
        mine, theirs = (self.policies[name].backbone.adapters(name) for name in (source, target))
        for layer, adapter in theirs.items():
            adapter.a.copy_(mine[layer].a)
            adapter.b.copy_(mine[layer].b)

    def reset_policy(self, name: str) -> None:
        """Back to the untuned base."""
        policy = self.policies[name]
        with torch.no_grad():
            if policy.adapter is not None:
                for adapter in policy.backbone.adapters(policy.adapter).values():
                    adapter.b.zero_()
            elif policy.trained:
                policy.backbone.take(policy.reference.base_weights())
