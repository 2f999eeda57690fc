"""Capacity plan: memory per process, seconds per phase, and split of the GPUs between sampling and training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from marft.common.errors import UserError
from marft.config.run import RunSettings
from marft.models.device_specs import DeviceSpec
from marft.models.model_sizes import find_sizes
from marft_lab.planning.memory import (
    PlanContext,
    ProcessMemory,
    learner_memory,
    sampler_memory,
    uses_sleep_mode,
    worker_memory,
)
from marft_lab.planning.placement import RankPlacement
from marft_lab.planning.timing import (
    Efficiencies,
    Phase,
    environment_phase,
    publishing_phase,
    sampling_phases,
    tensor_parallel_size,
    training_phases,
)
from marft_lab.planning.workload import (
    KnownLengths,
    StepWorkload,
    check_context_lengths,
    compute_validation_workload,
    compute_workload,
)

HEADROOM = 0.03  # fraction of a card reserved for rounding and fragmentation by the allocator; an assumption


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Request for a plan.

    Args:
        gpus: number of GPUs.
        card: GPU type.
        lengths: known lengths.
        environment_seconds: seconds per environment step; None for the recorded value of a run, else 0.
        lag: maximum age of training data, in steps; None for the recipe's value.
        efficiencies: hardware efficiencies.
        model_config: ``config.json`` of a model with unknown size.
    """

    gpus: int
    card: DeviceSpec
    lengths: KnownLengths = KnownLengths()
    environment_seconds: float | None = None
    lag: int | None = None
    efficiencies: Efficiencies = field(default_factory=Efficiencies)
    model_config: Path | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """Split of the GPUs between sampling and training, with processes and phases.

    Args:
        sampling: GPUs for sampling; 0 if sampling and training take turns on the same GPUs.
        learning: GPUs for training.
        processes: memory of each process.
        phases: seconds of each phase.
        lag: maximum age of training data, in steps.
        keys: recipe keys that set up this split, if they differ from the recipe.
        validation_seconds: seconds of one validation during training; 0 without validations.
    """

    sampling: int
    learning: int
    processes: tuple[ProcessMemory, ...]
    phases: tuple[Phase, ...]
    lag: int
    keys: Mapping[str, object] = field(default_factory=dict)
    validation_seconds: float = 0.0

    @property
    def longest_phase(self) -> Phase:
        """Longest phase of those that set the seconds per step."""
        longest_side = max(("sampling", "learning"), key=self._side_seconds)
        sides = (longest_side, "publishing") if self.lag and self.sampling else ("sampling", "learning", "publishing")
        return max((phase for phase in self.phases if phase.side in sides), key=lambda phase: phase.seconds)

    @property
    def on_host(self) -> float:
        """Host memory of all processes together, in bytes."""
        return sum(process.count * process.on_host for process in self.processes)

    @property
    def fits(self) -> bool:
        """True if all processes fit."""
        return all(process.fits for process in self.processes)

    @property
    def seconds(self) -> float:
        """Seconds per step: the sum of all phases; with a lag and separate GPUs, sampling and training overlap."""
        sides = [self._side_seconds("sampling"), self._side_seconds("learning")]
        return (max(sides) if self.lag and self.sampling else sum(sides)) + self._side_seconds("publishing")

    def _side_seconds(self, side: str) -> float:
        return sum(phase.seconds for phase in self.phases if phase.side == side)


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """Capacity plan of a recipe.

    Args:
        splits: splits of the GPUs, ordered by the number of sampling GPUs.
        quantized: models with 4-bit weights.
    """

    run: RunSettings
    request: PlanRequest
    workload: StepWorkload
    splits: tuple[Split, ...]
    quantized: frozenset[str] = frozenset()

    @property
    def best(self) -> Split:
        """Fastest fitting split; without a fitting split, the fastest split."""
        fitting = [split for split in self.splits if split.fits]
        return min(fitting or self.splits, key=lambda split: split.seconds)

    @property
    def neighbors(self) -> Sequence[Split]:
        """Best split with its neighbors: one GPU more or less for sampling."""
        index = self.splits.index(self.best)
        return self.splits[max(0, index - 1) : index + 2]

    @property
    def fits(self) -> bool:
        """True if the best split fits."""
        return self.best.fits

    @property
    def validations(self) -> int:
        """Number of validations during training."""
        every = self.run.evaluation.every
        return self.run.training.steps // every if every else 0

    @property
    def run_seconds(self) -> float:
        """Seconds of the whole run: all steps and validations, without start, saves and evaluations afterwards."""
        best = self.best
        return self.run.training.steps * best.seconds + self.validations * best.validation_seconds


def make_plan(run: RunSettings, request: PlanRequest) -> CapacityPlan:
    """Plan the memory and step time of a recipe.

    Raises:
        UserError: unknown model size, or impossible request or recipe.
    """
    local = {name: model for name, model in run.models.items() if model.endpoint is None}
    shapes = {name: find_sizes(name, model, request.model_config) for name, model in local.items()}
    context = PlanContext(run, shapes, compute_workload(run, request.lengths), request.card)
    check_context_lengths(
        run, context.workload, request.lengths, {name: shape.max_context for name, shape in shapes.items()}
    )
    lag = request.lag if request.lag is not None else run.rollout.max_policy_lag
    if lag and not run.engine.separate_weights:
        raise UserError(
            f"--lag {lag}: engine {run.engine.name!r} samples with the learner's own weights, so nothing can be "
            "sampled while they move; add --engine.kind vllm (or process), or leave --lag out"
        )
    return CapacityPlan(
        run,
        request,
        context.workload,
        tuple(_plan_split(context, request, count, lag) for count in _sampling_counts(run, request.gpus)),
        frozenset(filter(context.is_quantized, shapes)),
    )


def _sampling_counts(run: RunSettings, gpus: int) -> Sequence[int]:
    """Return the possible numbers of sampling GPUs; 0 for sampling and training in turns.

    A recipe with more than one rank fixes the number of training GPUs.

    Raises:
        UserError: fewer GPUs than ranks.
    """
    ranks, separate = run.training.ranks, run.engine.separate_weights
    if ranks > gpus:
        raise UserError(
            f"--gpus {gpus}: training.ranks = {ranks} learn on a GPU each; give --gpus {ranks}, or as many more as "
            "are to sample, or lower training.ranks"
        )
    # a separate engine of our own has one GPU
    max_sampling = gpus - 1 if run.engine.device_memory_share else min(1, gpus - 1)
    if ranks > 1:
        return [min(max_sampling, gpus - ranks) if separate else 0]
    shared = not separate or gpus == 1 or getattr(run.engine, "sleep", False)
    return [*([0] if shared else []), *(range(1, max_sampling + 1) if separate else [])]


def _plan_split(context: PlanContext, request: PlanRequest, sampling_gpus: int, lag: int) -> Split:
    configured = context.run.training.ranks
    ranks = configured if configured > 1 else request.gpus - sampling_gpus
    limit = request.card.memory * (1 - HEADROOM)
    placement = RankPlacement.from_run(context.run, ranks, context.run.training.shard)
    processes = _plan_processes(context, placement, sampling_gpus, limit)
    can_shard = not any(context.is_quantized(model) for model in context.shapes)
    if configured == 1 and ranks > 1 and can_shard and not all(process.fits for process in processes):
        sharded = RankPlacement.from_run(context.run, ranks, shard=True)
        sharded_processes = _plan_processes(context, sharded, sampling_gpus, limit)
        if all(process.fits for process in sharded_processes):
            placement, processes = sharded, sharded_processes
    sampling_cards = sampling_gpus or (ranks if context.run.engine.device_memory_share else 1)
    phases = (
        *_playing_phases(context, request, sampling_cards),
        *training_phases(context, request.efficiencies, placement),
        publishing_phase(context, request.efficiencies),
    )
    keys = dict(_changed_keys(context, placement, sampling_gpus))
    if context.run.engine.separate_weights and lag != context.run.rollout.max_policy_lag:
        keys["rollout.max_policy_lag"] = lag
    validation_seconds = 0.0
    if context.run.evaluation.every:
        validation = replace(context, workload=compute_validation_workload(context.run, context.workload))
        validation_seconds = sum(phase.seconds for phase in _playing_phases(validation, request, sampling_cards))
    return Split(sampling_gpus, ranks, (*processes, *worker_memory(context)), phases, lag, keys, validation_seconds)


def _playing_phases(context: PlanContext, request: PlanRequest, cards: int) -> list[Phase]:
    """Return the phases of playing episodes."""
    return [
        *sampling_phases(context, request.efficiencies, cards),
        environment_phase(context, request.environment_seconds or 0.0),
    ]


def _plan_processes(
    context: PlanContext, placement: RankPlacement, sampling_gpus: int, limit: float
) -> list[ProcessMemory]:
    """Return the memory of ranks and engines; permanent memory on shared cards reduces the limit of the other side."""
    separate, learner_limit = context.run.engine.separate_weights, limit
    engines = []
    for item in context.workload.sampled_weights() if separate else ():
        group = 1 if not sampling_gpus else min(tensor_parallel_size(context, item), sampling_gpus)
        engines.append(sampler_memory(context, item, group, limit, max(1, (sampling_gpus or placement.ranks) // group)))
    if separate and not sampling_gpus and not uses_sleep_mode(context):
        learner_limit = limit - sum(engine.on_card for engine in engines)
    total = sum(engine.on_card for engine in engines)  # all engines are on the same cards
    engines = [replace(engine, limit=min(engine.limit, limit - total + engine.on_card)) for engine in engines]
    learners = [
        learner_memory(context, not separate, learner_limit, placement, ranks) for ranks in placement.equal_ranks()
    ]
    if len(learners) == 2 and learners[0].parts == learners[1].parts:  # rank 0 is the same as the other ranks
        learners = [learner_memory(context, not separate, learner_limit, placement, tuple(range(placement.ranks)))]
    if separate and not sampling_gpus and uses_sleep_mode(context):
        permanent = max(item.permanent for item in learners)
        engines = [replace(engine, limit=min(engine.limit, limit - permanent)) for engine in engines]
    return [*learners, *engines]


def _changed_keys(context: PlanContext, placement: RankPlacement, sampling_gpus: int) -> Iterator[tuple[str, object]]:
    """Yield the recipe keys of a split that differ from the recipe."""
    run, first = context.run, placement.ranks
    if run.training.ranks != placement.ranks:
        yield "training.ranks", placement.ranks
    if run.training.shard != placement.shard:
        yield "training.shard", placement.shard
    if context.card.is_cpu or not run.engine.separate_weights:
        return
    if not run.engine.device_memory_share:
        if sampling_gpus and getattr(run.engine, "device", "") != f"cuda:{first}":
            yield "engine.device", f"cuda:{first}"
        return
    sizes = [tensor_parallel_size(context, weights) for weights in context.workload.sampled_weights()]
    group = max((min(size, sampling_gpus or 1) for size in sizes), default=1)
    devices = [str(number) for number in range(first, first + sampling_gpus)] if sampling_gpus else []
    wanted = {"engine.replicas": max(1, (sampling_gpus or placement.ranks) // group), "engine.devices": devices}
    configured = {key: getattr(run.engine, key.rpartition(".")[2], None) for key in wanted}
    yield from ((key, value) for key, value in wanted.items() if value != _as_list(configured[key]))
    if group > 1:
        yield "engine.engine_args.tensor_parallel_size", group


def _as_list(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
