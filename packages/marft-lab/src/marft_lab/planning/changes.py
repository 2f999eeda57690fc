"""Changes that make a recipe fit, or faster; each suggested change is planned again before the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from marft.common.errors import UserError
from marft.config.load import parse_recipe
from marft.config.run import RunSettings
from marft_lab.planning.plan import CapacityPlan, PlanRequest, make_plan

Keys = Mapping[str, object]  # recipe keys with their new values
MIN_TOKENS, MIN_ROWS = 512, 8
MAX_GPUS = 64
GPUS_PER_MACHINE = 8  # typical GPUs per machine; ranks share a machine
MIN_SPEEDUP, MIN_PART_SPEEDUP = 1.25, 1.05  # of all changes together, and of each key
MEMORY_SHARES = (0.6, 0.45, 0.3)  # shares of a card for an engine on the learner's card


@dataclass(frozen=True, slots=True)
class PlanChange:
    """Suggested change: new values of keys, or more GPUs.

    ``plan`` is the plan of the changed recipe, and fits.
    """

    keys: Keys
    gpus: int
    plan: CapacityPlan


def suggest_changes(before: CapacityPlan) -> list[PlanChange]:
    """Return changes that make a plan fit, the mildest first.

    Sufficient single changes come first, else a combination of changes, else more GPUs. Changes without influence on
    learning, such as batch sizes and recomputation, come before other changes.
    """
    if before.fits:
        return []
    options = _change_options(before)
    single_changes = [change for values in options if (change := _first_sufficient(before, {}, values)) is not None]
    if single_changes:
        return single_changes
    together = _combine_changes(before)
    if together is not None:
        return [together]
    more = _more_gpus(before)
    return [more] if more is not None else []


def find_faster(before: CapacityPlan) -> PlanChange | None:
    """Return keys that make a fitting plan faster on the same GPUs; None if they save less than a fifth of a step.

    The keys are chosen one after the other, each with its fastest value that fits.
    """
    if not before.fits or before.request.card.is_cpu:
        return None
    best = PlanChange({}, before.request.gpus, before)
    for values in _faster_options(before):
        changes = [change for keys in values if (change := _try_change(before, {**best.keys, **keys})) is not None]
        fastest = min(changes, key=lambda change: change.plan.best.seconds, default=best)
        if best.plan.best.seconds >= MIN_PART_SPEEDUP * fastest.plan.best.seconds:
            best = fastest
    for key in list(best.keys):
        fewer = _try_change(before, {name: value for name, value in best.keys.items() if name != key})
        if fewer is not None and fewer.plan.best.seconds < MIN_PART_SPEEDUP * best.plan.best.seconds:
            best = fewer
    return best if before.best.seconds >= MIN_SPEEDUP * best.plan.best.seconds else None


def find_faster_engine(before: CapacityPlan) -> PlanChange | None:
    """Return keys that sample with vLLM instead of the learner's own engine; None if they save less than a fifth."""
    if not before.fits or before.request.card.is_cpu or before.run.engine.separate_weights:
        return None
    engines = next(iter(_faster_options(before)))
    changes = [change for keys in engines if (change := _try_change(before, keys)) is not None]
    best = min(changes, key=lambda change: change.plan.best.seconds, default=None)
    return best if best is not None and before.best.seconds >= MIN_SPEEDUP * best.plan.best.seconds else None


def _faster_options(before: CapacityPlan) -> Iterator[Sequence[Keys]]:
    """Yield groups of recipe keys with the values to try for a faster step."""
    run, gpus = before.run, before.request.gpus
    keeps_lag = gpus == 1 or run.rollout.max_policy_lag or before.request.lag is not None
    lag: Keys = {} if keeps_lag else {"rollout.max_policy_lag": 1}
    if not run.engine.separate_weights:
        shares = _key_values("engine.engine_args.gpu_memory_utilization", MEMORY_SHARES) if gpus == 1 else []
        sleeping = [{"engine.sleep": True, **keys} for keys in [{}, *shares]] if gpus == 1 else [lag]
        yield [{"engine.kind": "vllm", **keys} for keys in [{}, *shares, *sleeping]]
    yield [lag] if lag else []
    rows, tokens = getattr(run.engine, "max_batch_size", 0), run.training.tokens_per_micro_batch
    yield _key_values("engine.max_batch_size", [2 * rows, 4 * rows] if rows else [])
    for name, model in run.models.items():
        yield _key_values(f"models.{name}.gradient_checkpointing", [False] if model.gradient_checkpointing else [])
    yield _key_values("training.tokens_per_micro_batch", [2 * tokens, 4 * tokens])


def _try_change(before: CapacityPlan, keys: Keys) -> PlanChange | None:
    """Return the change if the changed recipe is valid and fits."""
    request = replace(before.request, lag=None) if "rollout.max_policy_lag" in keys else before.request
    try:
        changed = _plan_changed(before.run, keys, request)
    except UserError:
        return None
    return PlanChange(keys, before.request.gpus, changed) if changed.fits else None


def _change_options(before: CapacityPlan) -> Iterator[Sequence[Keys]]:
    """Yield groups of recipe keys with the values to try, the mildest first."""
    run, gpus = before.run, before.request.gpus
    tokens, training = run.training.tokens_per_micro_batch, run.training
    yield _key_values("training.tokens_per_micro_batch", _halves(tokens, MIN_TOKENS))
    yield _key_values("training.offload_optimizer", [] if training.offload_optimizer else [True])
    if training.ranks > 1:
        yield _key_values("training.shard", [] if before.quantized else [not training.shard])
        yield _separate_placements(run)
        yield _more_ranks(run, gpus)
    rows = getattr(run.engine, "max_batch_size", 0)
    if run.engine.separate_weights:
        share = run.engine.device_memory_share
        yield _key_values(
            "engine.engine_args.gpu_memory_utilization", [s / 100 for s in range(85, 5, -5) if s / 100 < share]
        )
    else:
        yield _key_values("engine.max_batch_size", _halves(rows, MIN_ROWS))
        yield _key_values("engine.prefix_cache_mb", [0] if getattr(run.engine, "prefix_cache_mb", 0) else [])
    for name, model in run.models.items():
        if model.endpoint is None:
            yield _key_values(f"models.{name}.gradient_checkpointing", [] if model.gradient_checkpointing else [True])
            yield _key_values(f"models.{name}.dtype", ["bfloat16"] if model.dtype == "float32" else [])
    for name, policy in run.policies.items():
        yield _key_values(f"policies.{name}.train", ["lora"] if policy.train == "full" else [])
    yield from _quantizations(before)
    yield _key_values("engine.kind", ["vllm"] if gpus > 1 and not run.engine.separate_weights else [])


def _quantizations(before: CapacityPlan) -> Iterator[Sequence[Keys]]:
    """Yield the quantization of each local model whose base is frozen, whole on each rank and not yet quantized."""
    run = before.run
    for name, model in run.models.items():
        full = any(policy.train == "full" for policy in run.policies.values() if policy.model == name)
        if model.endpoint is None and not full and not run.training.shard and name not in before.quantized:
            yield _key_values(f"models.{name}.quantization", ["nf4"])


def _key_values(key: str, values: Iterable[object]) -> list[Keys]:
    return [{key: value} for value in values]


def _more_ranks(run: RunSettings, gpus: int) -> list[Keys]:
    """Return larger numbers of ranks, up to the available GPUs, if models are not placed on ranks."""
    max_ranks = min(GPUS_PER_MACHINE, gpus - 1 if run.engine.separate_weights and gpus > 1 else gpus)
    has_placement = any(model.ranks for model in run.models.values())
    return [] if has_placement else _key_values("training.ranks", range(run.training.ranks + 1, max_ranks + 1))


def _separate_placements(run: RunSettings) -> list[Keys]:
    """Return a placement of models that share all ranks on separate ranks, in order, with about equal counts."""
    local = [name for name, model in run.models.items() if model.endpoint is None]
    ranks, critic = run.training.ranks, run.algorithm.critic
    has_critic_body = critic.kind != "none" and critic.body == "lora"
    if len(local) < 2 or ranks < len(local) or has_critic_body or any(run.models[name].ranks for name in local):
        return []
    ends = [ranks * number // len(local) for number in range(len(local) + 1)]
    return [{f"models.{name}.ranks": list(range(*ends[at : at + 2])) for at, name in enumerate(local)}]


def _halves(value: int, least: int) -> Iterator[int]:
    while value // 2 >= least:
        value //= 2
        yield value


def _first_sufficient(before: CapacityPlan, base_keys: Keys, values: Sequence[Keys]) -> PlanChange | None:
    """Return the first sufficient change; None if no value suffices."""
    for keys in values:
        changed = _plan_valid(before, {**base_keys, **keys})
        if changed is not None and changed.fits:
            return PlanChange({**base_keys, **keys}, before.request.gpus, changed)
    return None


def _combine_changes(before: CapacityPlan) -> PlanChange | None:
    """Return a sufficient combination of changes, each but the last at its strongest value.

    Changes that increase the excess are left out.
    """
    chosen: dict[str, object] = {}
    excess = _min_excess(before)
    for values in _change_options(before):
        if not values:
            continue
        change = _first_sufficient(before, chosen, values)
        if change is not None:
            return _drop_unneeded(before, change)
        stronger = _plan_valid(before, {**chosen, **values[-1]})
        if stronger is not None and (remaining := _min_excess(stronger)) <= excess:
            chosen, excess = {**chosen, **values[-1]}, remaining
    return None


def _drop_unneeded(before: CapacityPlan, change: PlanChange) -> PlanChange:
    """Return the change without unnecessary keys."""
    for key in list(change.keys):
        keys = {name: value for name, value in change.keys.items() if name != key}
        if not key.endswith(".ranks") and (changed := _plan_changed(before.run, keys, before.request)).fits:
            change = PlanChange(keys, before.request.gpus, changed)
    return change


def _min_excess(candidate: CapacityPlan) -> float:
    """Return the smallest excess over all splits: bytes of the fullest process over its memory limit."""
    return min(max(process.excess for process in split.processes) for split in candidate.splits)


def _more_gpus(before: CapacityPlan) -> PlanChange | None:
    """Return the change with the fewest GPUs, found by doubling, combined with key changes if necessary."""
    gpus = before.request.gpus
    while 2 * gpus <= MAX_GPUS:
        gpus *= 2
        candidate = make_plan(before.run, replace(before.request, gpus=gpus))
        if candidate.fits:
            return PlanChange({}, gpus, candidate)
        change = _combine_changes(candidate)
        if change is not None:
            return change
    return None


def _plan_valid(before: CapacityPlan, keys: Keys) -> CapacityPlan | None:
    """Return the plan of the changed recipe; None if its keys exclude each other."""
    try:
        return _plan_changed(before.run, keys, before.request)
    except UserError:
        return None


def _plan_changed(run: RunSettings, keys: Keys, request: PlanRequest) -> CapacityPlan:
    if "engine.kind" in keys:  # a different engine does not have the local engine's memory and keys
        keys = {key: value for key, value in keys.items() if key != "engine.prefix_cache_mb"}
    table = run.model_dump(mode="json", exclude_none=True)
    return make_plan(parse_recipe(table, changes=keys, given=run.python_objects.values()), request)
