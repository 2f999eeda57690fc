"""Capacity plan: memory per process, seconds per phase, and split of the GPUs between sampling and training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from marft.config.run import RunSettings
from marft.models.cards import Card
from marft.models.shapes import find_shape
from marft_lab.planning.company import Company
from marft_lab.planning.efficiencies import Efficiencies
from marft_lab.planning.memory import Place, Process, learner, sampler, sleeps, workers
from marft_lab.planning.seconds import Phase, environment, learning, publishing, sampling, tensor_parallel
from marft_lab.planning.work import Known, Work, check_lengths, work_of

HEADROOM = 0.03  # fraction of a card reserved for rounding and fragmentation by the allocator; an assumption


@dataclass(frozen=True, slots=True)
class Ask:
    """Request for a plan.

    Args:
        gpus: number of GPUs.
        card: GPU type.
        known: known lengths.
        environment_seconds: seconds per environment step.
        lag: maximum age of training data, in steps; None for the recipe's value.
        efficiencies: hardware efficiencies.
        model_config: ``config.json`` of a model with unknown size.
    """

    gpus: int
    card: Card
    known: Known = Known()
    environment_seconds: float = 0.0
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
    """

    sampling: int
    learning: int
    processes: tuple[Process, ...]
    phases: tuple[Phase, ...]
    lag: int
    keys: Mapping[str, Any] = field(default_factory=dict)

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
        sides = {side: sum(p.seconds for p in self.phases if p.side == side) for side in ("sampling", "learning")}
        between = sum(phase.seconds for phase in self.phases if phase.side == "publishing")
        if self.lag and self.sampling:
            return max(sides.values()) + between
        return sum(sides.values()) + between


@dataclass(frozen=True, slots=True)
class Plan:
    """Capacity plan of a recipe; ``splits`` are ordered by the number of sampling GPUs."""

    run: RunSettings
    ask: Ask
    work: Work
    splits: tuple[Split, ...]

    @property
    def best(self) -> Split:
        """Fastest fitting split; without a fitting split, the fastest split."""
        fitting = [split for split in self.splits if split.fits]
        return min(fitting or self.splits, key=lambda split: split.seconds)

    @property
    def neighbours(self) -> Sequence[Split]:
        """Best split with its neighbors: one GPU more or less for sampling."""
        at = self.splits.index(self.best)
        return self.splits[max(0, at - 1) : at + 2]

    @property
    def fits(self) -> bool:
        """True if the best split fits."""
        return self.best.fits


def plan(run: RunSettings, ask: Ask) -> Plan:
    """Plan the memory and step time of a recipe.

    Raises:
        ValueError: unknown model size, or impossible request or recipe.
    """
    local = {name: model for name, model in run.models.items() if model.endpoint is None}
    shapes = {name: find_shape(name, model, ask.model_config) for name, model in local.items()}
    place = Place(run, shapes, work_of(run, ask.known), ask.card)
    check_lengths(run, place.work, ask.known, {name: shape.context for name, shape in shapes.items()})
    lag = ask.lag if ask.lag is not None else run.rollout.max_policy_lag
    if lag and not run.engine.apart:
        raise ValueError(
            f"--lag {lag}: engine {run.engine.name!r} samples with the learner's own weights, so nothing can be "
            "sampled while they move; add --engine.kind vllm (or process), or leave --lag out"
        )
    return Plan(run, ask, place.work, tuple(_split(place, ask, count, lag) for count in _samplers(run, ask.gpus)))


def _samplers(run: RunSettings, gpus: int) -> Sequence[int]:
    """Return the possible numbers of sampling GPUs; 0 for sampling and training in turns.

    A recipe with more than one rank fixes the number of training GPUs.

    Raises:
        ValueError: fewer GPUs than ranks.
    """
    ranks, apart = run.training.ranks, run.engine.apart
    if ranks > gpus:
        raise ValueError(
            f"--gpus {gpus}: training.ranks = {ranks} learn on a GPU each; give --gpus {ranks}, or as many more as "
            "are to sample, or lower training.ranks"
        )
    most = gpus - 1 if run.engine.name == "vllm" else min(1, gpus - 1)  # a separate engine of our own has one GPU
    if ranks > 1:
        return [min(most, gpus - ranks) if apart else 0]
    shared = not apart or gpus == 1 or getattr(run.engine, "sleep", False)
    return [*([0] if shared else []), *(range(1, most + 1) if apart else [])]


def _split(place: Place, ask: Ask, samplers: int, lag: int) -> Split:
    said = place.run.training.ranks
    ranks = said if said > 1 else ask.gpus - samplers
    room = ask.card.memory * (1 - HEADROOM)
    company = Company.of(place.run, ranks, place.run.training.shard)
    processes = _processes(place, company, samplers, room)
    if said == 1 and ranks > 1 and not all(process.fits for process in processes):
        parts = Company.of(place.run, ranks, shard=True)
        in_parts = _processes(place, parts, samplers, room)
        if all(process.fits for process in in_parts):
            company, processes = parts, in_parts
    phases = (
        *sampling(place, ask.efficiencies, samplers or (ranks if place.run.engine.name == "vllm" else 1)),
        environment(place, ask.environment_seconds),
        *learning(place, ask.efficiencies, company),
        publishing(place, ask.efficiencies),
    )
    keys = dict(_keys(place, company, samplers))
    if place.run.engine.apart and lag != place.run.rollout.max_policy_lag:
        keys["rollout.max_policy_lag"] = lag
    return Split(samplers, ranks, (*processes, *workers(place)), phases, lag, keys)


def _processes(place: Place, company: Company, samplers: int, room: float) -> list[Process]:
    """Return the memory of ranks and engines; permanent memory on shared cards reduces the limit of the other side."""
    apart, left = place.run.engine.apart, room
    engines = []
    for one in place.work.sampled() if apart else ():
        group = 1 if not samplers else min(tensor_parallel(place, one), samplers)
        engines.append(sampler(place, one, group, room, max(1, (samplers or company.ranks) // group)))
    if apart and not samplers and not sleeps(place):
        left = room - sum(engine.on_card for engine in engines)
    total = sum(engine.on_card for engine in engines)  # all engines are on the same cards
    engines = [replace(engine, room=min(engine.room, room - total + engine.on_card)) for engine in engines]
    learners = [learner(place, not apart, left, company, alike) for alike in company.alike()]
    if len(learners) == 2 and learners[0].parts == learners[1].parts:  # rank 0 is the same as the other ranks
        learners = [learner(place, not apart, left, company, tuple(range(company.ranks)))]
    if apart and not samplers and sleeps(place):
        beside = max(one.always for one in learners)
        engines = [replace(engine, room=min(engine.room, room - beside)) for engine in engines]
    return [*learners, *engines]


def _keys(place: Place, company: Company, samplers: int) -> Iterator[tuple[str, Any]]:
    """Yield the recipe keys of a split that differ from the recipe."""
    run, first = place.run, company.ranks
    if run.training.ranks != company.ranks:
        yield "training.ranks", company.ranks
    if run.training.shard != company.shard:
        yield "training.shard", company.shard
    if place.card.is_cpu or not run.engine.apart:
        return
    if run.engine.name != "vllm":
        if samplers and getattr(run.engine, "device", "") != f"cuda:{first}":
            yield "engine.device", f"cuda:{first}"
        return
    group = max((min(tensor_parallel(place, one), samplers or 1) for one in place.work.sampled()), default=1)
    devices = [str(number) for number in range(first, first + samplers)] if samplers else []
    wanted = {"engine.replicas": max(1, (samplers or company.ranks) // group), "engine.devices": devices}
    said = {key: getattr(run.engine, key.rpartition(".")[2], None) for key in wanted}
    yield from ((key, value) for key, value in wanted.items() if value != _listed(said[key]))
    if group > 1:
        yield "engine.options.tensor_parallel_size", group


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
