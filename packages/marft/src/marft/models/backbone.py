"""A base model as MARFT uses it: packed rows in, hidden states out, adapters of all agents in one forward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from marft.common.seeds import derive_seed
from marft.config.settings import did_you_mean
from marft.models.attention import AttentionPlan, PackedPlan
from marft.models.devices import on_host
from marft.models.dropout import switch_off
from marft.models.forest import Forest
from marft.models.fused_decoder import fits, fused_forward, fused_layer
from marft.models.log_probs import next_logits
from marft.models.logit_shape import LogitShape
from marft.models.lora import Adapter, MultiLoraLinear, Routing
from marft.models.masters import Masters
from marft.models.own_forward import own_hidden_states
from marft.models.packed_rows import PackedRows
from marft.models.tree_attention import TreePlan
from marft.models.wide_stream import widen

if TYPE_CHECKING:
    from marft.models.sharding import Shards

SAVED = 1 / 3  # of a forward's tokens, from which on rows share what they begin with
OVERHEAD = 5e6  # weights of a layer that one more token is multiplied with in the time that a run of shared rows takes


class Forward(NamedTuple):
    """How a backbone computes; see its attributes of these names."""

    fused: bool
    plain: bool
    wide: bool


class Backbone:
    """One set of base weights and the adapters on it.

    Args:
        model: a causal language model loaded with ``attn_implementation="marft"``.
        context: tokens that prompt and action may have together.
    """

    def __init__(self, model: PreTrainedModel, context: int) -> None:
        switch_off(model)
        self.model = model
        self.context = context
        self.routing = Routing()
        self.layers: dict[str, MultiLoraLinear] = {}
        self.decoder = _decoder_of(model)
        self.fused = fits(self.decoder)  # whether to run the decoder without its modules
        self.plain = False  # whether to run the model's own forward, without packing
        self.wide = False  # whether the residual stream is float32 where the weights are not
        self.shards: Shards | None = None  # where its weights lie in parts on several ranks
        self.masters: Masters | None = None  # where its weights learn, and are in half precision
        self.here = True  # whether this process holds its weights; else only their names, shapes and types are known
        self._device: torch.device | None = None  # where they would be
        head = model.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise ValueError(
                f"models: {type(model).__name__} makes its logits with {type(head).__name__}, not with a linear layer; "
                "use another model"
            )
        self.head: nn.Linear = head
        if self.half:
            widen(self.decoder, lambda: self.wide)
        self.logit_shape = LogitShape.of(model.config.get_text_config())

    @property
    def device(self) -> torch.device:
        return self._device or self.head.weight.device

    @property
    def half(self) -> bool:
        """Whether its weights are in half precision."""
        return self.head.weight.dtype not in (torch.float32, torch.float64)

    @property
    def forward(self) -> Forward:
        """Which forward it has."""
        return Forward(self.fused, self.plain, self.wide)

    @forward.setter
    def forward(self, forward: Forward) -> None:
        self.fused, self.plain, self.wide = forward

    @property
    def wants_full_batches(self) -> bool:
        """Whether its products may round differently in batches of different sizes, and so coarsely that it shows:
        scores that are compared are then made in batches of one size."""
        return not on_host(self.head.weight) or self.half

    def gains(self, forest: Forest, tokens: int) -> bool:
        """Whether rows of so many tokens are computed faster as a forest: each of its runs attends by itself."""
        saved = tokens - len(forest.ids)
        return not self.plain and saved >= max(1, SAVED * tokens) and saved * self._layer >= OVERHEAD * len(forest.runs)

    @cached_property
    def _layer(self) -> float:
        """Weights of a layer, on average."""
        embeddings = sum(parameter.numel() for parameter in self.model.get_input_embeddings().parameters())
        weights: int = sum(parameter.numel() for parameter in self.decoder.parameters()) - embeddings
        return weights / self.depth

    @property
    def depth(self) -> int:
        return int(self.model.config.get_text_config().num_hidden_layers)

    def hidden_states(self, rows: PackedRows, plan: AttentionPlan | None = None) -> Tensor:
        """Last hidden states of packed rows, each token under its row's policy → [N, D]."""
        if self.shards is not None:
            return self.shards.through(lambda: self._hidden_states(rows, plan))
        return self._hidden_states(rows, plan)

    def _hidden_states(self, rows: PackedRows, plan: AttentionPlan | None) -> Tensor:
        if self.plain:
            return own_hidden_states(self.decoder, self.routing, rows)
        if rows.forest is not None:
            plan = plan or TreePlan(rows.forest, self.device)
        plan = plan or PackedPlan(rows.lengths, self.device, tokens=len(rows.ids))
        with self.routing.by_stretch(rows.stretches, len(rows.ids), whole=rows.filled):
            return self._forward(rows.ids, rows.positions, plan)

    def next_hidden_states(
        self, ids: Tensor, positions: Tensor, policies: Sequence[str | None], plan: AttentionPlan
    ) -> Tensor:
        """One new token a row: ``ids`` [n], ``positions`` [n] → [n, D]."""
        with self.routing.by_row(policies):
            return self._forward(ids, positions, plan)

    def logits(self, hidden: Tensor, temperatures: Tensor | None) -> Tensor:
        """Hidden states [n, D] → logits over temperature [n, V], in float32 or better."""
        return next_logits(hidden, self.head.weight, self.head.bias, temperatures, self.logit_shape)

    def _forward(self, ids: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
        if self.fused:
            through = fused_layer if self.shards is None else self.shards.fused
            return fused_forward(self.decoder, ids, positions, plan, self.routing, through)
        out = self.decoder(input_ids=ids[None], position_ids=positions[None], use_cache=False, plan=plan)
        hidden: Tensor = out.last_hidden_state[0]
        return hidden.to(self.head.weight.dtype)

    def lies_elsewhere(self, device: torch.device) -> None:
        """Its weights lie in other processes alone: here nothing passes through it.

        Args:
            device: of what is computed here with scores from there.
        """
        self.here, self._device = False, device

    def take_slower_forward(self) -> None:
        """From the decoder without its modules to the packed model, and from there to the model's own forward."""
        self.fused, self.plain, self.wide = False, not self.fused, False
        if self.plain:
            implementation = "sdpa" if getattr(self.model, "_supports_sdpa", False) else "eager"
            self.model.set_attn_implementation(implementation)

    def add_adapter(self, policy: str, rank: int, alpha: float, targets: Sequence[str], seed: int) -> None:
        """Give ``policy`` a fresh adapter (B = 0) on every linear layer whose name ends in one of ``targets``.

        Raises:
            ValueError: as :meth:`targeted`; then no layer is changed.
        """
        for name in self.targeted(policy, targets):
            generator = torch.Generator().manual_seed(derive_seed(seed, "adapter", policy, name))
            self._lora_layer(name).add(policy, rank, alpha, generator)

    def targeted(self, policy: str, targets: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return the linear layers whose names end in one of ``targets``, with the sizes of their inputs and outputs.

        Raises:
            ValueError: a target names no linear layer of this model's decoder, or one that is computed without its
                adapter.
        """
        linear, found = list(self._linear_layers()), dict[str, tuple[int, int]]()
        inside = set(map(id, self.decoder.modules()))
        for target in targets:
            names = _named(linear, target)
            computed = [name for name in names if id(self.model.get_submodule(name)) in inside]
            if not computed or any(self.model.get_submodule(name) is self.head for name in names):
                raise ValueError(f"policies.{policy}.lora.targets: {self._why_not(target, linear)}")
            for name in names:
                layer: Any = self.model.get_submodule(name)
                base: nn.Linear = layer.base if isinstance(layer, MultiLoraLinear) else layer
                found[name] = (base.in_features, base.out_features)
        return found

    def _why_not(self, target: str, linear: Sequence[str]) -> str:
        """Say why no adapter is put on the layers that a target names."""
        ours = tuple(f"{name}." for name in self.layers)  # what is inside of a layer with adapters is not the model's
        found = _named([name for name, _ in self.model.named_modules() if not name.startswith(ours)], target)
        known = {name.rpartition(".")[2] for name in linear if self.model.get_submodule(name) is not self.head}
        if not found:
            return f"no layer is called {target!r}{did_you_mean(target, known)}"
        kind = type(self.model.get_submodule(found[0])).__name__
        return (
            f"{target!r} is {found[0]} ({kind}), and adapters are computed on linear layers of the decoder alone; name "
            f"some of {', '.join(sorted(known))}, or set train = 'full'"
        )

    def remove_adapter(self, policy: str) -> None:
        """Take the policy's adapters away."""
        for layer in self.layers.values():
            layer.remove(policy)

    def adapters(self, policy: str) -> dict[str, Adapter]:
        """The policy's adapters by layer name; empty for the base alone."""
        found = {}
        for name, layer in self.layers.items():
            adapter = layer.adapter(policy)
            if adapter is not None:
                found[name] = adapter
        return found

    def refuse_unknown(self, adapter: str | None) -> None:
        """Check that an adapter is there: without it, its rows would be those of the base.

        Raises:
            ValueError: it is not.
        """
        if adapter is not None and not any(layer.adapter(adapter) for layer in self.layers.values()):
            raise ValueError(f"this model has no adapter called {adapter!r}; None is the base alone")

    def recompute_activations(self) -> None:
        """Keep only layer boundaries for the backward pass and compute the rest again (gradient checkpointing)."""
        self.fused = False

        def same_routing() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return nullcontext(), self.routing.as_it_is()

        for layer in self.model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                layer.gradient_checkpointing = True
                layer._gradient_checkpointing_func = partial(  # type: ignore[assignment]
                    checkpoint, use_reentrant=False, context_fn=same_routing
                )
                layer.training = True  # what switches it on

    def learned(self) -> dict[str, nn.Parameter]:
        """What learns where all weights do, by name: they themselves, or their masters in float32."""
        own = dict(self.model.named_parameters()) if self.shards is None else self.shards.parameters
        if not self.half:
            return own
        self.masters = self.masters or Masters(own)
        return self.masters.parameters

    def base_weights(self) -> dict[str, Tensor]:
        """The base's own weights by their original names, adapters left out."""
        weights: dict[str, Tensor] = self.weights()
        for layer in self.layers:
            for name in [name for name in weights if name.startswith(f"{layer}.")]:
                tensor = weights.pop(name)
                if name.startswith(f"{layer}.base."):
                    weights[f"{layer}.{name.removeprefix(f'{layer}.base.')}"] = tensor
        return weights

    def weights(self) -> dict[str, Tensor]:
        """All weights of the model, whole, by their names in it."""
        return self.model.state_dict() if self.shards is None else self.shards.weights()

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Undo :meth:`weights`."""
        if self.shards is None:
            self.model.load_state_dict(weights)
        else:
            self.shards.take(weights)
        if self.masters is not None:
            self.masters.take(weights)

    def _linear_layers(self) -> Iterator[str]:
        """The names of the model's own linear layers, with adapters or without."""
        for name, module in self.model.named_modules():
            inside = name.endswith(".base") and name.removesuffix(".base") in self.layers
            if isinstance(module, nn.Linear | MultiLoraLinear) and not inside:
                yield name

    def _lora_layer(self, name: str) -> MultiLoraLinear:
        if name not in self.layers:
            parent_name, _, attribute = name.rpartition(".")
            parent = self.model.get_submodule(parent_name)
            base = getattr(parent, attribute)
            self.layers[name] = MultiLoraLinear(base, self.routing)
            setattr(parent, attribute, self.layers[name])
        return self.layers[name]


def _named(layers: Sequence[str], target: str) -> list[str]:
    """Return the layers that a target names, as peft reads it."""
    return [name for name in layers if name == target or name.endswith(f".{target}")]


def _decoder_of(model: PreTrainedModel) -> Any:
    """What makes hidden states; a few models say that they are it themselves."""
    decoder = model.get_decoder()
    return getattr(model, "model", decoder) if decoder is model else decoder
