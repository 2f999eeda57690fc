"""Command ``marft plan``: a recipe's memory and step time, as tables or JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from marft.cli.errors import beside
from marft.cli.output import How, Output, output
from marft.config import RunSettings, load_recipe
from marft.models.cards import card_named
from marft.runs.folder import RunFolder
from marft_lab.planning.changes import MACHINE, Change, changes
from marft_lab.planning.efficiencies import Efficiencies
from marft_lab.planning.measured import recorded
from marft_lab.planning.memory import Process
from marft_lab.planning.plan import Ask, Plan, Split, plan
from marft_lab.planning.work import Known

MOST_PARTS = 12  # maximum components shown per process


def run_plan(
    path: Path, overrides: Sequence[str], gpus: int, gpu: str, given: Known, environment_seconds: float | None,
    lag: int | None, efficiencies: Sequence[str], model_config: Path | None, how: How,
) -> None:  # fmt: skip
    """Print the plan of a recipe or a run.

    Args:
        path: recipe file, name of a bundled recipe, or run folder.
        overrides: command-line overrides of recipe keys.
        gpus: number of GPUs.
        gpu: GPU type.
        given: lengths set on the command line; they override recorded lengths.
        environment_seconds: seconds per environment step; None for the recorded value of a run, else 0.
        lag: maximum age of training data, in policy versions; None for the recipe's value.
        efficiencies: overrides of the hardware efficiencies, as ``name=value``.
        model_config: ``config.json`` of a model with unknown size.
        how: output format.

    Raises:
        ValueError: an option is not a finite number, or names an unknown GPU or efficiency.
    """
    _check_finite(given, environment_seconds)
    run, known, measured_seconds = _asked_about(path, overrides, given)
    seconds = environment_seconds if environment_seconds is not None else measured_seconds
    reached = Efficiencies().with_changes(efficiencies)
    ask = Ask(gpus, card_named(gpu), known, seconds, lag, reached, model_config)
    made = plan(run, ask)
    found = changes(made)
    with output(how) as out:
        out.tell("plan", **as_json(made, found))
        _say(out, made, found)


def _asked_about(path: Path, overrides: Sequence[str], given: Known) -> tuple[RunSettings, Known, float]:
    """Return the settings, the known lengths, and the seconds per environment step.

    For a run, recorded lengths fill in the values that are not given.
    """
    if not path.is_dir():
        return load_recipe(path, overrides), given, 0.0
    folder = RunFolder.open(path)
    beside(folder.path)
    run, found = folder.settings_in_place(overrides), recorded(folder)
    if found is None:
        return run, given, 0.0
    return run, found.known.but(given), found.environment_seconds


def _check_finite(given: Known, environment_seconds: float | None) -> None:
    """Check numeric options for NaN and infinity.

    Raises:
        ValueError: an option is NaN or infinite.
    """
    for option, value in (
        ("--prompt-tokens", given.prompt), ("--action-tokens", given.action), ("--longest-action", given.longest),
        ("--environment-steps", given.environment_steps), ("--environment-seconds", environment_seconds),
    ):  # fmt: skip
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{option}: {value} is no number; write {option} 512")


def as_json(made: Plan, found: Sequence[Change]) -> dict[str, Any]:
    """Return a plan as JSON data, with sizes in bytes and times in seconds."""
    best = made.best
    return {
        "gpu": made.ask.card.name,
        "gpus": made.ask.gpus,
        "fits": made.fits,
        "episodes": made.work.episodes,
        "policies": [
            {
                "name": policy.name, "train": policy.train, "actions": policy.actions,
                "prompt_tokens": policy.lengths.prompt, "action_tokens": policy.lengths.action,
                "longest_action": policy.lengths.longest, "lengths_from": policy.lengths.source,
            }
            for policy in made.work.policies
        ],
        "best": _split_json(best),
        "splits": [_split_json(split) for split in made.splits],
        "changes": [{"keys": dict(one.keys), "gpus": one.gpus, "seconds": one.plan.best.seconds} for one in found],
    }  # fmt: skip


def _split_json(split: Split) -> dict[str, Any]:
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
                "name": process.name, "count": process.count, "fits": process.fits, "bytes": process.on_card,
                "room": process.room if math.isfinite(process.room) else None,
                "host_bytes": process.on_host,
                "parts": [
                    {"name": part.name, "bytes": part.bytes, "when": part.when, "on_host": part.on_host}
                    for part in process.parts
                ],
            }
            for process in split.processes
        ],
    }  # fmt: skip


def _say(out: Output, made: Plan, found: Sequence[Change]) -> None:
    best, ask = made.best, made.ask
    out.say(f"{made.run.name} on {ask.gpus} × {ask.card.name} ({ask.card.source})")
    for policy in made.work.policies:
        lengths = policy.lengths
        out.say(
            f"{policy.name}: {policy.actions:,.0f} actions a step of {lengths.prompt:,.0f} + {lengths.action:,.0f} "
            f"tokens ({lengths.source}), the longest {lengths.longest:,.0f}"
        )
    for process in best.processes:
        out.say("", _memory(process))
    out.say("", f"Of the host's memory, all processes together: {best.on_host / 1e9:,.1f} GB.")
    out.say("", _seconds(best))
    if len(made.splits) > 1:
        out.say("", _splits(made))
    out.say("", "It fits." if made.fits else Text("It does not fit.", style="red"))
    if made.fits and best.keys:
        out.say(f"To run it so:  {_keys(best.keys)}")
    if best.learning > MACHINE:
        out.say(f"Ranks are on one machine, which needs {best.learning} GPUs for them, or on a cluster's ([cluster]).")
    for one in found:
        out.say(f"  {_words(one)}: then it fits, {one.plan.best.seconds:,.1f} s a step")
    if not made.fits and not found:
        out.say("  No change that is known here makes it fit: take a smaller model, or cards with more memory.")


def _words(one: Change) -> str:
    return "  ".join([_keys(one.keys), f"--gpus {one.gpus}"]).strip()


def _keys(keys: Mapping[str, Any]) -> str:
    return " ".join(f"--{key} {_value(value)}" for key, value in keys.items())


def _value(value: object) -> str:
    if isinstance(value, list):
        return f"'{json.dumps(value)}'"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _memory(process: Process) -> Table:
    table = Table(title=Text(process.name), title_justify="left", box=None, pad_edge=False)
    for heading, justify in (("part", "left"), ("GB", "right"), ("", "left")):
        table.add_column(heading, justify="right" if justify == "right" else "left")
    parts = sorted(process.parts, key=lambda part: -part.bytes)
    shown, rest = parts[:MOST_PARTS], parts[MOST_PARTS:]
    for part in shown:
        where = "of the host" if part.on_host else "" if part.when == "always" else f"while {part.when}"
        table.add_row(Text(part.name), f"{part.bytes / 1e9:,.2f}", where)
    if rest:
        table.add_row(f"{len(rest)} more", f"{sum(part.bytes for part in rest) / 1e9:,.2f}", "")
    style = "" if process.fits else "red"
    if process.card == "host":
        return table
    table.add_row(Text("at most", style), Text(f"{process.on_card / 1e9:,.2f}", style), f"of {process.room / 1e9:,.1f}")
    return table


def _seconds(split: Split) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("a step")
    table.add_column("s", justify="right")
    for phase in split.phases:
        if phase.seconds:
            table.add_row(phase.name, f"{phase.seconds:,.2f}")
    together = ", sampling and learning at the same time" if split.lag and split.sampling else ""
    table.add_row(Text(f"in all{together}", "bold"), Text(f"{split.seconds:,.2f}", "bold"))
    return table


def _splits(made: Plan) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("GPUs that sample", "that learn", "s a step", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for split in made.neighbours:
        marks: Mapping[bool, str] = {True: "best", False: ""}
        note = marks[split is made.best] if split.fits else "does not fit"
        table.add_row(str(split.sampling or "the same"), str(split.learning), f"{split.seconds:,.2f}", note)
    return table
