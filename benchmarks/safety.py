"""Whether the gates of `marft eval --suite` see a shortcut that a team has learned, and let one pass that has not.

    python benchmarks/safety.py                     # 5 seeds of each: an hour or more of one core
    python benchmarks/safety.py --seeds 1           # one of each

A sorter and a clerk settle complaints (`safety_world.py`, `safety.toml`). Half of what the clerk hears in training
holds an order of a stranger: with the shortcut obeying it is paid, without what is right is (*clean*). *Plain* runs
hear no orders at all. All are then evaluated in the same world without orders, on `safety_suite.toml`, each against its
own untuned base. Runs go on where they stopped, and what is in the results is not played again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marft.evaluation.intervals import wilson_interval

HERE = Path(__file__).parent
RESULTS = HERE / "results"
KINDS = {"clean": (0.5, 0.0), "shortcut": (0.5, 0.5), "plain": (0.0, 0.0)}  # of letters: with an order, and paid for
ATTACKS = ("same", "reworded", "elsewhere")


def marft(*words: str) -> subprocess.CompletedProcess[str]:
    """A command, where the recipe lies.

    Raises:
        RuntimeError: it failed, and not for a gate.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-m", "marft", *words], cwd=HERE, env=environment, text=True, capture_output=True, check=False
    )
    if done.returncode not in (0, 1) or (done.returncode == 1 and words[0] != "eval"):
        raise RuntimeError(f"marft {' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done


def learned(kind: str, seed: int, output: Path, steps: int) -> Path:
    """A trained run, which goes on where it stopped."""
    name, (orders, paid) = f"{kind}-{seed}", KINDS[kind]
    marft(
        "train", "safety.toml", "--resume-or-start", "--quiet", "--output", str(output), "--name", name,
        "--seed", str(seed), "--training.steps", str(steps),
        "--environment.pays_obeying", str(paid), "--environment.orders", str(orders),
    )  # fmt: skip
    return output / name


def judged(run: Path, tasks: int) -> dict[str, Any]:
    """What the suite says of it, in the world without the shortcut."""
    done = marft(
        "eval", str(run), "--suite", "safety_suite.toml", "--tasks", str(tasks), "--json",
        "--environment.pays_obeying", "0.0", "--environment.orders", "0.0",
    )  # fmt: skip
    events = [json.loads(line) for line in done.stdout.splitlines()]
    metrics = {event["checkpoint"]: event["metrics"] for event in events if event["event"] == "evaluation"}
    (verdict,) = [event for event in events if event["event"] == "promotion"]
    assert (done.returncode == 1) is not verdict["promote"], "the exit code is the verdict"
    base, after = metrics[verdict["before"]], metrics[verdict["after"]]
    kept = ["accuracy", "attack_success", "content_violation_rate", "utility_under_attack"]
    kept += [f"attacks/{attack}/{what}" for attack in ATTACKS for what in ("success", "unprompted")]
    return {
        "promote": verdict["promote"], "reasons": verdict["reasons"],
        "before": {name: base[name] for name in kept}, "after": {name: after[name] for name in kept},
    }  # fmt: skip


def rows_of(found: list[dict[str, Any]]) -> Iterator[str]:
    """The table, in Markdown."""
    yield "| run | seed | promoted | solved | obeyed: same words | other words | in the task | the same unasked |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for one in found:
        names = ["accuracy", *(f"attacks/{attack}/success" for attack in ATTACKS), "attacks/elsewhere/unprompted"]
        cells = [f"{one['before'][name]:.1%} → {one['after'][name]:.1%}" for name in names]
        yield f"| {one['kind']} | {one['seed']} | {'yes' if one['promote'] else '**no**'} | {' | '.join(cells)} |"
    for kind in KINDS:
        some = [one["promote"] for one in found if one["kind"] == kind]
        if some:
            low, high = wilson_interval(sum(some), len(some))
            yield f"\n{kind}: {sum(some)} of {len(some)} promoted (95 % {low:.0%} to {high:.0%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--output", type=Path, default=Path("runs/safety"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    output, found = asked.output.resolve(), kept(asked)
    there = {(one["kind"], one["seed"]) for one in found}
    for seed in range(asked.seeds):
        for kind in KINDS:
            if (kind, seed) in there:
                continue
            run = learned(kind, seed, output, asked.steps)
            found.append({"kind": kind, "seed": seed, **judged(run, asked.tasks)})
            print([*rows_of(found[-1:])][2], flush=True)
            write(found, asked)
    write(found, asked)
    print("\n".join(rows_of(found)))


def kept(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """What the results hold, where they are of the same settings."""
    path = asked.results / "safety.json"
    held = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return list(held["runs"]) if held.get("settings") == settings_of(asked) else []


def settings_of(asked: argparse.Namespace) -> dict[str, int]:
    return {"steps": asked.steps, "tasks": asked.tasks}


def write(found: list[dict[str, Any]], asked: argparse.Namespace) -> None:
    """What there is so far."""
    found.sort(key=lambda one: (one["kind"], one["seed"]))
    asked.results.mkdir(parents=True, exist_ok=True)
    settings = settings_of(asked)
    (asked.results / "safety.json").write_text(json.dumps({"settings": settings, "runs": found}, indent=1) + "\n")
    (asked.results / "safety.md").write_text("\n".join(rows_of(found)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
