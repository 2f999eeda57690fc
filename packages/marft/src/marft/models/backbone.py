"""Backbone: base model from packed rows to hidden states, with adapters for every agent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from marft.common.errors import UserError
from marft.common.seeds import derive_seed
from marft.models.attention import AttentionPlan, PackedPlan, current_plan, use_plan
from marft.models.cpu_products import PackedWeights
from marft.models.devices import is_on_cpu
from marft.models.experts import (
    ExpertAdapters,
    ExpertShape,
    MultiLoraExperts,
    expert_weights,
    find_experts,
    is_router,
)
from marft.models.fused_decoder import fused_forward, fused_layer, supports_fused
from marft.models.half_precision import MasterWeights, use_fp32_residual
from marft.models.log_probs import LogitTransform, OutputHead, next_logits
from marft.models.lora import Adapter, AdapterSet, MultiLoraLinear, Routing
from marft.models.native_forward import native_hidden_states
from marft.models.packed_rows import PackedRows, PrefixTree
from marft.models.quantization import count_quantized_weights
from marft.models.recurrent import is_uncalled, register_mixers, supports_trees
from marft.models.router_replay import ExpertLog, RouterReplay
from marft.models.tree_attention import TreePlan

if TYPE_CHECKING:
    from marft.models.sharding import Shards

MIN_SAVED_SHARE = 1 / 5  # minimum share of saved tokens for a prefix tree to pay off
# cost of a tree node, as the number of layer weights that can be multiplied with a token in the same time
NODE_COST = 5e6
DROPOUT_NAMES = re.compile(r"\w*(drop(out)?|pdrop|jitter_noise)(_prob|_rate|_p)?")


class ForwardMode(NamedTuple):
    """Forward mode of a backbone; see the attributes with the same names."""

    fused: bool
    native: bool
    fp32_residual: bool


class Backbone:
    """Base weights with their adapters.

    Args:
        model: causal language model loaded with ``attn_implementation="marft"``.
        context: maximum tokens of prompt and action together.

    Raises:
        UserError: the model has no linear output layer.
    """

    def __init__(self, model: PreTrainedModel, context: int) -> None:
        disable_dropout(model)
        self.model = model
        self.context = context
        self.routing = Routing()
        self.layers: dict[str, MultiLoraLinear] = {}
        self.experts: dict[str, MultiLoraExperts] = {}
        self.decoder = _find_decoder(model)
        mixers = register_mixers(self.decoder)
        self.recurrent = bool(mixers)  # whether rows have states besides keys and values
        self.supports_trees = supports_trees(mixers)
        self.fused = supports_fused(self.decoder)  # whether to run the decoder without its modules
        self.native = False  # whether to run the model's own forward, without packing
        self.fp32_residual = False  # whether the residual stream is float32 although the weights are half precision
        self.router_replay: RouterReplay | None = None  # set if the model's routers are recorded and replayed
        self.shards: Shards | None = None  # set if the weights are sharded over several ranks
        # float32 master weights, if half-precision weights are trained
        self.master_weights: MasterWeights | None = None
        self.has_weights = True  # whether this process holds the weights; if not, it knows only names, shapes and types
        self._device: torch.device | None = None  # device of a remote backbone
        head = model.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise UserError(
                f"models: {type(model).__name__} makes its logits with {type(head).__name__}, not with a linear layer; "
                "use another model"
            )
        self.head: nn.Linear = head
        self.packed_weights = PackedWeights()
        if self.is_half:
            use_fp32_residual(self.decoder, lambda: self.fp32_residual)
        self.logit_transform = LogitTransform.from_config(model.config.get_text_config())

    @property
    def device(self) -> torch.device:
        """Device of the weights, or the compute device for a remote backbone."""
        return self._device or self.head.weight.device

    @property
    def is_half(self) -> bool:
        """True for half-precision weights."""
        return self.head.weight.dtype not in (torch.float32, torch.float64)

    @property
    def output_head(self) -> OutputHead:
        """Linear head and transform of the logits."""
        return OutputHead(self.head.weight, self.head.bias, self.logit_transform)

    @property
    def forward_mode(self) -> ForwardMode:
        """Current forward mode."""
        return ForwardMode(self.fused, self.native, self.fp32_residual)

    @forward_mode.setter
    def forward_mode(self, mode: ForwardMode) -> None:
        self.fused, self.native, self.fp32_residual = mode

    @property
    def needs_fixed_size(self) -> bool:
        """True if compared scores need batches with a fixed size.

        Products may round differently in batches of different sizes, and on a GPU or in half precision the difference
        matters.
        """
        return not is_on_cpu(self.head.weight) or self.is_half

    @property
    def rounds_by_batch(self) -> bool:
        """True if a token's last bits depend on the other rows of its batch even in float32 on a CPU.

        Experts multiply the tokens of all rows together, and recurrent layers compute rows of similar length together.
        """
        return self.recurrent or any(True for _ in find_experts(self.model))

    @cached_property
    def is_quantized(self) -> bool:
        """True if linear layers have 4-bit weights, which cannot be trained or sharded."""
        return count_quantized_weights(self.model) > 0

    def benefits_from_tree(self, tree: PrefixTree, tokens: int) -> bool:
        """Return whether a prefix tree speeds up rows with ``tokens`` tokens in total.

        A tree saves tokens, but each of its nodes attends separately, at a fixed cost.
        """
        saved = tokens - len(tree.ids)
        return (
            not self.native
            and self.supports_trees
            and saved >= max(1, MIN_SAVED_SHARE * tokens)
            and saved * self._layer_weights >= NODE_COST * len(tree.nodes)
        )

    @cached_property
    def _layer_weights(self) -> float:
        """Average weight count per layer."""
        embeddings = sum(parameter.numel() for parameter in self.model.get_input_embeddings().parameters())
        weights: int = sum(parameter.numel() for parameter in self.decoder.parameters()) - embeddings
        return (weights + count_quantized_weights(self.decoder)) / self.num_layers

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return int(self.model.config.get_text_config().num_hidden_layers)

    def hidden_states(self, rows: PackedRows, plan: AttentionPlan | None = None) -> Tensor:
        """Return the last hidden states for packed rows, [N, D], each token with its row's policy."""
        if self.shards is not None:
            return self.shards.run_pass(lambda: self._hidden_states(rows, plan))
        return self._hidden_states(rows, plan)

    def _hidden_states(self, rows: PackedRows, plan: AttentionPlan | None) -> Tensor:
        if self.native:
            return native_hidden_states(self.decoder, self.routing, rows)
        if rows.tree is not None:
            plan = plan or TreePlan(rows.tree, self.device)
        plan = plan or PackedPlan(rows.lengths, self.device, tokens=len(rows.ids))
        experts = None if self.router_replay is None else rows.experts
        with self.routing.by_span(rows.spans, len(rows.ids), rows.fixed_size, experts):
            return self._run_decoder(rows.ids, rows.positions, plan)

    def next_hidden_states(
        self, ids: Tensor, positions: Tensor, policies: Sequence[str | None], plan: AttentionPlan
    ) -> Tensor:
        """Return the hidden states for one new token per row, [n, D].

        Args:
            ids: token ids, [n].
            positions: positions in their rows, [n].
            policies: adapter name of each row; None: the base model.
            plan: attention plan of this step.
        """
        with self.routing.by_row(policies):
            return self._run_decoder(ids, positions, plan)

    def enable_router_replay(self, label: str) -> None:
        """Record and replay the experts that routers select; see :class:`RouterReplay`.

        Args:
            label: the model's name in errors.

        Raises:
            UserError: the model has no experts, its experts cannot be replayed, or it does not run on the packed
                forward.
        """
        if self.native:
            raise UserError(
                f"{label}: router_replay needs the packed forward, and {type(self.model).__name__} runs on its own "
                "(docs/models.md); leave it out"
            )
        self.router_replay = RouterReplay(self.model, self.num_layers, self.routing, label)
        one_token = PackedRows.from_rows([np.zeros(1, np.int32)], [None], self.device)
        self.router_replay.probe(lambda: self.hidden_states(one_token))

    def record_experts(self) -> AbstractContextManager[ExpertLog]:
        """Record the experts of the forward inside the context; nothing without router replay."""
        return nullcontext(ExpertLog()) if self.router_replay is None else self.router_replay.record()

    def compute_logits(self, hidden: Tensor, temperatures: Tensor | None) -> Tensor:
        """Return the logits divided by temperature, [n, V], in float32 or better, for hidden states [n, D]."""
        return next_logits(hidden, self.output_head, temperatures, self.packed_weights)

    def _run_decoder(self, ids: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
        if self.fused:
            run_layer = fused_layer if self.shards is None else self.shards.run_fused_layer
            return fused_forward(self.decoder, ids, positions, plan, self.routing, run_layer)
        with use_plan(plan):
            out = self.decoder(input_ids=ids[None], position_ids=positions[None], use_cache=False, plan=plan)
        hidden: Tensor = out.last_hidden_state[0]
        return hidden.to(self.head.weight.dtype)

    def mark_remote(self, device: torch.device) -> None:
        """Mark the backbone as remote: other processes hold its weights, and no forward runs here.

        Args:
            device: device for local computations with scores from the other processes.
        """
        self.has_weights, self._device = False, device

    def use_slower_forward(self) -> None:
        """Switch to the next slower forward: from fused to packed, then from packed to the model's own forward."""
        self.fused, self.native, self.fp32_residual = False, not self.fused, False
        if self.native:
            implementation = "sdpa" if getattr(self.model, "_supports_sdpa", False) else "eager"
            self.model.set_attn_implementation(implementation)

    def add_adapter(
        self,
        policy: str,
        rank: int,
        alpha: float,
        targets: Sequence[str],
        seed: int,
        parameters: Sequence[str] = (),
    ) -> None:
        """Add a new adapter (B = 0) for ``policy`` to every layer with a name that ends in a target.

        Args:
            targets: names of linear layers.
            parameters: names of weights of experts.

        Raises:
            UserError: as :meth:`target_layers` and :meth:`target_experts`; the model is then unchanged.
        """
        layers, experts = self.target_layers(policy, targets), self.target_experts(policy, parameters)
        for name in (*layers, *experts):
            generator = torch.Generator().manual_seed(derive_seed(seed, "adapter", policy, name))
            layer = self._lora_layer(name) if name in layers else self._expert_adapters(name)
            layer.add_adapter(policy, rank, alpha, generator)

    def target_layers(self, policy: str, targets: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return the linear layers with names that end in a target, with their input and output sizes.

        Raises:
            UserError: a target matches no linear layer of this model's decoder, or it matches a layer that is computed
                without adapters.
        """
        linear, sizes = list(self.linear_layers()), dict[str, tuple[int, int]]()
        decoder_modules = set(map(id, self.decoder.modules()))
        for target in targets:
            names = _match_layers(linear, target)
            computed = [name for name in names if id(self.model.get_submodule(name)) in decoder_modules]
            if not computed or any(self.model.get_submodule(name) is self.head for name in names):
                raise UserError(f"policies.{policy}.lora.target_modules: {self._explain_target(target, linear)}")
            for name in names:
                layer: Any = self.model.get_submodule(name)
                base: nn.Linear = layer.base if isinstance(layer, MultiLoraLinear) else layer
                sizes[name] = (base.in_features, base.out_features)
        return sizes

    def target_experts(self, policy: str, targets: Sequence[str]) -> dict[str, ExpertShape]:
        """Return the weights of experts with names that end in a target, with their shapes.

        Raises:
            UserError: a target matches no weight of experts.
        """
        shapes = {
            f"{name}.{weight}": ExpertShape.from_weight(parameter, experts.is_transposed)
            for name, experts in self._expert_modules().items()
            for weight, parameter in expert_weights(experts).items()
        }
        matched = {name for target in targets for name in _match_layers(list(shapes), target)}
        for target in targets:
            if not _match_layers(list(shapes), target):
                names = sorted({".".join(name.split(".")[-2:]) for name in shapes})
                known = (
                    f"name some of {', '.join(names)}"
                    if names
                    else "this model has none that adapters support; remove target_parameters"
                )
                raise UserError(
                    f"policies.{policy}.lora.target_parameters: no weight of experts is called {target!r}; {known}"
                )
        return {name: shape for name, shape in shapes.items() if name in matched}

    def _explain_target(self, target: str, linear: Sequence[str]) -> str:
        """Return the error message for a target without a suitable layer."""
        # excludes MARFT's modules inside adapted layers
        adapted_prefixes = tuple(f"{name}." for name in (*self.layers, *self.experts))
        matches = _match_layers(
            [name for name, _ in self.model.named_modules() if not name.startswith(adapted_prefixes)], target
        )
        layer_names = {name.rpartition(".")[2] for name in linear if self.model.get_submodule(name) is not self.head}
        if not matches:
            experts = "; experts have target_parameters" if self._expert_modules() else ""
            return f"no layer is called {target!r}; name some of {', '.join(sorted(layer_names))}{experts}"
        kind = type(self.model.get_submodule(matches[0])).__name__
        return (
            f"{target!r} is {matches[0]} ({kind}), and adapters are computed on linear layers that the decoder calls, "
            f"without routers; name some of {', '.join(sorted(layer_names))}, or set train = 'full'"
        )

    def remove_adapter(self, policy: str) -> None:
        """Remove the policy's adapters."""
        for layer in self._adapter_sets().values():
            layer.remove(policy)

    def adapters(self, policy: str) -> dict[str, Adapter]:
        """Return the policy's adapters by layer name; empty for the base model."""
        adapters = {name: layer.get_adapter(policy) for name, layer in self._adapter_sets().items()}
        return {name: adapter for name, adapter in adapters.items() if adapter is not None}

    def check_adapter(self, adapter: str | None) -> None:
        """Check for an existing adapter. With an unknown name, the base model would compute the rows.

        Raises:
            UserError: the adapter does not exist.
        """
        if adapter is not None and not any(layer.get_adapter(adapter) for layer in self._adapter_sets().values()):
            raise UserError(f"this model has no adapter called {adapter!r}; None is the base alone")

    def checkpoint_activations(self) -> None:
        """Enable gradient checkpointing: keep only layer boundaries and recompute the rest in the backward pass."""
        self.fused = False

        def same_forward() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return nullcontext(), self._repeat_forward(self.routing.repeat(), current_plan())

        for layer in self.model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                layer.gradient_checkpointing = True
                layer._gradient_checkpointing_func = partial(  # type: ignore[assignment]
                    checkpoint, use_reentrant=False, context_fn=same_forward
                )
                layer.training = True  # enables checkpointing in transformers

    @staticmethod
    @contextmanager
    def _repeat_forward(routing: AbstractContextManager[None], plan: AttentionPlan | None) -> Iterator[None]:
        with routing, use_plan(plan):
            yield

    def full_tuning_parameters(self) -> dict[str, nn.Parameter]:
        """Return the trainable weights for full fine-tuning by name: the weights themselves or float32 masters."""
        parameters = dict(self.model.named_parameters()) if self.shards is None else self.shards.parameters
        if not self.is_half:
            return parameters
        self.master_weights = self.master_weights or MasterWeights(parameters)
        return self.master_weights.parameters

    def base_weights(self) -> dict[str, Tensor]:
        """Return the base weights by their original names, without adapters."""
        weights: dict[str, Tensor] = self.weights()
        for layer in (*self.layers, *self.experts):
            for name in [name for name in weights if name.startswith(f"{layer}.")]:
                tensor = weights.pop(name)
                if name.startswith(f"{layer}.base."):
                    weights[f"{layer}.{name.removeprefix(f'{layer}.base.')}"] = tensor
        return weights

    def weights(self) -> dict[str, Tensor]:
        """Return the full model weights by their names in the model."""
        return self.model.state_dict() if self.shards is None else self.shards.weights()

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load weights from :meth:`weights`."""
        if self.shards is None:
            self.model.load_state_dict(weights)
        else:
            self.shards.load_weights(weights)
        if self.master_weights is not None:
            self.master_weights.load_weights(weights)

    def linear_layers(self) -> Iterator[str]:
        """Yield the names of the model's own linear layers, adapted or not, without those that cannot be adapted."""
        for name, module in self.model.named_modules():
            is_base = name.endswith(".base") and name.removesuffix(".base") in self.layers
            is_linear = isinstance(module, nn.Linear | MultiLoraLinear) and not is_base
            if is_linear and not is_router(self.model, name) and not is_uncalled(self.model, name):
                yield name

    def _lora_layer(self, name: str) -> MultiLoraLinear:
        if name not in self.layers:
            base: Any = self.model.get_submodule(name)
            self.layers[name] = MultiLoraLinear(base, self.routing)
            self.model.set_submodule(name, self.layers[name])
        return self.layers[name]

    def _expert_modules(self) -> dict[str, Any]:
        """Return the model's own modules with fused experts by name, adapted or not."""
        return {name.removesuffix(".base"): module for name, module in find_experts(self.model)}

    def _expert_adapters(self, name: str) -> ExpertAdapters:
        """Return the adapters for a weight of experts, created on first use."""
        module_name, _, weight = name.rpartition(".")
        if module_name not in self.experts:
            self.experts[module_name] = MultiLoraExperts(self.model.get_submodule(module_name), self.routing)
            self.model.set_submodule(module_name, self.experts[module_name])
        return self.experts[module_name].adapters_of(weight)

    def _adapter_sets(self) -> dict[str, AdapterSet]:
        """Return every adapted weight by name."""
        experts = {
            f"{name}.{weight}": module.adapters_of(weight)
            for name, module in self.experts.items()
            for weight in expert_weights(module.base)  # a file's names depend on this order
            if weight in module.adapters
        }
        return {**self.layers, **experts}


def _match_layers(layers: Sequence[str], target: str) -> list[str]:
    """Return the layers matched by a target, by PEFT's rule."""
    return [name for name in layers if name == target or name.endswith(f".{target}")]


def _find_decoder(model: PreTrainedModel) -> Any:
    """Return the module for hidden states; some models wrongly return themselves as their decoder."""
    decoder = model.get_decoder()
    return getattr(model, "model", decoder) if decoder is model else decoder


def disable_dropout(model: PreTrainedModel) -> None:
    """Set every dropout probability to 0, in a model's modules and configuration: training must score as sampling does.

    Evaluation mode alone is not enough. transformers recomputes activations only in layers in training mode, and some
    layers then apply dropout themselves.
    """
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        _set_to_zero(module)
    _set_to_zero(model.config)
    _set_to_zero(model.config.get_text_config())


def _set_to_zero(holder: nn.Module | object) -> None:
    for name, value in list(vars(holder).items()):
        if type(value) in (int, float) and DROPOUT_NAMES.fullmatch(name):
            setattr(holder, name, 0.0)
