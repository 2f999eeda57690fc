"""What to change of a recipe that does not fit: each change is planned again before it is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from marft.config.load import parse_recipe
from marft.config.run import RunSettings
from marft.planning.memory import vllm_share
from marft.planning.plan import Ask, Plan, plan

LEAST_TOKENS, LEAST_ROWS = 512, 8
MOST_GPUS = 64


@dataclass(frozen=True, slots=True)
class Change:
    """Keys to new values, or more GPUs; ``plan`` is the recipe planned with it, and fits."""

    keys: Mapping[str, Any]
    gpus: int
    plan: Plan


def changes(before: Plan) -> list[Change]:
    """Ways to make a plan fit, the mildest first: single changes that are enough, else several, else more GPUs.

    What changes nothing that is learned (sizes of batches, what is recomputed) comes before what does.
    """
    if before.fits:
        return []
    alone = [found for key, values in _knobs(before.run) if (found := _first(before, {}, key, values)) is not None]
    if alone:
        return alone
    together = _together(before)
    if together is not None:
        return [together]
    more = _more_gpus(before)
    return [more] if more is not None else []


def _knobs(run: RunSettings) -> Iterator[tuple[str, Sequence[Any]]]:
    """Keys, each with the values to try, the mildest first."""
    tokens = run.training.tokens_per_micro_batch
    yield "training.tokens_per_micro_batch", list(_halves(tokens, LEAST_TOKENS))
    rows = getattr(run.engine, "max_rows", 0)
    if run.engine.apart:
        share = vllm_share(run) if run.engine.name == "vllm" else 0.0
        yield "engine.options.gpu_memory_utilization", [s / 100 for s in range(85, 5, -5) if s / 100 < share]
    else:
        yield "engine.max_rows", list(_halves(rows, LEAST_ROWS))
        yield "engine.prefix_cache_mb", [0] if getattr(run.engine, "prefix_cache_mb", 0) else []
    for name, model in run.models.items():
        if model.endpoint is None:
            yield f"models.{name}.gradient_checkpointing", [] if model.gradient_checkpointing else [True]
            yield f"models.{name}.dtype", ["bfloat16"] if model.dtype == "float32" else []
    for name, policy in run.policies.items():
        yield f"policies.{name}.train", ["lora"] if policy.train == "full" else []


def _halves(value: int, least: int) -> Iterator[int]:
    while value // 2 >= least:
        value //= 2
        yield value


def _first(before: Plan, with_them: Mapping[str, Any], key: str, values: Sequence[Any]) -> Change | None:
    """The mildest value of a key that is enough."""
    for value in values:
        tried = _planned(before.run, {**with_them, key: value}, before.ask)
        if tried.fits:
            return Change({**with_them, key: value}, before.ask.gpus, tried)
    return None


def _together(before: Plan) -> Change | None:
    """As many changes as it takes, each but the last at its strongest, but for what is learned."""
    taken: dict[str, Any] = {}
    for key, values in _knobs(before.run):
        if not values:
            continue
        found = _first(before, taken, key, values)
        if found is not None:
            return found
        taken[key] = values[-1]
    return None


def _more_gpus(before: Plan) -> Change | None:
    """As few more as are enough, doubling; with other changes where it takes them."""
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


def _planned(run: RunSettings, keys: Mapping[str, Any], ask: Ask) -> Plan:
    table = run.model_dump(mode="json", exclude_none=True)
    return plan(parse_recipe(table, changes=keys, given=run.given.values()), ask)
