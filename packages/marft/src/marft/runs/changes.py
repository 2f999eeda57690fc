"""Changes on resume: permitted and other changes of the recipe, and changed files of user code."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from marft.common.atomic import digest_of_file
from marft.common.errors import UserError
from marft.config.plugins import user_import_path_module
from marft.config.run import RunSettings

Key = tuple[str | int, ...]
FREE_SETTINGS = (
    "name",
    "output",
    "recipe_folder",
    "device",
    "threads",
    "models.*.path",
    "models.*.revision",
    "models.*.chat_template",  # their content is compared, not their location
    "models.*.gradient_checkpointing",
    "models.*.ranks",
    "training.steps",
    "training.tokens_per_micro_batch",
    "training.share_prefixes",
    "training.ranks",
    "training.shard",
    "training.offload_optimizer",
    "training.rank_timeout_seconds",
    "training.record_*",
    "training.show_samples_every",
    "checkpoints.*",
    "evaluation.*",
    "engine.*",
    "rollout.max_concurrent_episodes",
    "rollout.timeout_seconds",
    "rollout.workers",
    "rollout.max_retries",
    "rollout.max_policy_lag",
    "cluster",
    "cluster.*",
    "*.endpoint.url",
    "sft.traces",
    "sft.eval_every",
    "sinks",
    "callbacks",
    "*.endpoint.api_key_variable",
    "*.endpoint.timeout_seconds",
    "*.endpoint.max_retries",
    "*.endpoint.requests_per_minute",
    "*.endpoint.max_concurrent_requests",
    "*.endpoint.price_*",
    "rewards.*.cache",
    "algorithm.complete_from",
    "tracing.*",
    "synthesis.*",
    "shadow.*",
)
ABSENT = "absent"
PRESET = "algorithm.name"


def hash_user_code(run: RunSettings) -> dict[str, str]:
    """Return the file digest for each module named in a recipe by import path.

    Files that such a module imports are not checked.
    """
    hashes = {}
    for _, text in iterate_texts(run.model_dump(mode="json")):
        name = user_import_path_module(text)
        module = sys.modules.get(name)
        if module and module.__file__ and Path(module.__file__).is_file():
            hashes[name] = digest_of_file(Path(module.__file__))
    return hashes


def code_notes(before: Mapping[str, str], run: RunSettings, step: int) -> Iterator[str]:
    """Yield a note for each user file that changed since checkpoint ``step``."""
    for module, digest in hash_user_code(run).items():
        if before.get(module, digest) != digest:
            change = f"{sys.modules[module].__file__} has changed since step {step}"
            yield f"{change}: what the run learns from here on, it learns with the new one"


def find_changes(before: RunSettings, current: RunSettings) -> dict[str, tuple[object, object]]:
    """Return changed settings that affect learning: key → old and new value.

    Every setting affects learning, except those in ``FREE_SETTINGS``. These are locations, the length and speed of a
    run, the recording of data, and the evaluation.
    """
    old, new = dict(flatten_recipe(before)), dict(flatten_recipe(current))
    return {
        key: (old.get(key, ABSENT), new.get(key, ABSENT))
        for key in dict.fromkeys([*old, *new])
        if old.get(key, ABSENT) != new.get(key, ABSENT) and not _is_free(key, before)
    }


def check_changes(before: RunSettings, current: RunSettings) -> None:
    """Check a resumed run for changed settings that affect learning.

    Raises:
        UserError: a setting that affects learning has changed; the message names each.
    """
    different = find_changes(before, current)
    if different:
        lines = "\n".join(_describe_changes(different))
        raise UserError(
            f"a run goes on with the settings that it learned with so far, but these are others:\n{lines}\n"
            "Take them back; or start a new run with these weights:  marft train recipe.toml --name … --init-from …"
        )


def _describe_changes(different: Mapping[str, tuple[object, object]]) -> Iterator[str]:
    """Yield a line for each change. A preset change is one line together with the settings of the preset."""
    with_preset = [key for key in different if key.startswith("algorithm.") and key != PRESET]
    if PRESET in different:
        old, new = different[PRESET]
        yield f"  {PRESET}: {old!r} → {new!r}" + (f", and with it {', '.join(with_preset)}" if with_preset else "")
    for key, (old, new) in different.items():
        if PRESET not in different or not key.startswith("algorithm."):
            yield f"  {key}: {old!r} → {new!r}"


def change_notes(before: RunSettings, current: RunSettings) -> Iterator[str]:
    """Yield notes about permitted changes that still affect learning."""
    optimizer = current.algorithm.optimizer
    if before.training.steps != current.training.steps and optimizer.depends_on_steps:
        yield (
            f"training.steps: {before.training.steps} → {current.training.steps}, and the learning rate follows a "
            f"{optimizer.schedule} schedule over all steps: from here on it is that of the new length, a jump"
        )


def flatten_recipe(run: RunSettings) -> Iterator[tuple[str, object]]:
    """Yield a recipe as dotted keys and values; agents are keyed by role, reward terms by index."""
    return flatten_table(_table(run))


def _is_free(key: str, run: RunSettings) -> bool:
    parts = key.split(".")
    if parts[0] == "models" and parts[-1] == "path" and run.is_remote(parts[1]):
        return False  # the model's name at its endpoint
    if parts[0] == "guards" and key != "guards.on_collapse" and run.guards.on_collapse == "warn":
        return True  # guards that only report do not affect learning
    return any(fnmatchcase(key, pattern) for pattern in FREE_SETTINGS)


def _table(run: RunSettings) -> dict[str, object]:
    table = run.model_dump(mode="json", exclude_none=True)
    table["agents"] = {agent["role"]: agent for agent in table["agents"]} | {
        "order": [a["role"] for a in table["agents"]]
    }
    table["rewards"] = {str(number): reward for number, reward in enumerate(table["rewards"])}
    return table


def iterate_texts(value: object, key: Key = ()) -> Iterator[tuple[Key, str]]:
    """Yield the texts in a table or list, with their keys."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from iterate_texts(inner, (*key, name))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from iterate_texts(inner, (*key, number))


def flatten_table(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of nested tables with their dotted keys."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from flatten_table(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
