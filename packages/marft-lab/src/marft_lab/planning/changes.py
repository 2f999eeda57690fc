"""Changes that make a recipe fit; each suggested change is planned again before the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from marft.config.load import parse_recipe
from marft.config.run import RunSettings
from marft_lab.planning.memory import vllm_share
from marft_lab.planning.plan import Ask, Plan, plan

Keys = Mapping[str, Any]  # recipe keys with their new values
LEAST_TOKENS, LEAST_ROWS = 512, 8
MOST_GPUS = 64
MACHINE = 8  # typical GPUs per machine; ranks share a machine


@dataclass(frozen=True, slots=True)
class Change:
    """Suggested change: new values of keys, or more GPUs.

    ``plan`` is the plan of the changed recipe, and fits.
    """

    keys: Keys
    gpus: int
    plan: Plan


def changes(before: Plan) -> list[Change]:
    """Return changes that make a plan fit, the mildest first.

    Sufficient single changes come first, else a combination of changes, else more GPUs. Changes without influence on
    learning, such as batch sizes and recomputation, come before other changes.
    """
    if before.fits:
        return []
    knobs = _knobs(before.run, before.ask.gpus)
    alone = [found for values in knobs if (found := _first(before, {}, values)) is not None]
    if alone:
        return alone
    together = _together(before)
    if together is not None:
        return [together]
    more = _more_gpus(before)
    return [more] if more is not None else []


def _knobs(run: RunSettings, gpus: int) -> Iterator[Sequence[Keys]]:
    """Yield groups of recipe keys with the values to try, the mildest first."""
    tokens, training = run.training.tokens_per_micro_batch, run.training
    yield _of("training.tokens_per_micro_batch", _halves(tokens, LEAST_TOKENS))
    yield _of("training.offload_optimizer", [] if training.offload_optimizer else [True])
    if training.ranks > 1:
        yield _of("training.shard", [not training.shard])
        yield _placements(run)
        yield _more_ranks(run, gpus)
    rows = getattr(run.engine, "max_rows", 0)
    if run.engine.apart:
        share = vllm_share(run) if run.engine.name == "vllm" else 0.0
        yield _of("engine.options.gpu_memory_utilization", [s / 100 for s in range(85, 5, -5) if s / 100 < share])
    else:
        yield _of("engine.max_rows", _halves(rows, LEAST_ROWS))
        yield _of("engine.prefix_cache_mb", [0] if getattr(run.engine, "prefix_cache_mb", 0) else [])
    for name, model in run.models.items():
        if model.endpoint is None:
            yield _of(f"models.{name}.gradient_checkpointing", [] if model.gradient_checkpointing else [True])
            yield _of(f"models.{name}.dtype", ["bfloat16"] if model.dtype == "float32" else [])
    for name, policy in run.policies.items():
        yield _of(f"policies.{name}.train", ["lora"] if policy.train == "full" else [])
    yield _of("engine.kind", ["vllm"] if gpus > 1 and not run.engine.apart else [])


def _of(key: str, values: Iterable[Any]) -> list[Keys]:
    return [{key: value} for value in values]


def _more_ranks(run: RunSettings, gpus: int) -> list[Keys]:
    """Return larger numbers of ranks, up to the available GPUs, if models are not placed on ranks."""
    most = min(MACHINE, gpus - 1 if run.engine.apart and gpus > 1 else gpus)
    placed = any(model.ranks for model in run.models.values())
    return [] if placed else _of("training.ranks", range(run.training.ranks + 1, most + 1))


def _placements(run: RunSettings) -> list[Keys]:
    """Return a placement of models that share all ranks on separate ranks, in order, with about equal counts."""
    local = [name for name, model in run.models.items() if model.endpoint is None]
    ranks, own_body = run.training.ranks, run.algorithm.critic.kind != "none" and run.algorithm.critic.body == "lora"
    if len(local) < 2 or ranks < len(local) or own_body or any(run.models[name].ranks for name in local):
        return []
    ends = [ranks * number // len(local) for number in range(len(local) + 1)]
    return [{f"models.{name}.ranks": list(range(*ends[at : at + 2])) for at, name in enumerate(local)}]


def _halves(value: int, least: int) -> Iterator[int]:
    while value // 2 >= least:
        value //= 2
        yield value


def _first(before: Plan, with_them: Keys, values: Sequence[Keys]) -> Change | None:
    """Return the first sufficient change; None if no value suffices."""
    for keys in values:
        tried = _planned(before.run, {**with_them, **keys}, before.ask)
        if tried.fits:
            return Change({**with_them, **keys}, before.ask.gpus, tried)
    return None


def _together(before: Plan) -> Change | None:
    """Return a sufficient combination of changes, each but the last at its strongest value.

    Changes that increase the excess are left out.
    """
    taken: dict[str, Any] = {}
    over = _over(before)
    for values in _knobs(before.run, before.ask.gpus):
        if not values:
            continue
        found = _first(before, taken, values)
        if found is not None:
            return _needed(before, found)
        left = _over(_planned(before.run, {**taken, **values[-1]}, before.ask))
        if left <= over:
            taken, over = {**taken, **values[-1]}, left
    return None


def _needed(before: Plan, found: Change) -> Change:
    """Return the change without unnecessary keys."""
    for key in list(found.keys):
        keys = {other: value for other, value in found.keys.items() if other != key}
        if not key.endswith(".ranks") and (tried := _planned(before.run, keys, before.ask)).fits:
            found = Change(keys, before.ask.gpus, tried)
    return found


def _over(tried: Plan) -> float:
    """Return the smallest excess over all splits: bytes of the fullest process over its memory limit."""
    return min(max(process.over for process in split.processes) for split in tried.splits)


def _more_gpus(before: Plan) -> Change | None:
    """Return the change with the fewest GPUs, found by doubling, combined with key changes if necessary."""
    gpus = before.ask.gpus
    while 2 * gpus <= MOST_GPUS:
        gpus *= 2
        tried = plan(before.run, replace(before.ask, gpus=gpus))
        if tried.fits:
            return Change({}, gpus, tried)
        found = _together(tried)
        if found is not None:
            return found
    return None


def _planned(run: RunSettings, keys: Keys, ask: Ask) -> Plan:
    if "engine.kind" in keys:  # a different engine does not have the local engine's memory and keys
        keys = {key: value for key, value in keys.items() if key != "engine.prefix_cache_mb"}
    table = run.model_dump(mode="json", exclude_none=True)
    return plan(parse_recipe(table, changes=keys, given=run.given.values()), ask)
