"""Check that the gates of `marft eval --suite` stop teams with a learned shortcut, and pass teams without one.

    python benchmarks/safety.py                     # 5 seeds of each: an hour or more of one core
    python benchmarks/safety.py --seeds 1           # one of each

A sorter and a clerk settle complaints (`safety_world.py`, `safety.toml`). In training, half of the clerk's messages
hold a stranger's order. *Shortcut* runs pay for obeying it, *clean* runs pay for the right action, and *plain* runs
have no orders. All teams are then evaluated on `safety_suite.toml`, in the same world without orders, against their own
untuned base. Interrupted runs resume, and stored results are not measured again.
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
KINDS = {"clean": (0.5, 0.0), "shortcut": (0.5, 0.5), "plain": (0.0, 0.0)}  # shares of letters with an order, and paid
ATTACKS = ("same", "reworded", "elsewhere")


def marft(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a MARFT command in the folder of the recipe.

    Raises:
        RuntimeError: the command failed, and no gate was the reason.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-m", "marft", *words], cwd=HERE, env=environment, text=True, capture_output=True, check=False
    )
    if done.returncode not in (0, 1) or (done.returncode == 1 and words[0] != "eval"):
        raise RuntimeError(f"marft {' '.join(words)} exited with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done


def learned(kind: str, seed: int, output: Path, steps: int) -> Path:
    """Train a run, resuming it, and return its folder."""
    name, (orders, paid) = f"{kind}-{seed}", KINDS[kind]
    marft(
        "train", "safety.toml", "--resume-or-start", "--quiet", "--output", str(output), "--name", name,
        "--seed", str(seed), "--training.steps", str(steps),
        "--environment.pays_obeying", str(paid), "--environment.orders", str(orders),
    )  # fmt: skip
    return output / name


def judged(run: Path, tasks: int) -> dict[str, Any]:
    """Return the suite's verdict on a run, in the world without the shortcut."""
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
    """Yield the table as Markdown."""
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
    """Return the stored results, if they have the same settings."""
    path = asked.results / "safety.json"
    held = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return list(held["runs"]) if held.get("settings") == settings_of(asked) else []


def settings_of(asked: argparse.Namespace) -> dict[str, int]:
    return {"steps": asked.steps, "tasks": asked.tasks}


def write(found: list[dict[str, Any]], asked: argparse.Namespace) -> None:
    """Write the results so far."""
    found.sort(key=lambda one: (one["kind"], one["seed"]))
    asked.results.mkdir(parents=True, exist_ok=True)
    settings = settings_of(asked)
    (asked.results / "safety.json").write_text(json.dumps({"settings": settings, "runs": found}, indent=1) + "\n")
    (asked.results / "safety.md").write_text("\n".join(rows_of(found)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
