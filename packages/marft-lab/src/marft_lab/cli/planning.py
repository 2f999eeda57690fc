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

from marft.cli.console import bold
from marft.cli.errors import open_run_for_command
from marft.cli.output import Output, OutputMode, open_output
from marft.common.errors import UserError
from marft.config import RunSettings, load_recipe
from marft_lab.planning.changes import GPUS_PER_MACHINE, PlanChange, find_faster, suggest_changes
from marft_lab.planning.memory import MemoryComponent, ProcessMemory
from marft_lab.planning.plan import CapacityPlan, PlanRequest, Split, make_plan
from marft_lab.planning.timing import MEASURED_CARDS, TIME_FACTOR
from marft_lab.planning.workload import read_recorded_lengths

MAX_SHOWN_PARTS = 12  # maximum components shown per process
MIN_SHOWN_SHARE = 0.01  # of the total: smaller parts are shown together
PHASE_WORDS = {  # phases that an answer explains
    "writing": "writing (sampling the agents' tokens)",
    "update": "update (forward and backward passes)",
}


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
    suggestions, faster = suggest_changes(capacity_plan), find_faster(capacity_plan)
    with open_output(output_mode) as out:
        out.emit("plan", **as_json(capacity_plan, suggestions, faster))
        _print_plan(out, capacity_plan, suggestions)
        out.print("", *(bold(sentence) for sentence in answer_plan(capacity_plan, suggestions, faster)))
        if faster is not None and faster.plan.best.keys:
            out.print(f"To run it so:  {_format_keys({**faster.keys, **faster.plan.best.keys})}")
        out.print(_describe_accuracy(capacity_plan))


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


def as_json(
    capacity_plan: CapacityPlan, suggestions: Sequence[PlanChange], faster: PlanChange | None = None
) -> dict[str, Any]:
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
        "changes": [_change_json(change) for change in suggestions],
        "steps": capacity_plan.run.training.steps,
        "validations": capacity_plan.validations,
        "validation_seconds": best.validation_seconds,
        "run_seconds": capacity_plan.run_seconds,
        "bottleneck": {"phase": best.longest_phase.name, "share": best.longest_phase.seconds / best.seconds},
        "faster": _change_json(faster) if faster else None,
        "time_factor": None if capacity_plan.request.card.is_cpu else TIME_FACTOR,
    }


def _change_json(change: PlanChange) -> dict[str, object]:
    best = change.plan.best
    return {"keys": dict(change.keys), "split_keys": dict(best.keys), "gpus": change.gpus, "seconds": best.seconds}


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
    out.print("", f"Of the host's memory, all processes together: {format_number(best.on_host / 1e9)} GB.")
    out.print("", _build_time_table(best, request.card.is_cpu))
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
        seconds = _format_seconds(change.plan.best.seconds, request.card.is_cpu)
        out.print(f"  {_format_change(change, request.gpus)}: then it fits, a step takes {seconds}")
    if not capacity_plan.fits and not suggestions:
        out.print("  No change that is known here makes it fit: take a smaller model, or cards with more memory.")


def _format_change(change: PlanChange, gpus: int) -> str:
    """Format a change of a plan for ``gpus`` GPUs as options."""
    options = [_format_keys(change.keys), f"--gpus {change.gpus}" if change.gpus != gpus else ""]
    return " ".join(filter(None, options))


def _format_keys(keys: Mapping[str, object]) -> str:
    return " ".join(f"--{key} {_format_value(value)}" for key, value in keys.items())


def _format_value(value: object) -> str:
    if isinstance(value, list):
        return f"'{json.dumps(value)}'"
    return str(value).lower() if isinstance(value, bool) else str(value)


def answer_plan(capacity_plan: CapacityPlan, suggestions: Sequence[PlanChange], faster: PlanChange | None) -> list[str]:
    """Return the answers of a plan: hours of the whole run, the longest part of a step, and what makes it faster.

    For a plan that does not fit, they are those of the first suggestion.
    """
    start = "The whole run takes"
    if not capacity_plan.fits:
        start = "If it fitted, the whole run would take"
        if suggestions:
            start = f"With {_format_change(suggestions[0], capacity_plan.request.gpus)} the whole run takes"
            capacity_plan = suggestions[0].plan
    best, is_cpu = capacity_plan.best, capacity_plan.request.card.is_cpu
    steps, validations = capacity_plan.run.training.steps, capacity_plan.validations
    parts = f"{steps:,} steps of {format_number(best.seconds)} s"
    if validations:
        parts += f" and {validations:,} validations of {format_number(best.validation_seconds)} s"
    phase = best.longest_phase
    name = PHASE_WORDS.get(phase.name, phase.name)
    sentences = [
        f"{start} {_format_duration(capacity_plan.run_seconds)}{_accuracy_suffix(is_cpu)}: {parts}.",
        f"The longest part of a step is {name}: {phase.seconds / best.seconds:.0%}.",
    ]
    if faster is not None:
        old = "; episodes are then up to a step old" if "rollout.max_policy_lag" in faster.keys else ""
        sentences.append(
            f"With {_format_keys(faster.keys)} a step takes {format_number(faster.plan.best.seconds)} s instead of "
            f"{format_number(best.seconds)} s, the whole run {_format_duration(faster.plan.run_seconds)}"
            f"{_accuracy_suffix(is_cpu)}{old}."
        )
    return sentences


def _describe_accuracy(capacity_plan: CapacityPlan) -> str:
    """Return where the accuracy of the times comes from."""
    card = capacity_plan.request.card
    if card.is_cpu:
        return "Predicted times were not compared with measurements on a CPU; trust the ratio of two plans more."
    other = "" if card.name in MEASURED_CARDS else f", none on {card.name}"
    return (
        f"The factor of {TIME_FACTOR} is the largest error against published times ({', '.join(MEASURED_CARDS)}{other})"
        "; trust the ratio of two plans more."
    )


def _accuracy_suffix(is_cpu: bool) -> str:
    return " (not checked on a CPU)" if is_cpu else f" (accurate to a factor of {TIME_FACTOR})"


def _format_seconds(seconds: float, is_cpu: bool) -> str:
    return f"{format_number(seconds)} s{_accuracy_suffix(is_cpu)}"


def _format_duration(seconds: float) -> str:
    """Format a duration with its largest unit, in two digits.

    >>> [_format_duration(seconds) for seconds in (40, 3000, 25_850, 1_000_000)]
    ['40 seconds', '50 minutes', '7.2 hours', '280 hours']
    """
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= size:
            return f"{format_number(seconds / size)} {unit}"
    return f"{format_number(seconds)} seconds"


def format_number(value: float, digits: int = 2) -> str:
    """Format a number with significant digits, without an exponent.

    >>> [format_number(value) for value in (419.47, 51.7, 1.03, 0.0049, 12_345.0, 0.0)]
    ['420', '52', '1.0', '0.0049', '12,000', '0']
    """
    if not value or not math.isfinite(value):
        return f"{value:.0f}"
    decimals = digits - 1 - math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    return f"{round(value, decimals):,.{max(0, decimals)}f}"


def _build_memory_table(process: ProcessMemory) -> Table:
    table = Table(title=Text(process.name), title_justify="left", box=None, pad_edge=False)
    for heading, justify in (("part", "left"), ("GB", "right"), ("", "left")):
        table.add_column(heading, justify="right" if justify == "right" else "left")
    for on_host in (False, True):
        parts = [part for part in process.parts if part.on_host is on_host and part.bytes]
        large, small = _split_small(parts, process)
        for part in large:
            location = "of the host" if on_host else "" if part.phase == "always" else f"while {part.phase}"
            table.add_row(Text(part.name), format_number(part.bytes / 1e9), location)
        if small and not on_host:  # the line below the tables has the host's total
            table.add_row("other", format_number(sum(part.bytes for part in small) / 1e9), "")
    style = "" if process.fits else "red"
    if process.card == "host":
        return table
    table.add_row(
        Text("at most", style),
        Text(format_number(process.on_card / 1e9, 3), style),
        f"of {format_number(process.limit / 1e9, 3)}",
    )
    return table


def _split_small(
    parts: Sequence[MemoryComponent], process: ProcessMemory
) -> tuple[list[MemoryComponent], list[MemoryComponent]]:
    """Return the parts to show, the largest first, and the parts to show together."""
    smallest = MIN_SHOWN_SHARE * (process.on_card or process.on_host)
    ordered = sorted(parts, key=lambda part: -part.bytes)
    number = min(MAX_SHOWN_PARTS, sum(part.bytes >= smallest for part in ordered))
    return ordered[:number], ordered[number:]


def _build_time_table(split: Split, is_cpu: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("a step")
    table.add_column("seconds" if is_cpu else f"seconds, to a factor of {TIME_FACTOR}", justify="right")
    total = sum(phase.seconds for phase in split.phases)
    small = [phase.seconds for phase in split.phases if 0 < phase.seconds < MIN_SHOWN_SHARE * total]
    for phase in split.phases:
        if phase.seconds >= MIN_SHOWN_SHARE * total and phase.seconds:
            table.add_row(phase.name, format_number(phase.seconds))
    if small:
        table.add_row("other", format_number(sum(small)))
    together = ", sampling and learning at the same time" if split.lag and split.sampling else ""
    table.add_row(Text(f"in all{together}", "bold"), Text(format_number(split.seconds), "bold"))
    return table


def _build_split_table(capacity_plan: CapacityPlan) -> Table:
    table = Table(box=None, pad_edge=False)
    is_cpu = capacity_plan.request.card.is_cpu
    seconds = "seconds a step" if is_cpu else f"seconds a step, to a factor of {TIME_FACTOR}"
    for heading in ("GPUs that sample", "that learn", seconds, ""):
        table.add_column(heading, justify="right" if heading else "left")
    for split in capacity_plan.neighbors:
        marks: Mapping[bool, str] = {True: "best", False: ""}
        note = marks[split is capacity_plan.best] if split.fits else "does not fit"
        table.add_row(str(split.sampling or "the same"), str(split.learning), format_number(split.seconds), note)
    return table
