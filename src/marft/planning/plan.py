"""A plan: processes with their bytes, seconds by phase, and how GPUs are shared out between sampling and learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from marft.config.run import RunSettings
from marft.planning.cards import Card
from marft.planning.configurations import find_shape
from marft.planning.efficiencies import Efficiencies
from marft.planning.memory import Place, Process, learner, sampler
from marft.planning.seconds import Phase, environment, learning, publishing, sampling, tensor_parallel
from marft.planning.work import Known, Work, work_of

HEADROOM = 0.03  # of a card that is left to what an allocator rounds and cuts; an assumption


@dataclass(frozen=True, slots=True)
class Ask:
    """What a plan is asked for.

    ``lag`` is how many steps what is learned from may be old; None is what the recipe says.
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
    """GPUs for sampling and for learning, the processes on them, and seconds by phase. With 0 for sampling both take
    turns on the same ones."""

    sampling: int
    learning: int
    processes: tuple[Process, ...]
    phases: tuple[Phase, ...]
    lag: int

    @property
    def fits(self) -> bool:
        return all(process.fits for process in self.processes)

    @property
    def seconds(self) -> float:
        """Of a step: one after the other, or with a lag, on GPUs of their own, at the same time."""
        sides = {side: sum(p.seconds for p in self.phases if p.side == side) for side in ("sampling", "learning")}
        between = sum(phase.seconds for phase in self.phases if phase.side == "publishing")
        if self.lag and self.sampling:
            return max(sides.values()) + between
        return sum(sides.values()) + between


@dataclass(frozen=True, slots=True)
class Plan:
    """What a recipe needs and takes. ``splits`` are in the order of the GPUs that sample; ``best`` is one of them."""

    run: RunSettings
    ask: Ask
    work: Work
    splits: tuple[Split, ...]

    @property
    def best(self) -> Split:
        """The fastest that fits; the fastest of all where none does."""
        fitting = [split for split in self.splits if split.fits]
        return min(fitting or self.splits, key=lambda split: split.seconds)

    @property
    def neighbours(self) -> Sequence[Split]:
        """The best split with those that have a GPU more or less on either side."""
        at = self.splits.index(self.best)
        return self.splits[max(0, at - 1) : at + 2]

    @property
    def fits(self) -> bool:
        return self.best.fits


def plan(run: RunSettings, ask: Ask) -> Plan:
    """Plan a recipe.

    Raises:
        ValueError: a model's sizes are not known here, or the recipe asks for what cannot be.
    """
    local = {name: model for name, model in run.models.items() if model.endpoint is None}
    shapes = {name: find_shape(name, model, ask.model_config) for name, model in local.items()}
    place = Place(run, shapes, work_of(run, ask.known), ask.card)
    lag = ask.lag if ask.lag is not None else run.rollout.max_policy_lag
    shared = [0] if ask.gpus == 1 or not run.engine.apart else []
    apart = list(range(1, ask.gpus)) if run.engine.apart else []
    return Plan(run, ask, place.work, tuple(_split(place, ask, count, lag) for count in [*shared, *apart]))


def _split(place: Place, ask: Ask, samplers: int, lag: int) -> Split:
    ranks = ask.gpus - samplers
    room = ask.card.memory * (1 - HEADROOM)
    apart = place.run.engine.apart
    processes = []
    if apart:
        for model in place.shapes:
            group = 1 if not samplers else min(tensor_parallel(place, model), samplers)
            processes.append(sampler(place, model, group, room))
    left = room
    if apart and not samplers:  # on the learner's own card
        left = room - sum(process.on_card for process in processes)
    whole = learner(place, ranks, not apart, left)
    sharded = apart and ranks > 1 and not whole.fits
    processes.insert(0, learner(place, ranks, False, left, sharded=True) if sharded else whole)
    phases = (
        *sampling(place, ask.efficiencies, samplers or 1),
        environment(place, ask.environment_seconds),
        *learning(place, ask.efficiencies, ranks, sharded),
        publishing(place, ask.efficiencies),
    )
    return Split(samplers, ranks, tuple(processes), phases, lag)
