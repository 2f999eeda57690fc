"""Memory of each process, by component."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from marft.config.run import RunSettings
from marft.models.cpu_products import MAX_PACKED_BYTES, MIN_WEIGHTS
from marft.models.device_specs import DeviceSpec, Precision
from marft.models.model_sizes import ModelSizes
from marft.trainer.objectives.pairs import BASE, NONE, PairObjective
from marft_lab.planning.activations import (
    FLOAT_BYTES,
    PREFILL_TOKENS,
    ForwardPass,
    inference_bytes,
    peak_extra_bytes,
    planned_bytes,
)
from marft_lab.planning.placement import (
    RankPlacement,
    ShardedWeights,
    full_gather_bytes,
    peak_gathered_bytes,
    rank_label,
)
from marft_lab.planning.workload import PolicyWorkload, SampledWeights, StepWorkload

MemoryPhase = Literal["always", "learning", "stepping", "sampling", "loading"]
# growth of a running batch's cache, in tokens per row (models/decode_cache.py, models/attention.py)
INITIAL_COLUMNS, MAX_GROWTH_COLUMNS = 64, 1024
CUDA_CONTEXT_BYTES = 0.6e9  # bytes of the CUDA context and library workspaces; an estimate
PYTHON_BYTES = 0.45e9  # bytes of host memory for Python, torch and transformers before any model; an estimate
WORKER_BYTES = 75e6  # bytes of host memory per worker process (docs/training.md)
SNAPSHOT_BYTES = 12  # bytes of host memory per trained number, for undo (trainer/non_finite_guard.py)
GRADIENT_BYTES, MOMENT_BYTES = 4, 8  # bytes per number: float32 gradient; AdamW's two moments
STEP_BYTES = 4  # extra bytes per number during AdamW's step


@dataclass(frozen=True, slots=True)
class MemoryComponent:
    """Memory component of a process.

    A component is present always, or only while the process learns, steps the optimizer or samples. The loading
    components are the total memory while loading.

    Args:
        name: name of the component.
        bytes: size in bytes.
        phase: phase of the component.
        on_host: True for host memory.
    """

    name: str
    bytes: float
    phase: MemoryPhase = "always"
    on_host: bool = False


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of a process on its card and on the host, or of ``count`` identical processes.

    Args:
        name: name of the process.
        parts: memory components.
        limit: memory limit on the card, in bytes.
        card: name of the card; "cpu" or "host" without a GPU.
        count: number of identical processes.
    """

    name: str
    parts: tuple[MemoryComponent, ...]
    limit: float
    card: str
    count: int = 1

    @property
    def on_card(self) -> float:
        """Peak memory on the card, in bytes."""
        peak = self.permanent + max(self._bytes_during(phase) for phase in ("learning", "stepping", "sampling"))
        return max(peak, self._bytes_during("loading"))

    @property
    def permanent(self) -> float:
        """Memory always used on the card, in bytes."""
        return self._bytes_during("always")

    @property
    def on_host(self) -> float:
        """Peak host memory, in bytes."""
        host = [part for part in self.parts if part.on_host]
        loading = sum(part.bytes for part in host if part.phase == "loading")
        return max(sum(part.bytes for part in host) - loading, PYTHON_BYTES + loading if loading else 0.0)

    @property
    def excess(self) -> float:
        """Excess over the memory limit, in bytes; negative for free memory."""
        return self.on_card + (self.on_host if self.card == "cpu" else 0.0) - self.limit

    @property
    def fits(self) -> bool:
        """True if the process fits within its memory limit."""
        return self.excess <= 0

    def _bytes_during(self, phase: str) -> float:
        return sum(part.bytes for part in self.parts if part.phase == phase and not part.on_host)


@dataclass(frozen=True, slots=True)
class PlanContext:
    """Context of a plan: recipe, model sizes, workload and card."""

    run: RunSettings
    shapes: Mapping[str, ModelSizes]  # by model
    workload: StepWorkload
    card: DeviceSpec

    def precision(self, model: str) -> Precision:
        """Return the precision of a model on the card."""
        return Precision.from_settings(self.run.models[model], self.card)

    def is_quantized(self, model: str) -> bool:
        """Return whether a model's layers have 4-bit weights."""
        return self.precision(model).quantized_bits(self.shapes[model]) > 0

    def sampling_precision(self, weights: SampledWeights) -> Precision:
        """Return the sampling precision; fully trained weights use their compute precision."""
        precision = self.precision(weights.model)
        in_float32 = weights.fully_trained and precision.computes_in_float32
        return Precision(is_half=False, on_cpu=True) if in_float32 else precision


SINGLE_RANK = RankPlacement()


def learner_memory(
    context: PlanContext,
    samples: bool,
    limit: float,
    placement: RankPlacement = SINGLE_RANK,
    ranks: tuple[int, ...] = (0,),
) -> ProcessMemory:
    """Return the memory of the run's own process, or of a group of identical training ranks.

    Args:
        context: context of the plan.
        samples: True if rank 0 contains the local engine.
        limit: memory limit per card, in bytes.
        placement: placement of the ranks.
        ranks: group of identical ranks.
    """
    rank, parts = ranks[0], list[MemoryComponent]()
    sharded = [weights for model in context.shapes for weights in _sharded_weights(context, model, placement, rank)]
    for model in context.shapes:
        if placement.holds(rank, model):
            parts += _weight_parts(context, model, placement.shard_count(rank, model))
    for policy in context.workload.policies:
        if placement.holds(rank, policy.model):
            parts += _policy_parts(context, policy, placement, rank)
    parts += [*_offloaded_parts(context, placement, rank), *_gathered_parts(sharded, rank, context.card, samples)]
    parts += [*_critic_parts(context, placement.ranks), *_micro_batch_parts(context, placement, rank)]
    if samples and rank == 0:
        for weights in context.workload.sampled_weights():
            parts += local_engine_parts(context, weights)
    if not context.card.is_cpu:
        parts.append(MemoryComponent("CUDA", CUDA_CONTEXT_BYTES))
    parts += [
        MemoryComponent("Python", PYTHON_BYTES, on_host=True),
        MemoryComponent("copy of what learns", _snapshot_size(context, placement, rank), on_host=True),
    ]
    return ProcessMemory(rank_label(ranks, placement.ranks), tuple(parts), limit, context.card.name, len(ranks))


def worker_memory(context: PlanContext) -> list[ProcessMemory]:
    """Return the memory of the worker processes for environments, tools and reward terms."""
    count = context.run.rollout.workers
    name = "the worker process" if count == 1 else f"each of {count} worker processes"
    parts = (MemoryComponent("Python and MARFT", WORKER_BYTES, on_host=True),)
    return [ProcessMemory(name, parts, float("inf"), "host", count)] if count else []


def _snapshot_size(context: PlanContext, placement: RankPlacement, rank: int) -> float:
    return SNAPSHOT_BYTES * sum(
        trained_parameters(context, policy) / _policy_shards(policy, placement, rank)
        for policy in context.workload.trained
        if placement.holds(rank, policy.model)
    )


def _policy_shards(policy: PolicyWorkload, placement: RankPlacement, rank: int) -> int:
    """Return a policy's number of shards; adapters stay whole."""
    return placement.shard_count(rank, policy.model) if policy.train == "full" else 1


def _sharded_weights(context: PlanContext, model: str, placement: RankPlacement, rank: int) -> list[ShardedWeights]:
    """Return the sharded weights of a model on a rank."""
    shape, shares = context.shapes[model], placement.shard_count(rank, model)
    if shares == 1:
        return []
    precision = context.precision(model)
    full_policies = [policy for policy in context.workload.policies_on(model) if policy.train == "full"]
    weights = [ShardedWeights(model, shape, precision.weight_bytes(shape) / shape.parameters, shares)]
    if full_policies and precision.computes_in_float32:
        weights.append(ShardedWeights(model, shape, FLOAT_BYTES, shares))
    return weights + [
        ShardedWeights(policy.name, shape, precision.bytes_per_element, shares, trained=True)
        for policy in full_policies
    ]


def _gathered_parts(
    sharded: Sequence[ShardedWeights], rank: int, card: DeviceSpec, samples: bool
) -> list[MemoryComponent]:
    """Return the components for gathered shards: during loading, during computation, and between steps on rank 0.

    Between steps, rank 0 holds the full weights on its card if it samples, and loads them there, too. Otherwise the
    full weights are in host memory.
    """
    if not sharded:
        return []
    full_bytes, samples_here = sum(weights.full_bytes for weights in sharded), rank == 0 and samples
    on_card = samples_here or card.is_cpu
    loaded = full_bytes + (CUDA_CONTEXT_BYTES if samples_here and not card.is_cpu else 0.0)
    parts = [
        MemoryComponent("gathered layers", peak_gathered_bytes(sharded), "learning"),
        MemoryComponent("weights, whole as they are loaded", loaded, "loading", on_host=not on_card),
    ]
    if samples_here:
        parts.append(MemoryComponent("weights, gathered to sample and save", full_gather_bytes(sharded), "sampling"))
    elif rank == 0:
        parts.append(MemoryComponent("weights, whole to publish and save", full_bytes, on_host=True))
    return parts


def _weight_parts(context: PlanContext, model: str, shares: int) -> list[MemoryComponent]:
    shape, precision = context.shapes[model], context.precision(model)
    suffix = f", a part of {shares}" if shares > 1 else ""
    if bits := precision.quantized_bits(shape):
        suffix = f", {bits:.3g} bits in its layers"
    parts = [MemoryComponent(f"weights of {model}{suffix}", precision.weight_bytes(shape) / shares)]
    if bits:
        parts.append(MemoryComponent(f"dequantized layer of {model}", dequantized_bytes(shape, precision)))
    full = any(policy.train == "full" for policy in context.workload.policies_on(model))
    if full and precision.computes_in_float32:
        parts.append(MemoryComponent(f"{model} in float32, for KL", FLOAT_BYTES * shape.parameters / shares))
    return parts


def dequantized_bytes(shape: ModelSizes, precision: Precision) -> float:
    """Return the bytes of dequantized matrices at a time: one layer's feed-forward on a CPU, else one matrix."""
    matrix = shape.hidden_size * shape.intermediate_size
    return float(precision.bytes_per_element * matrix * (3 if precision.on_cpu else 1))


def _policy_parts(
    context: PlanContext, policy: PolicyWorkload, placement: RankPlacement, rank: int
) -> list[MemoryComponent]:
    numbers = _policy_parameters(context, policy) / _policy_shards(policy, placement, rank)
    if not numbers:
        return []
    kind = "weights" if policy.train == "full" else "adapter"
    suffix = f", {policy.versions} versions" if policy.versions > 1 else ""
    parts = [MemoryComponent(f"{kind} of {policy.name}{suffix}", FLOAT_BYTES * numbers)]
    if policy.train == "full" and context.precision(policy.model).bytes_per_element < FLOAT_BYTES:
        parts.append(
            MemoryComponent(
                f"weights of {policy.name}, rounded", context.precision(policy.model).bytes_per_element * numbers
            )
        )
    if policy.train == "frozen":
        return parts
    numbers = trained_parameters(context, policy) / _policy_shards(policy, placement, rank)
    parts.append(MemoryComponent(f"optimizer of {policy.name}", MOMENT_BYTES * numbers, on_host=placement.offload))
    if not placement.trains(rank, policy.model):
        return parts
    objective = context.run.algorithm.objective
    if isinstance(objective, PairObjective) and objective.reference not in (BASE, NONE):
        parts.append(MemoryComponent(f"reference of {policy.name}", FLOAT_BYTES * numbers))
        parts.append(MemoryComponent(f"{policy.name} while its reference is scored", FLOAT_BYTES * numbers, "learning"))
    parts.append(MemoryComponent(f"gradient of {policy.name}", GRADIENT_BYTES * numbers, "learning"))
    parts.append(
        MemoryComponent(f"gradient and step of {policy.name}", (GRADIENT_BYTES + STEP_BYTES) * numbers, "stepping")
    )
    if context.run.algorithm.team_kl or getattr(context.run.algorithm.schedule, "kl_limit", 0.0):
        parts.append(MemoryComponent(f"snapshot of {policy.name}", (FLOAT_BYTES + MOMENT_BYTES) * numbers, "learning"))
    return parts


def _offloaded_parts(context: PlanContext, placement: RankPlacement, rank: int) -> list[MemoryComponent]:
    """Return the component for offloaded moments, on the card during a single policy's step."""
    moments = [
        MOMENT_BYTES * trained_parameters(context, policy) / _policy_shards(policy, placement, rank)
        for policy in context.workload.trained
        if placement.offload and placement.trains(rank, policy.model)
    ]
    return [MemoryComponent("moments of the policy that steps", max(moments), "stepping")] if moments else []


def _policy_parameters(context: PlanContext, policy: PolicyWorkload) -> int:
    shape = context.shapes[policy.model]
    if policy.train == "full":
        return shape.parameters
    return policy.versions * shape.adapter_parameters(policy.rank, policy.targets) if policy.rank else 0


def trained_parameters(context: PlanContext, policy: PolicyWorkload) -> int:
    """Return a policy's number of trained parameters."""
    if policy.trains_b_only and policy.train != "frozen":
        return policy.versions * context.shapes[policy.model].adapter_parameters(policy.rank, policy.targets, half=True)
    return _policy_parameters(context, policy) if policy.train != "frozen" else 0


def _critic_parts(context: PlanContext, ranks: int) -> list[MemoryComponent]:
    """Return the critic's components: heads with optimizer, optional adapter, and float32 features of all decisions."""
    settings = context.run.algorithm.critic
    if settings.kind == "none":
        return []
    heads, features = 0.0, 0.0
    for model, shape in context.shapes.items():
        policies = context.workload.policies_on(model)
        wide, inner = shape.hidden_size, settings.hidden_size
        count = sum(agent.policy in {p.name for p in policies} for agent in context.run.agents)
        heads += (count if settings.heads == "agent" else 1) * (wide * inner + inner * inner + 3 * inner + 1)
        if settings.body == "lora":
            heads += shape.adapter_parameters(settings.lora_rank, ("q_proj", "v_proj"))
        decisions = sum(
            p.actions * (p.lengths.action if context.run.algorithm.level == "token" else 1) for p in policies
        )
        features += FLOAT_BYTES * wide * decisions / ranks * (settings.body == "frozen")
    return [
        MemoryComponent("critic", (FLOAT_BYTES + GRADIENT_BYTES + MOMENT_BYTES) * heads),
        MemoryComponent("what the critic reads", features, "learning"),
    ]


def _micro_batch_parts(context: PlanContext, placement: RankPlacement, rank: int) -> list[MemoryComponent]:
    """Return the components of the largest micro-batch; a rank trains on one base at a time."""
    sizes = [
        (planned_bytes(forward_pass), peak_extra_bytes(forward_pass))
        for forward_pass in forward_passes(context, placement, rank)
    ]
    saved, transient = max(sizes, key=sum, default=(0.0, 0.0))
    return [
        MemoryComponent("activations", saved, "learning"),
        MemoryComponent("logits and gradients", transient, "learning"),
    ]


def forward_passes(context: PlanContext, placement: RankPlacement, rank: int) -> Sequence[ForwardPass]:
    """Return the forward passes in a rank's update: a full micro-batch per backbone."""
    results = []
    for model, shape in context.shapes.items():
        if not placement.trains(rank, model):
            continue
        on_base = tuple(p for p in context.workload.trained if p.model == model and p.train == "lora")
        full_policies = [(p,) for p in context.workload.trained if p.model == model and p.train == "full"]
        for policies in ([on_base] if on_base else []) + full_policies:
            tokens = micro_batch_tokens(context, policies, len(placement.ranks_of(model)))
            written = sum(p.sampled_tokens for p in policies) / sum(p.tokens for p in policies)
            recomputes = context.run.models[model].gradient_checkpointing
            results.append(ForwardPass(shape, context.precision(model), tokens, tokens * written, policies, recomputes))
    return results


def micro_batch_tokens(context: PlanContext, policies: Sequence[PolicyWorkload], ranks: int) -> float:
    """Return a micro-batch's tokens.

    A rank's tokens are split evenly into as few micro-batches as the limit permits, and rows are never cut
    (:func:`marft.trainer.batching.pack_evenly`).
    """
    rank_tokens = sum(policy.tokens for policy in policies) / context.run.algorithm.minibatches / ranks
    longest = max(policy.lengths.longest_row for policy in policies)
    limit = float(context.run.training.tokens_per_micro_batch)
    even = rank_tokens / max(1, math.ceil(rank_tokens / limit)) + longest / 2
    return max(longest, min(limit, even, rank_tokens))


def concurrent_rows(context: PlanContext, engines: int = 1) -> float:
    """Return an engine's number of concurrent actions."""
    limit = float(getattr(context.run.engine, "max_batch_size", 256))
    return max(1.0, min(limit, context.workload.concurrent_actions / engines))


def local_engine_parts(context: PlanContext, sampled: SampledWeights) -> list[MemoryComponent]:
    """Return the local engine's components for one set of weights.

    The components are the running batch's KV cache, cached prefixes, and temporary tensors. The KV cache stays until
    weights change. The temporary tensors during sampling are the logits of all rows, or a prefill forward pass.
    """
    shape, precision = context.shapes[sampled.model], context.sampling_precision(sampled)
    rows = concurrent_rows(context)
    columns = max(cache_capacity(p.lengths.prompt, p.lengths.longest_row) for p in sampled.policies)
    token = precision.bytes_per_element * shape.cache_elements()
    cache_mb = float(getattr(context.run.engine, "prefix_cache_mb", 0))
    prefixes = min(cache_mb * 2**20, token * sum(policy.tokens for policy in sampled.policies))
    logits = 3.0 * FLOAT_BYTES * rows * shape.vocab_size
    prompts = min(float(PREFILL_TOKENS), max(rows * p.lengths.prompt for p in sampled.policies))
    return [
        MemoryComponent(f"keys and values of {sampled.name}", token * rows * columns),
        MemoryComponent(f"kept prefixes of {sampled.name}", prefixes),
        MemoryComponent(
            f"sampling on {sampled.name}", max(logits, inference_bytes(shape, precision, prompts)), "sampling"
        ),
        *_packed_copies(context, sampled),
    ]


def _packed_copies(context: PlanContext, sampled: SampledWeights) -> list[MemoryComponent]:
    """Return the component for the packed weights that decoding on a CPU keeps; none for trained or 4-bit weights."""
    shape, precision = context.shapes[sampled.model], context.sampling_precision(sampled)
    if not precision.on_cpu or precision.is_half or sampled.fully_trained or precision.quantized_bits(shape):
        return []
    size = packed_copy_bytes(shape)
    return [MemoryComponent(f"packed copies of {sampled.name}", size)] if size else []


def packed_copy_bytes(shape: ModelSizes) -> float:
    """Return the bytes of all copies that :class:`~marft.models.cpu_products.PackedWeights` makes of a model.

    The largest matrix of those that are packed together decides whether they are packed.
    """
    sizes = {name: inside * out for name, (inside, out) in shape.linear_layers().items()}
    together = [("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",)]
    layer = [[sizes[name] for name in names] for names in together]
    total = 0.0
    for group in [*layer * shape.layers, [shape.head_parameters]]:
        size = FLOAT_BYTES * sum(group)
        if max(group) >= MIN_WEIGHTS and total + size <= MAX_PACKED_BYTES:
            total += size
    return total


def cache_capacity(prompt: float, longest: float) -> float:
    """Return the cache columns of a running batch, in tokens per row.

    The cache grows by doubling, and by 1,024 columns for long rows.

    >>> cache_capacity(100, 612), cache_capacity(2000, 2512)
    (656.0, 3088.0)
    """
    columns = prompt + INITIAL_COLUMNS
    while columns < longest:
        columns += min(columns, MAX_GROWTH_COLUMNS)
    return float(columns)


class EngineBytes(NamedTuple):
    """Memory of a separate engine, in bytes: weights with adapter slots, and keys and values of one token."""

    weights: float
    kv_per_token: float


def engine_bytes(context: PlanContext, sampled: SampledWeights) -> EngineBytes:
    """Return the memory that a separate engine needs.

    vLLM holds its adapters in its compute precision.
    """
    shape, precision = context.shapes[sampled.model], context.sampling_precision(sampled)
    slots = 0 if sampled.fully_trained else sum(_policy_parameters(context, policy) for policy in sampled.policies)
    cache = precision.bytes_per_element * float(shape.cache_elements())
    if context.run.engine.device_memory_share:
        weights = precision.weight_bytes(shape) if precision.quantized_bits(shape) else None
        return EngineBytes(
            float(precision.bytes_per_element * slots + (weights or precision.bytes_per_element * shape.parameters)),
            cache,
        )
    return EngineBytes(precision.weight_bytes(shape) + FLOAT_BYTES * slots, cache)


def uses_fixed_share(context: PlanContext) -> bool:
    """Return True if the engine takes a fixed fraction of its card, independent of its rows: vLLM on a GPU."""
    return context.run.engine.device_memory_share > 0 and not context.card.is_cpu


def uses_sleep_mode(context: PlanContext) -> bool:
    """Return True if vLLM frees its card's memory while ranks train."""
    return uses_fixed_share(context) and bool(getattr(context.run.engine, "sleep", False))


def sampler_memory(
    context: PlanContext, sampled: SampledWeights, cards: int, limit: float, count: int = 1
) -> ProcessMemory:
    """Return the memory per card of a separate engine process, over ``cards`` cards with tensor parallelism.

    vLLM takes its full fraction; its weights reduce the KV cache. Other engines take the memory of their rows.

    Args:
        context: context of the plan.
        sampled: weights of the engine.
        cards: cards per engine.
        limit: memory limit per card, in bytes.
        count: number of identical engines.
    """
    name = f"{context.run.engine.name} of {sampled.name}"
    weights, token = engine_bytes(context, sampled)
    if not context.run.engine.device_memory_share:
        engine_parts = [MemoryComponent(f"weights of {sampled.name}", weights), *local_engine_parts(context, sampled)]
        if context.is_quantized(sampled.model):
            layer = dequantized_bytes(context.shapes[sampled.model], context.sampling_precision(sampled))
            engine_parts.append(MemoryComponent(f"dequantized layer of {sampled.name}", layer))
        engine_parts += [
            MemoryComponent("Python", PYTHON_BYTES, on_host=True),
            *([] if context.card.is_cpu else [MemoryComponent("CUDA", CUDA_CONTEXT_BYTES)]),
        ]
        return ProcessMemory(name, tuple(engine_parts), limit, context.card.name)
    longest = max(policy.lengths.longest_row for policy in sampled.policies)
    rows = concurrent_rows(context, count)
    logits = 2.0 * FLOAT_BYTES * rows * context.shapes[sampled.model].vocab_size / cards
    cache = token * rows * longest / cards
    if uses_fixed_share(context):
        share = context.run.engine.device_memory_share * context.card.memory
        limit = min(limit, share * (1 + 1e-9))
        cache = max(share - weights / cards - logits, token * longest / cards)
    phase: MemoryPhase = "sampling" if uses_sleep_mode(context) else "always"
    sleeping_parts = (
        [MemoryComponent("weights, while it sleeps", weights, on_host=True)] if uses_sleep_mode(context) else []
    )
    parts = (
        MemoryComponent(f"weights of {sampled.name}", weights / cards, phase),
        MemoryComponent("logits", logits, phase),
        MemoryComponent("keys and values", cache, phase),
        MemoryComponent("Python", PYTHON_BYTES, on_host=True),
        *sleeping_parts,
    )
    return ProcessMemory(name if count == 1 else f"each of {count} × {name}", parts, limit, context.card.name, count)
