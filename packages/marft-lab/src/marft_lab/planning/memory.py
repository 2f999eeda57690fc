"""Memory of each process, by component."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from marft.config.run import RunSettings
from marft.models.cards import Card, Precision
from marft.models.shapes import Shape
from marft.trainer.objectives.pairs import BASE, NONE, PairObjectivePart
from marft_lab.planning.activations import FLOAT, PREFILL, Pass, beside, kept, read
from marft_lab.planning.company import Company, named
from marft_lab.planning.shards import Sharded, gathered, gathering
from marft_lab.planning.work import PolicyWork, Sampled, Work

When = Literal["always", "learning", "stepping", "sampling", "loading"]
# growth of a running batch's cache, in tokens per row (models/running_rows.py, models/cache.py)
FIRST_COLUMNS, MOST_COLUMNS = 64, 1024
CONTEXT = 0.6e9  # bytes of the CUDA context and library workspaces; an estimate
PYTHON = 0.45e9  # bytes of host memory for Python, torch and transformers before any model; an estimate
WORKER = 75e6  # bytes of host memory per worker process (docs/hardware.md)
VLLM_SHARE = 0.9  # vLLM's default fraction of a card, unless engine.options overrides it (vLLM's documentation)
UNDO = 12  # bytes of host memory per trained number, for undo (trainer/undoing.py)
GRADIENT, MOMENTS = 4, 8  # bytes per number: float32 gradient; AdamW's two moments
STEP = 4  # extra bytes per number during AdamW's step


@dataclass(frozen=True, slots=True)
class Part:
    """Memory component of a process.

    A component is present always, or only while the process learns, steps the optimizer or samples. The loading
    components are the total memory while loading.

    Args:
        name: name of the component.
        bytes: size in bytes.
        when: phase of the component.
        on_host: True for host memory.
    """

    name: str
    bytes: float
    when: When = "always"
    on_host: bool = False


@dataclass(frozen=True, slots=True)
class Process:
    """Memory of a process on its card and on the host, or of ``count`` identical processes.

    Args:
        name: name of the process.
        parts: memory components.
        room: memory limit on the card, in bytes.
        card: name of the card; "cpu" or "host" without a GPU.
        count: number of identical processes.
    """

    name: str
    parts: tuple[Part, ...]
    room: float
    card: str
    count: int = 1

    @property
    def on_card(self) -> float:
        """Peak memory on the card, in bytes."""
        most = self.always + max(self._during(when) for when in ("learning", "stepping", "sampling"))
        return max(most, self._during("loading"))

    @property
    def always(self) -> float:
        """Memory always used on the card, in bytes."""
        return self._during("always")

    @property
    def on_host(self) -> float:
        """Peak host memory, in bytes."""
        host = [part for part in self.parts if part.on_host]
        loading = sum(part.bytes for part in host if part.when == "loading")
        return max(sum(part.bytes for part in host) - loading, PYTHON + loading if loading else 0.0)

    @property
    def over(self) -> float:
        """Excess over the memory limit, in bytes; negative for free memory."""
        return self.on_card + (self.on_host if self.card == "cpu" else 0.0) - self.room

    @property
    def fits(self) -> bool:
        """True if the process fits within its memory limit."""
        return self.over <= 0

    def _during(self, when: str) -> float:
        return sum(part.bytes for part in self.parts if part.when == when and not part.on_host)


@dataclass(frozen=True, slots=True)
class Place:
    """Context of a plan: recipe, model sizes, workload and card."""

    run: RunSettings
    shapes: Mapping[str, Shape]  # by model
    work: Work
    card: Card

    def precision(self, model: str) -> Precision:
        """Return the precision of a model on the card."""
        return Precision.of(self.run.models[model], self.card)

    def sampling_precision(self, one: Sampled) -> Precision:
        """Return the sampling precision; fully trained weights use their compute precision."""
        found = self.precision(one.model)
        return Precision(half=False, on_cpu=True) if one.whole and found.widened else found


ALONE = Company()


def learner(
    place: Place, samples: bool, room: float, company: Company = ALONE, ranks: tuple[int, ...] = (0,)
) -> Process:
    """Return the memory of the run's own process, or of a group of identical training ranks.

    Args:
        place: context of the plan.
        samples: True if rank 0 contains the local engine.
        room: memory limit per card, in bytes.
        company: placement of the ranks.
        ranks: group of identical ranks.
    """
    rank, parts = ranks[0], list[Part]()
    sharded = [one for model in place.shapes for one in _sharded(place, model, company, rank)]
    for model in place.shapes:
        if company.holds(rank, model):
            parts += _weights(place, model, company.shares(rank, model))
    for policy in place.work.policies:
        if company.holds(rank, policy.model):
            parts += _policy(place, policy, company, rank)
    parts += [*_brought_back(place, company, rank), *_together(sharded, rank, place.card, samples)]
    parts += [*_critic(place, company.ranks), *_learning(place, company, rank)]
    if samples and rank == 0:
        for one in place.work.sampled():
            parts += own_engine(place, one)
    if not place.card.is_cpu:
        parts.append(Part("CUDA", CONTEXT))
    parts += [
        Part("Python", PYTHON, on_host=True),
        Part("copy of what learns", _undo(place, company, rank), on_host=True),
    ]
    return Process(named(ranks, company.ranks), tuple(parts), room, place.card.name, len(ranks))


def workers(place: Place) -> list[Process]:
    """Return the memory of the worker processes for environments, tools and reward terms."""
    count = place.run.rollout.processes
    name = "the worker process" if count == 1 else f"each of {count} worker processes"
    parts = (Part("Python and MARFT", WORKER, on_host=True),)
    return [Process(name, parts, float("inf"), "host", count)] if count else []


def _undo(place: Place, company: Company, rank: int) -> float:
    return UNDO * sum(
        trained_numbers(place, policy) / _share(policy, company, rank)
        for policy in place.work.trained
        if company.holds(rank, policy.model)
    )


def _share(policy: PolicyWork, company: Company, rank: int) -> int:
    """Return a policy's number of shards; adapters stay whole."""
    return company.shares(rank, policy.model) if policy.train == "full" else 1


def _sharded(place: Place, model: str, company: Company, rank: int) -> list[Sharded]:
    """Return the sharded weights of a model on a rank."""
    shape, shares = place.shapes[model], company.shares(rank, model)
    if shares == 1:
        return []
    precision = place.precision(model)
    whole = [policy for policy in place.work.of_model(model) if policy.train == "full"]
    found = [Sharded(model, shape, precision.weights(shape) / shape.parameters, shares)]
    found += [Sharded(model, shape, FLOAT, shares)] * bool(whole and precision.widened)
    return found + [Sharded(policy.name, shape, precision.element, shares, trained=True) for policy in whole]


def _together(sharded: Sequence[Sharded], rank: int, card: Card, samples: bool) -> list[Part]:
    """Return the components for gathered shards: during loading, during computation, and between steps on rank 0.

    Between steps, rank 0 holds the full weights on its card if it samples, and loads them there, too. Otherwise the
    full weights are in host memory.
    """
    if not sharded:
        return []
    whole, here = sum(one.whole for one in sharded), rank == 0 and samples
    on_card = here or card.is_cpu
    loaded = whole + (CONTEXT if here and not card.is_cpu else 0.0)
    parts = [
        Part("gathered layers", gathered(sharded), "learning"),
        Part("weights, whole as they are loaded", loaded, "loading", on_host=not on_card),
    ]
    if here:
        parts.append(Part("weights, gathered to sample and save", gathering(sharded), "sampling"))
    elif rank == 0:
        parts.append(Part("weights, whole to publish and save", whole, on_host=True))
    return parts


def _weights(place: Place, model: str, shares: int) -> list[Part]:
    shape, precision = place.shapes[model], place.precision(model)
    of_many = f", a part of {shares}" if shares > 1 else ""
    parts = [Part(f"weights of {model}{of_many}", precision.weights(shape) / shares)]
    full = any(policy.train == "full" for policy in place.work.of_model(model))
    if full and precision.widened:
        parts.append(Part(f"{model} in float32, for KL", FLOAT * shape.parameters / shares))
    return parts


def _policy(place: Place, policy: PolicyWork, company: Company, rank: int) -> list[Part]:
    numbers = _numbers(place, policy) / _share(policy, company, rank)
    if not numbers:
        return []
    what = "weights" if policy.train == "full" else "adapter"
    several = f", {policy.versions} versions" if policy.versions > 1 else ""
    parts = [Part(f"{what} of {policy.name}{several}", FLOAT * numbers)]
    if policy.train == "full" and place.precision(policy.model).element < FLOAT:
        parts.append(Part(f"weights of {policy.name}, rounded", place.precision(policy.model).element * numbers))
    if policy.train == "frozen":
        return parts
    numbers = trained_numbers(place, policy) / _share(policy, company, rank)
    parts.append(Part(f"optimizer of {policy.name}", MOMENTS * numbers, on_host=company.offload))
    if not company.learns(rank, policy.model):
        return parts
    objective = place.run.algorithm.objective
    if isinstance(objective, PairObjectivePart) and objective.reference not in (BASE, NONE):
        parts.append(Part(f"reference of {policy.name}", FLOAT * numbers))
        parts.append(Part(f"{policy.name} while its reference is scored", FLOAT * numbers, "learning"))
    parts.append(Part(f"gradient of {policy.name}", GRADIENT * numbers, "learning"))
    parts.append(Part(f"gradient and step of {policy.name}", (GRADIENT + STEP) * numbers, "stepping"))
    if place.run.algorithm.team_kl or getattr(place.run.algorithm.schedule, "kl_limit", 0.0):
        parts.append(Part(f"snapshot of {policy.name}", (FLOAT + MOMENTS) * numbers, "learning"))
    return parts


def _brought_back(place: Place, company: Company, rank: int) -> list[Part]:
    """Return the component for offloaded moments, on the card during a single policy's step."""
    here = [
        MOMENTS * trained_numbers(place, policy) / _share(policy, company, rank)
        for policy in place.work.trained
        if company.offload and company.learns(rank, policy.model)
    ]
    return [Part("moments of the policy that steps", max(here), "stepping")] if here else []


def _numbers(place: Place, policy: PolicyWork) -> int:
    shape = place.shapes[policy.model]
    if policy.train == "full":
        return shape.parameters
    return policy.versions * shape.adapter_parameters(policy.rank, policy.targets) if policy.rank else 0


def trained_numbers(place: Place, policy: PolicyWork) -> int:
    """Return a policy's number of trained parameters."""
    if policy.half and policy.train != "frozen":
        return policy.versions * place.shapes[policy.model].adapter_parameters(policy.rank, policy.targets, half=True)
    return _numbers(place, policy) if policy.train != "frozen" else 0


def _critic(place: Place, ranks: int) -> list[Part]:
    """Return the critic's components: heads with optimizer, optional adapter, and float32 features of all decisions."""
    settings = place.run.algorithm.critic
    if settings.kind == "none":
        return []
    heads, features = 0.0, 0.0
    for model, shape in place.shapes.items():
        policies = place.work.of_model(model)
        wide, inner = shape.hidden, settings.hidden
        count = sum(agent.policy in {p.name for p in policies} for agent in place.run.agents)
        heads += (count if settings.heads == "agent" else 1) * (wide * inner + inner * inner + 3 * inner + 1)
        if settings.body == "lora":
            heads += shape.adapter_parameters(settings.lora_rank, ("q_proj", "v_proj"))
        decisions = sum(p.actions * (p.lengths.action if place.run.algorithm.level == "token" else 1) for p in policies)
        features += FLOAT * wide * decisions / ranks * (settings.body == "frozen")
    return [Part("critic", (FLOAT + GRADIENT + MOMENTS) * heads), Part("what the critic reads", features, "learning")]


def _learning(place: Place, company: Company, rank: int) -> list[Part]:
    """Return the components of the largest micro-batch; a rank trains on one base at a time."""
    found = [(kept(one), beside(one)) for one in passes(place, company, rank)]
    saved, transient = max(found, key=sum, default=(0.0, 0.0))
    return [Part("activations", saved, "learning"), Part("logits and gradients", transient, "learning")]


def passes(place: Place, company: Company, rank: int) -> Sequence[Pass]:
    """Return the forward passes in a rank's update: a full micro-batch per backbone."""
    made = []
    for model, shape in place.shapes.items():
        if not company.learns(rank, model):
            continue
        on_base = tuple(p for p in place.work.trained if p.model == model and p.train == "lora")
        whole = [(p,) for p in place.work.trained if p.model == model and p.train == "full"]
        for policies in ([on_base] if on_base else []) + whole:
            tokens = micro_batch(place, policies, len(company.on(model)))
            written = sum(p.written for p in policies) / sum(p.tokens for p in policies)
            recomputes = place.run.models[model].gradient_checkpointing
            made.append(Pass(shape, place.precision(model), tokens, tokens * written, policies, recomputes))
    return made


def micro_batch(place: Place, policies: Sequence[PolicyWork], ranks: int) -> float:
    """Return a micro-batch's tokens.

    A rank's tokens are split evenly into as few micro-batches as the limit permits, and rows are never cut
    (:func:`marft.trainer.cutting.cut_evenly`).
    """
    there = sum(policy.tokens for policy in policies) / place.run.algorithm.minibatches / ranks
    longest = max(policy.lengths.longest_row for policy in policies)
    limit = float(place.run.training.tokens_per_micro_batch)
    even = there / max(1, math.ceil(there / limit)) + longest / 2
    return max(longest, min(limit, even, there))


def rows_at_once(place: Place, engines: int = 1) -> float:
    """Return an engine's number of concurrent actions."""
    most = float(getattr(place.run.engine, "max_rows", 256))
    return max(1.0, min(most, place.work.asked_at_once / engines))


def own_engine(place: Place, one: Sampled) -> list[Part]:
    """Return the local engine's components for one set of weights.

    The components are the running batch's KV cache, cached prefixes, and temporary tensors. The KV cache stays until
    weights change. The temporary tensors during sampling are the logits of all rows, or a prefill forward pass.
    """
    shape, precision = place.shapes[one.model], place.sampling_precision(one)
    rows = rows_at_once(place)
    columns = max(capacity(p.lengths.prompt, p.lengths.longest_row) for p in one.policies)
    token = precision.element * shape.cache_numbers()
    kept_mb = float(getattr(place.run.engine, "prefix_cache_mb", 0))
    prefixes = min(kept_mb * 2**20, token * sum(policy.tokens for policy in one.policies))
    logits = 3.0 * FLOAT * rows * shape.vocabulary
    prompts = min(float(PREFILL), max(rows * p.lengths.prompt for p in one.policies))
    return [
        Part(f"keys and values of {one.name}", token * rows * columns),
        Part(f"kept prefixes of {one.name}", prefixes),
        Part(f"sampling on {one.name}", max(logits, read(shape, precision, prompts)), "sampling"),
    ]


def capacity(prompt: float, longest: float) -> float:
    """Return the cache columns of a running batch, in tokens per row.

    The cache grows by doubling, and by 1,024 columns for long rows.

    >>> capacity(100, 612), capacity(2000, 2512)
    (656.0, 3088.0)
    """
    columns = prompt + FIRST_COLUMNS
    while columns < longest:
        columns += min(columns, MOST_COLUMNS)
    return float(columns)


def engine_bytes(place: Place, one: Sampled) -> tuple[float, float]:
    """Return the bytes for a separate engine's weights with adapter slots, and for a token's keys and values.

    vLLM holds its adapters in its compute precision.
    """
    shape, precision = place.shapes[one.model], place.sampling_precision(one)
    slots = 0 if one.whole else sum(_numbers(place, policy) for policy in one.policies)
    cache = precision.element * float(shape.cache_numbers())
    if place.run.engine.name == "vllm":
        return float(precision.element * (shape.parameters + slots)), cache
    return precision.weights(shape) + FLOAT * slots, cache


def vllm_share(run: RunSettings) -> float:
    """Return the fraction of a card that each vLLM process takes."""
    given = getattr(run.engine, "options", {}).get("gpu_memory_utilization", VLLM_SHARE)
    return float(given)


def takes_a_share(place: Place) -> bool:
    """Return True if the engine takes a fixed fraction of its card, independent of its rows: vLLM on a GPU."""
    return place.run.engine.name == "vllm" and not place.card.is_cpu


def sleeps(place: Place) -> bool:
    """Return True if vLLM frees its card's memory while ranks train."""
    return takes_a_share(place) and bool(getattr(place.run.engine, "sleep", False))


def sampler(place: Place, one: Sampled, cards: int, room: float, count: int = 1) -> Process:
    """Return the memory per card of a separate engine process, over ``cards`` cards with tensor parallelism.

    vLLM takes its full fraction; its weights reduce the KV cache. Other engines take the memory of their rows.

    Args:
        place: context of the plan.
        one: weights of the engine.
        cards: cards per engine.
        room: memory limit per card, in bytes.
        count: number of identical engines.
    """
    name = f"{place.run.engine.name} of {one.name}"
    weights, token = engine_bytes(place, one)
    if place.run.engine.name != "vllm":
        own = [Part(f"weights of {one.name}", weights), *own_engine(place, one)]
        own += [Part("Python", PYTHON, on_host=True), *([] if place.card.is_cpu else [Part("CUDA", CONTEXT)])]
        return Process(name, tuple(own), room, place.card.name)
    longest = max(policy.lengths.longest_row for policy in one.policies)
    rows = rows_at_once(place, count)
    logits = 2.0 * FLOAT * rows * place.shapes[one.model].vocabulary / cards
    cache = token * rows * longest / cards
    if takes_a_share(place):
        share = vllm_share(place.run) * place.card.memory
        room = min(room, share * (1 + 1e-9))
        cache = max(share - weights / cards - logits, token * longest / cards)
    when: When = "sampling" if sleeps(place) else "always"
    waiting = [Part("weights, while it sleeps", weights, on_host=True)] if sleeps(place) else []
    parts = (
        Part(f"weights of {one.name}", weights / cards, when),
        Part("logits", logits, when),
        Part("keys and values", cache, when),
        Part("Python", PYTHON, on_host=True),
        *waiting,
    )
    return Process(name if count == 1 else f"each of {count} × {name}", parts, room, place.card.name, count)
