"""Command ``marft plan``: a recipe's memory and step time, as tables or JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from marft.cli.errors import open_run_for_command
from marft.cli.output import Output, OutputMode, open_output
from marft.common.errors import UserError
from marft.config import RunSettings, load_recipe
from marft_lab.planning.changes import GPUS_PER_MACHINE, PlanChange, suggest_changes
from marft_lab.planning.memory import ProcessMemory
from marft_lab.planning.plan import CapacityPlan, PlanRequest, Split, make_plan
from marft_lab.planning.workload import read_recorded_lengths

MAX_SHOWN_PARTS = 12  # maximum components shown per process


def run_plan(path: Path, overrides: Sequence[str], request: PlanRequest, output_mode: OutputMode) -> None:
    """Print the plan of a recipe or a run.

    Args:
        path: recipe file, name of a bundled recipe, or run folder.
        overrides: command-line overrides of recipe keys.
        request: request for the plan; its lengths and seconds override recorded values.
        output_mode: output format.

    Raises:
        UserError: an option is not a finite number.
    """
    _check_finite(request)
    run, request = _load_recipe_or_run(path, overrides, request)
    capacity_plan = make_plan(run, request)
    suggestions = suggest_changes(capacity_plan)
    with open_output(output_mode) as out:
        out.emit("plan", **as_json(capacity_plan, suggestions))
        _print_plan(out, capacity_plan, suggestions)


def _load_recipe_or_run(path: Path, overrides: Sequence[str], request: PlanRequest) -> tuple[RunSettings, PlanRequest]:
    """Return the settings, and the request; for a run, recorded values fill in the values that are not given."""
    if not path.is_dir():
        return load_recipe(path, overrides), request
    folder = open_run_for_command(path)
    run, recording = folder.relocated_settings(overrides), read_recorded_lengths(folder)
    if recording is None:
        return run, request
    seconds = recording.environment_seconds if request.environment_seconds is None else request.environment_seconds
    lengths = recording.lengths.with_overrides(request.lengths)
    return run, replace(request, lengths=lengths, environment_seconds=seconds)


def _check_finite(request: PlanRequest) -> None:
    """Check numeric options for NaN and infinity.

    Raises:
        UserError: an option is NaN or infinite.
    """
    for option, value in (
        ("--prompt-tokens", request.lengths.prompt),
        ("--action-tokens", request.lengths.action),
        ("--max-action-tokens", request.lengths.longest),
        ("--environment-steps", request.lengths.environment_steps),
        ("--environment-seconds", request.environment_seconds),
    ):
        if value is not None and not math.isfinite(value):
            raise UserError(f"{option}: {value} is no number; write {option} 512")


def as_json(capacity_plan: CapacityPlan, suggestions: Sequence[PlanChange]) -> dict[str, Any]:
    """Return a plan as JSON data, with sizes in bytes and times in seconds."""
    best = capacity_plan.best
    return {
        "gpu": capacity_plan.request.card.name,
        "gpus": capacity_plan.request.gpus,
        "fits": capacity_plan.fits,
        "episodes": capacity_plan.workload.episodes,
        "policies": [
            {
                "name": policy.name,
                "train": policy.train,
                "actions": policy.actions,
                "prompt_tokens": policy.lengths.prompt,
                "action_tokens": policy.lengths.action,
                "longest_action": policy.lengths.longest,
                "lengths_from": policy.lengths.source,
            }
            for policy in capacity_plan.workload.policies
        ],
        "best": _split_json(best),
        "splits": [_split_json(split) for split in capacity_plan.splits],
        "changes": [
            {"keys": dict(change.keys), "gpus": change.gpus, "seconds": change.plan.best.seconds}
            for change in suggestions
        ],
    }


def _split_json(split: Split) -> dict[str, object]:
    return {
        "sampling_gpus": split.sampling,
        "learning_gpus": split.learning,
        "keys": dict(split.keys),
        "host_bytes": split.on_host,
        "fits": split.fits,
        "seconds": split.seconds,
        "phases": [{"name": p.name, "side": p.side, "seconds": p.seconds} for p in split.phases],
        "processes": [
            {
                "name": process.name,
                "count": process.count,
                "fits": process.fits,
                "bytes": process.on_card,
                "room": process.limit if math.isfinite(process.limit) else None,
                "host_bytes": process.on_host,
                "parts": [
                    {"name": part.name, "bytes": part.bytes, "when": part.phase, "on_host": part.on_host}
                    for part in process.parts
                ],
            }
            for process in split.processes
        ],
    }


def _print_plan(out: Output, capacity_plan: CapacityPlan, suggestions: Sequence[PlanChange]) -> None:
    best, request = capacity_plan.best, capacity_plan.request
    out.print(f"{capacity_plan.run.name} on {request.gpus} × {request.card.name} ({request.card.source})")
    for policy in capacity_plan.workload.policies:
        lengths = policy.lengths
        out.print(
            f"{policy.name}: {policy.actions:,.0f} actions a step of {lengths.prompt:,.0f} + {lengths.action:,.0f} "
            f"tokens ({lengths.source}), the longest {lengths.longest:,.0f}"
        )
    for process in best.processes:
        out.print("", _build_memory_table(process))
    out.print("", f"Of the host's memory, all processes together: {best.on_host / 1e9:,.1f} GB.")
    out.print("", _build_time_table(best))
    if len(capacity_plan.splits) > 1:
        out.print("", _build_split_table(capacity_plan))
    out.print("", "It fits." if capacity_plan.fits else Text("It does not fit.", style="red"))
    if capacity_plan.fits and best.keys:
        out.print(f"To run it so:  {_format_keys(best.keys)}")
    if best.learning > GPUS_PER_MACHINE:
        out.print(
            f"Ranks are on one machine, which needs {best.learning} GPUs for them, or on a cluster's ([cluster])."
        )
    for change in suggestions:
        out.print(f"  {_format_change(change)}: then it fits, {change.plan.best.seconds:,.1f} s a step")
    if not capacity_plan.fits and not suggestions:
        out.print("  No change that is known here makes it fit: take a smaller model, or cards with more memory.")


def _format_change(change: PlanChange) -> str:
    return "  ".join([_format_keys(change.keys), f"--gpus {change.gpus}"]).strip()


def _format_keys(keys: Mapping[str, object]) -> str:
    return " ".join(f"--{key} {_format_value(value)}" for key, value in keys.items())


def _format_value(value: object) -> str:
    if isinstance(value, list):
        return f"'{json.dumps(value)}'"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _build_memory_table(process: ProcessMemory) -> Table:
    table = Table(title=Text(process.name), title_justify="left", box=None, pad_edge=False)
    for heading, justify in (("part", "left"), ("GB", "right"), ("", "left")):
        table.add_column(heading, justify="right" if justify == "right" else "left")
    parts = sorted(process.parts, key=lambda part: -part.bytes)
    largest, remaining = parts[:MAX_SHOWN_PARTS], parts[MAX_SHOWN_PARTS:]
    for part in largest:
        location = "of the host" if part.on_host else "" if part.phase == "always" else f"while {part.phase}"
        table.add_row(Text(part.name), f"{part.bytes / 1e9:,.2f}", location)
    if remaining:
        table.add_row(f"{len(remaining)} more", f"{sum(part.bytes for part in remaining) / 1e9:,.2f}", "")
    style = "" if process.fits else "red"
    if process.card == "host":
        return table
    table.add_row(
        Text("at most", style), Text(f"{process.on_card / 1e9:,.2f}", style), f"of {process.limit / 1e9:,.1f}"
    )
    return table


def _build_time_table(split: Split) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("a step")
    table.add_column("s", justify="right")
    for phase in split.phases:
        if phase.seconds:
            table.add_row(phase.name, f"{phase.seconds:,.2f}")
    together = ", sampling and learning at the same time" if split.lag and split.sampling else ""
    table.add_row(Text(f"in all{together}", "bold"), Text(f"{split.seconds:,.2f}", "bold"))
    return table


def _build_split_table(capacity_plan: CapacityPlan) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("GPUs that sample", "that learn", "s a step", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for split in capacity_plan.neighbors:
        marks: Mapping[bool, str] = {True: "best", False: ""}
        note = marks[split is capacity_plan.best] if split.fits else "does not fit"
        table.add_row(str(split.sampling or "the same"), str(split.learning), f"{split.seconds:,.2f}", note)
    return table
