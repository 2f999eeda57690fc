"""Seconds per phase of a step: operations over the reached rate, or bytes over bandwidth, whichever is larger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from marft.common.errors import UserError
from marft.config.settings import did_you_mean
from marft.models.model_sizes import ModelSizes, forward_flops, training_flops
from marft.trainer.learner_metrics import KL_TOKENS
from marft_lab.planning.activations import FLOAT_BYTES
from marft_lab.planning.memory import (
    MOMENT_BYTES,
    PlanContext,
    concurrent_rows,
    engine_bytes,
    micro_batch_tokens,
    trained_parameters,
    uses_fixed_share,
)
from marft_lab.planning.placement import RankPlacement
from marft_lab.planning.workload import PolicyWorkload, SampledWeights

# largest factor between a predicted and a published time, over the times that nothing was fitted to, and their cards
# (benchmarks/results/plan_published.md, rounded up)
TIME_FACTOR = 3.3
MEASURED_CARDS = ("h100", "h200", "h20", "b200", "a100-80")
# kernels per layer of a bfloat16 model with LoRA on queries and values (benchmarks/results/launches.md): of an eager
# decoding step, of a forward pass, and of forward and backward of a micro-batch
DECODE_LAUNCHES, FORWARD_LAUNCHES, LEARNING_LAUNCHES = 40, 53, 116


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """Fractions of a card's peak rates, and fixed times.

    ``benchmarks/plan_published.py`` fits some of them to a part of the published step times, and checks them on the
    rest (``benchmarks/results/plan_published.md``).
    """

    products: float = 1.0  # fraction of the peak matrix-product rate, on a card with ample bandwidth; fitted
    intensity: float = 118.0  # operations per byte of bandwidth; fitted
    bandwidth: float = 0.60  # fraction of memory bandwidth while decoding; an assumption
    link: float = 0.60  # fraction of the bandwidth between cards; an assumption
    host: float = 0.25  # fraction of the bandwidth to unpinned host memory; an assumption
    launch: float = 5e-6  # seconds per kernel that eager PyTorch launches on the host of an H100; an assumption
    kernel: float = 3e-6  # minimum seconds of a kernel in a CUDA graph, and until the next; an assumption
    captured: float = 0.06e-3  # minimum seconds per layer in vLLM's CUDA graphs, with fused kernels; an assumption
    iteration: float = 2e-3  # seconds per engine step besides its layers; an assumption
    cpu_launch: float = 0.15e-3  # seconds per layer on a CPU; an assumption
    # weights per second dequantized on a CPU, from the difference in sampling (benchmarks/results/qlora.md)
    cpu_dequantize: float = 1.4e9

    def rate(self, peak: float, bandwidth: float) -> float:
        """Return the operations per second of a model's layers, forward or backward.

        The time is the sum of matrix products at ``peak`` operations per second and other operations limited by
        ``bandwidth`` bytes per second.

        >>> [round(Efficiencies().rate(*card) / card[0], 2) for card in ((989e12, 3.35e12), (148e12, 4e12))]
        [0.29, 0.76]
        """
        return 1.0 / (1.0 / (self.products * peak) + 1.0 / (self.intensity * bandwidth))

    def with_overrides(self, changes: Sequence[str]) -> Efficiencies:
        """Return the efficiencies with overrides.

        Args:
            changes: texts of the form ``name=number``.

        Raises:
            UserError: unknown name, or not a finite number above 0.
        """
        names = {field.name for field in fields(self)}
        changed = self
        for change in changes:
            name, _, text = change.partition("=")
            if name not in names:
                raise UserError(f"--efficiency: none is called {name!r}{did_you_mean(name, names)}")
            try:
                value = float(text)
            except ValueError:
                value = 0.0
            if not 0 < value < float("inf"):
                raise UserError(f"--efficiency {name}: {text!r} is no number above 0; write {name}=0.5")
            changed = replace(changed, **{name: value})
        return changed


@dataclass(frozen=True, slots=True)
class Phase:
    """Phase of a step with its duration.

    Args:
        name: name of the phase.
        seconds: duration in seconds.
        side: active side: ``sampling``, ``learning``, or ``publishing`` between both.
    """

    name: str
    seconds: float
    side: str


def training_operations(shape: ModelSizes, policy: PolicyWorkload, gradient_checkpointing: bool, halves: bool) -> float:
    """Return the training operations per token of a policy, forward and backward."""
    length, share = policy.lengths.row_tokens, policy.lengths.action / policy.lengths.row_tokens
    adapter = shape.adapter_parameters(policy.rank, policy.targets) if policy.rank else 0
    return training_flops(
        shape,
        length,
        share,
        adapter,
        full_training=policy.train == "full",
        checkpointing=gradient_checkpointing,
        half_products=halves,
    )


def dequantize_seconds(context: PlanContext, model: str, reached: Efficiencies) -> float:
    """Return the seconds to dequantize all layers of a model once; 0 for an unquantized model.

    A GPU reads the packed weights and writes the dequantized weights. A product then reads these as usual.
    """
    shape, precision, card = context.shapes[model], context.precision(model), context.card
    bits = precision.quantized_bits(shape)
    if not bits:
        return 0.0
    if card.is_cpu:
        return shape.matrix_parameters / reached.cpu_dequantize
    moved = shape.matrix_parameters * (bits / 8 + precision.bytes_per_element)
    return moved / (card.bandwidth * reached.bandwidth)


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """Speed factors of an engine on a model."""

    shape: ModelSizes
    weights: float  # bytes read per decoding step, shared by all rows
    token: float  # bytes of a token's keys and values
    rate: float  # operations per second, over all cards of the engine
    bandwidth: float  # bytes per second, over all cards
    launch: float  # minimum seconds per layer: launches of its kernels, or their own time in a CUDA graph
    iteration: float  # seconds besides the layers

    def step(self, rows: float, context: float, reached: Efficiencies) -> float:
        """Return the seconds of a decoding step for ``rows`` rows of ``context`` tokens.

        The step reads weights and caches, and multiplies with both.
        """
        bytes_read = self.weights + rows * context * self.token
        shape = self.shape
        attention = 4.0 * context * shape.query_dim * shape.layers
        operations = rows * (2.0 * (shape.matrix_parameters + shape.head_parameters) + attention)
        busy = max(
            bytes_read / (self.bandwidth * reached.bandwidth), operations / reached.rate(self.rate, self.bandwidth)
        )
        return max(busy, shape.layers * self.launch) + self.iteration


def sampling_phases(context: PlanContext, reached: Efficiencies, cards: int) -> list[Phase]:
    """Return the sampling phases, with one engine per card or per group of cards.

    Actions are sampled in waves of as many rows as fit. A wave ends with its longest action, whose row is alone at the
    end.

    Args:
        context: context of the plan.
        reached: hardware efficiencies.
        cards: number of sampling cards.
    """
    prefill = decode = 0.0
    for sampled in context.workload.sampled_weights():
        shape, policies = context.shapes[sampled.model], sampled.policies
        group = tensor_parallel_size(context, sampled) if context.run.engine.separate_weights else 1
        engines = max(1, cards // group) if context.run.engine.separate_weights else 1
        engine = _engine_speed(context, sampled, group, reached)
        prompt = _mean(policies, lambda policy: policy.lengths.prompt)
        tokens = sum(policy.actions for policy in policies) * prompt
        prefill += tokens * forward_flops(shape, prompt) / (engines * reached.rate(engine.rate, engine.bandwidth))
        action = _mean(policies, lambda policy: policy.lengths.action)
        rows = min(concurrent_rows(context, engines), _max_rows(context, sampled, group))
        actions = sum(policy.actions for policy in policies)
        turns = max(1.0, actions / context.workload.concurrent_actions)  # sequential turns
        rounds = max(actions / engines / rows, turns)
        longest = max(policy.lengths.longest for policy in policies)
        alone = engine.step(1.0, prompt + action, reached)
        decode += rounds * action * engine.step(rows, prompt + action / 2, reached) + turns * (longest - action) * alone
    return [Phase("reading prompts", prefill, "sampling"), Phase("writing", decode, "sampling")]


def environment_phase(context: PlanContext, seconds: float) -> Phase:
    """Return the environment phase: live episodes step concurrently, and steps of an episode are sequential."""
    rounds = -(-context.workload.episodes // context.run.rollout.max_concurrent_episodes)
    return Phase("environment", rounds * context.workload.environment_steps * seconds, "sampling")


def training_phases(context: PlanContext, reached: Efficiencies, placement: RankPlacement) -> list[Phase]:
    """Return the training phases of the slowest rank; with sequential policy updates, phases of all models add up."""
    of_model = {model: _model_seconds(context, reached, placement, model) for model in context.shapes}
    if context.run.algorithm.schedule.updates_together:
        of_ranks = [
            [of_model[model] for model in of_model if placement.trains(rank, model)] for rank in range(placement.ranks)
        ]
        slowest = max(of_ranks, key=lambda rank_models: sum(sum(seconds.values()) for seconds in rank_models))
    else:
        slowest = list(of_model.values())
    totals = {name: sum(seconds[name] for seconds in slowest) for name in next(iter(of_model.values()), {})}
    totals |= transfer_seconds(context, reached, placement)
    return [Phase(name, seconds, "learning") for name, seconds in totals.items() if seconds]


def _model_seconds(
    context: PlanContext, reached: Efficiencies, placement: RankPlacement, model: str
) -> dict[str, float]:
    """Return the training seconds on one model; its ranks share a step's actions."""
    algorithm, shape, precision = context.run.algorithm, context.shapes[model], context.precision(model)
    ranks = len(placement.ranks_of(model))
    gradient_checkpointing = context.run.models[model].gradient_checkpointing
    update = old = after = base = critic = 0.0
    for policy in context.workload.policies_on(model):
        forward_operations = policy.tokens * forward_flops(
            shape, policy.lengths.row_tokens, policy.lengths.action / policy.lengths.row_tokens
        )
        rate = ranks * reached.rate(precision.flops_per_second(context.card), context.card.bandwidth)
        batches = policy.tokens / ranks / micro_batch_tokens(context, [policy], ranks)
        gathered = batches * _gather_seconds(context, reached, placement, policy)
        dequantized = batches * dequantize_seconds(context, model, reached)
        launched = 0.0 if context.card.is_cpu else batches * shape.layers * FORWARD_LAUNCHES * reached.launch
        scoring = max(forward_operations / rate, gathered, launched) + dequantized
        if algorithm.critic.kind != "none":
            share = 1.0 if algorithm.level == "token" else policy.lengths.prompt / policy.lengths.row_tokens
            critic += share * scoring
            if algorithm.critic.body == "lora":
                critic += 2 * share * algorithm.critic.epochs * scoring
        if policy.train == "frozen":
            continue
        if algorithm.kl.coefficient:
            base += scoring
            old += scoring * (algorithm.kl.apply_to == "reward")
        after += scoring * _kl_fraction(context, policy)
        old += (
            scoring
            * (1 - 1 / algorithm.minibatches)
            * (algorithm.kl.apply_to != "reward" or not algorithm.kl.coefficient)
        )
        operations = policy.tokens * training_operations(
            shape, policy, gradient_checkpointing, precision.is_half and not precision.on_cpu
        )
        launches = batches * shape.layers * _learning_launch(context, model, reached)
        # weights are gathered for forward and backward; gradients of fully trained weights are scattered afterwards
        exchange = gathered * (3 if policy.train == "full" else 2)
        passes = 2 + gradient_checkpointing  # forward, backward and recomputed forward
        update += algorithm.epochs * (max(operations / rate, launches, exchange) + passes * dequantized)
    return {
        "critic": critic,
        "scores of the base": base,
        "scores before the update": old,
        "update": update,
        "scores after the update": after,
    }


def _learning_launch(context: PlanContext, model: str, reached: Efficiencies) -> float:
    """Return the seconds to launch the kernels of a layer, forward and backward, on a micro-batch."""
    if context.card.is_cpu:
        return 3 * reached.cpu_launch
    recomputed = FORWARD_LAUNCHES if context.run.models[model].gradient_checkpointing else 0
    return (LEARNING_LAUNCHES + recomputed) * reached.launch


def _kl_fraction(context: PlanContext, policy: PolicyWorkload) -> float:
    """Return the fraction of a policy's actions with a measured KL: 0 without probes."""
    probes = context.run.guards.probes
    if not probes:
        return 0.0
    agents = sum(agent.policy == policy.name for agent in context.run.agents)
    return min(1.0, agents * max(probes, KL_TOKENS / policy.lengths.action) / policy.actions)


def _gather_seconds(
    context: PlanContext, reached: Efficiencies, placement: RankPlacement, policy: PolicyWorkload
) -> float:
    """Return the seconds to gather the missing shards of a policy's weights once."""
    shares = len(placement.ranks_of(policy.model)) if placement.shard else 1
    shape = context.shapes[policy.model]
    precision = context.precision(policy.model)
    weights = (
        precision.bytes_per_element * shape.parameters if policy.train == "full" else precision.weight_bytes(shape)
    )
    return weights * (shares - 1) / shares / (context.card.link_bandwidth * reached.link)


def transfer_seconds(context: PlanContext, reached: Efficiencies, placement: RankPlacement) -> dict[str, float]:
    """Return the seconds of communication between ranks besides passes, and of transfers to and from host memory.

    An all-reduce over n ranks sends 2·(n − 1)/n of the data (ring: Patarasuk and Yuan 2009). Before a step, trained
    weights are copied to the host, so that a bad step can be undone. Offloaded moments are transferred for every
    optimizer step.
    """
    card, algorithm = context.card, context.run.algorithm
    steps = algorithm.epochs * algorithm.minibatches
    summed = gathered = moved = brought = 0.0
    for model, shape in context.shapes.items():
        ranks = len(placement.ranks_of(model))
        shares = ranks if placement.shard else 1
        numbers = 0.0
        for policy in context.workload.policies_on(model):
            if policy.train == "frozen":
                continue
            in_parts = policy.train == "full" and shares > 1
            parameters = trained_parameters(context, policy) / (shares if in_parts else 1)
            moved += parameters * (FLOAT_BYTES if placement.offload else FLOAT_BYTES + MOMENT_BYTES)
            brought += 2 * MOMENT_BYTES * parameters * steps * placement.offload
            numbers += 0.0 if in_parts else parameters
            element = context.precision(model).bytes_per_element
            gathered += element * shape.parameters * (shares - 1) / shares * (policy.train == "full")
        summed += FLOAT_BYTES * numbers * 2 * (ranks - 1) / ranks * steps
        # a separate engine's frozen weights are copied to host memory only once
        if not context.run.engine.separate_weights:
            gathered += context.precision(model).weight_bytes(shape) * (shares - 1) / shares
    link, host = card.link_bandwidth * reached.link, card.host_bandwidth * reached.host
    return {
        "sums of gradients": summed / link,
        "moments from the host and back": brought / host if host else 0.0,
        "copies for undoing": moved / host if host else 0.0,
        "gathering for the first rank": gathered / link,
    }


def publishing_phase(context: PlanContext, reached: Efficiencies) -> Phase:
    """Return the phase that sends changed weights to separate engines; the local engine shares weights."""
    if not context.run.engine.separate_weights:
        return Phase("publishing", 0.0, "publishing")
    sent = sum(
        context.precision(p.model).bytes_per_element * context.shapes[p.model].parameters
        if p.train == "full"
        else FLOAT_BYTES * context.shapes[p.model].adapter_parameters(p.rank, p.targets)
        for p in context.workload.trained
    )
    return Phase("publishing", sent / (context.card.link_bandwidth * reached.link), "publishing")


def tensor_parallel_size(context: PlanContext, sampled: SampledWeights) -> int:
    """Return the cards per engine: for vLLM the smallest power of two on which weights and one row fit."""
    if not uses_fixed_share(context):
        return 1
    weights, token = engine_bytes(context, sampled)
    row = token * max(policy.lengths.longest_row for policy in sampled.policies)
    share, max_cards, cards = (
        context.run.engine.device_memory_share * context.card.memory,
        context.shapes[sampled.model].key_heads,
        1,
    )
    while (weights + row) / cards > share and cards < max_cards:
        cards *= 2
    return cards


def _engine_speed(context: PlanContext, sampled: SampledWeights, group: int, reached: Efficiencies) -> EngineSpeed:
    """Return the speed factors of an engine with one set of weights on ``group`` cards."""
    shape, precision, card = context.shapes[sampled.model], context.sampling_precision(sampled), context.card
    weights, token = engine_bytes(context, sampled)
    if not context.run.engine.separate_weights:
        weights = precision.weight_bytes(shape)
    iteration = 0.0 if card.is_cpu else reached.iteration
    if context.is_quantized(sampled.model) and not context.run.engine.device_memory_share:
        weights = precision.unquantized_bytes(shape)  # read by the products, after dequantization
        iteration += dequantize_seconds(context, sampled.model, reached)
    if card.is_cpu:
        launch = reached.cpu_launch
    elif getattr(context.run.engine, "enforce_eager", False):
        launch = DECODE_LAUNCHES * reached.launch
    elif uses_fixed_share(context):
        launch = reached.captured
    else:  # a decoding step is one CUDA graph, with one launch
        launch = DECODE_LAUNCHES * reached.kernel
    return EngineSpeed(
        shape, weights, token, precision.flops_per_second(card) * group, card.bandwidth * group, launch, iteration
    )


def _max_rows(context: PlanContext, sampled: SampledWeights, group: int) -> float:
    if not uses_fixed_share(context):
        return float("inf")
    weights, token = engine_bytes(context, sampled)
    room = context.run.engine.device_memory_share * context.card.memory * group - weights
    longest = max(policy.lengths.longest_row for policy in sampled.policies)
    return max(1.0, room / (token * longest))


def _mean(policies: Sequence[PolicyWorkload], of: Callable[[PolicyWorkload], float]) -> float:
    """Return the mean over actions."""
    return sum(policy.actions * of(policy) for policy in policies) / sum(policy.actions for policy in policies)
