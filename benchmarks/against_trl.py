"""Compare a GRPO training step of MARFT with one of TRL: same model, prompts, lengths, threads and LoRA.

    python benchmarks/against_trl.py --smollm2 FOLDER     # SmolLM2 (folder from tools/smollm2.py) and a random model
    python benchmarks/against_trl.py --models random      # only the small random model of throughput.py
    python benchmarks/against_trl.py --curves --smollm2 FOLDER    # reward on sums, over tokens and over seconds

The first call installs TRL into its own environment (``--trl``). Each measurement runs in its own process, and the two
sides alternate. Finished measurements stay in ``--output`` and are not repeated. All completions have the same length,
because no token ends them. Both sides use torch's default for waiting threads (``GOMP_SPINCOUNT=300000``), which suits
an otherwise idle machine. TRL does not measure what ``guards.probes`` measures. MARFT therefore runs once without these
measurements, and once with them. Writes results/against_trl.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import machine
import numpy as np
from matplotlib.figure import Figure
from recording import save_plot, tidy
from throughput import save_model, word_tokenizer
from versus.setting import Setting

HERE = Path(__file__).parent
TRL = ("trl==1.16.0", "torch==2.13.0", "transformers==5.23.0", "peft==0.21.2", "accelerate==1.15.0")
SIDES = {"marft": "MARFT", "marft_probes": "MARFT with probes", "trl": "TRL 1.16"}
CURVES = ("marft", "trl")  # sides of the curves
PROBES = 4  # the default of guards.probes
VOCABULARY = 4096  # tokens of the small random model
PHASES = ("generating", "learning")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--smollm2", default="", help="folder created by tools/smollm2.py")
    parser.add_argument("--models", default="smollm2,random")
    parser.add_argument("--repeats", type=int, default=3, help="processes per side, alternating")
    parser.add_argument("--steps", type=int, default=1, help="measured steps per process, after two warm-up steps")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--trl", type=Path, default=Path("runs/trl"), help="folder of TRL's environment")
    parser.add_argument("--output", type=Path, default=Path("runs/against_trl"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    parser.add_argument(
        "--at-most", type=int, default=10**6, help="maximum measurements of this call; the next call resumes"
    )
    parser.add_argument("--curves", type=int, nargs="?", const=20, default=0, help="training steps of both sides")
    arguments = parser.parse_args()
    python = trl_python(arguments.trl)
    arguments.output.mkdir(parents=True, exist_ok=True)
    if arguments.curves:
        learn(arguments, python)
        return
    settings = [setting_of(name, arguments) for name in arguments.models.split(",")]
    left = arguments.at_most
    for setting in settings:
        for repeat in range(arguments.repeats):
            for side in SIDES:
                path = arguments.output / f"{setting.name}-{side}-{repeat}.json"
                if path.is_file() or not left:
                    continue
                row = measured(side, setting, arguments.output, python, arguments.steps)
                path.write_text(json.dumps({**row, "setting": asdict(setting)}) + "\n")
                left -= 1
                print(f"{setting.name:8s} {side:5s} {_said(row)}", flush=True)
    save(arguments.results, [summary(setting, rows_of(setting, arguments.output)) for setting in settings])


def learn(arguments: argparse.Namespace, python: Path) -> None:
    """Train both sides on sums, with the same prompts in the same order. Finished sides are not trained again."""
    setting = replace(setting_of("smollm2", arguments), name="sums", tasks=16, samples=4, tokens=24, ends=True)
    for side in CURVES:
        path = arguments.output / f"sums-{side}-0.json"
        if not path.is_file():
            row = measured(side, setting, arguments.output, python, arguments.curves, warm_up=0)
            path.write_text(json.dumps({**row, "setting": asdict(setting)}) + "\n")
    found = rows_of(setting, arguments.output)
    curves = {side: found[side][0]["steps"] for side in CURVES}
    whole = {"machine": machine.describe(), "trl": TRL, "setting": asdict(setting) | {"model": "smollm2"}}
    arguments.results.mkdir(parents=True, exist_ok=True)
    path = arguments.results / "against_trl_curves.json"
    path.write_text(json.dumps({**whole, "curves": curves}, indent=2) + "\n")
    save_plot(arguments.results, "against_trl_curves", plot(curves))
    print(f"saved {path} and its plot")


def plot(curves: Mapping[str, Sequence[Mapping[str, float]]]) -> Figure:
    """Plot the mean reward of each step over sampled tokens and over elapsed seconds, both at the end of the step."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    over_tokens, over_seconds = figure.subplots(1, 2, sharey=True)
    for side, steps in curves.items():
        rewards = [step["reward"] for step in steps]
        seconds = np.cumsum([sum(step[phase] for phase in PHASES) for step in steps])
        over_tokens.plot(np.cumsum([step["tokens"] for step in steps]), rewards, label=SIDES[side], linewidth=1.4)
        over_seconds.plot(seconds, rewards, label=SIDES[side], linewidth=1.4)
    for axes, what in ((over_tokens, "sampled tokens"), (over_seconds, "seconds")):
        axes.set_xlabel(what, fontsize=8)
        axes.legend(frameon=False, fontsize=8)
        tidy(axes)
    over_tokens.set_title("sums: reward", fontsize=10, loc="left")
    return figure


def setting_of(name: str, arguments: argparse.Namespace) -> Setting:
    """Return the setting of a model; create the random model."""
    if name == "smollm2":
        if not arguments.smollm2:
            raise SystemExit("--smollm2 FOLDER is missing: create the folder with python tools/smollm2.py FOLDER")
        return Setting(name, str(Path(arguments.smollm2).absolute()), threads=arguments.threads)
    folder = (arguments.output / "random").absolute()
    save_model(folder, VOCABULARY)
    word_tokenizer(VOCABULARY).save_pretrained(folder)
    return Setting(name, str(folder), threads=arguments.threads, words=True)


def trl_python(folder: Path) -> Path:
    """Return the Python of TRL's environment; create the environment if it is missing."""
    python = folder / "bin" / "python"
    mark = folder / "made-of.txt"
    if not mark.is_file() or mark.read_text().split() != list(TRL):
        print(f"installing {' '.join(TRL)} to {folder}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *TRL], check=True)
        mark.write_text("\n".join(TRL) + "\n")
    return python


def measured(side: str, setting: Setting, output: Path, python: Path, steps: int, warm_up: int = 2) -> dict[str, Any]:
    """Measure one side in its own process, and return its figures."""
    described = output / f"{setting.name}-{side}.setting"
    replace(setting, probes=PROBES if side == "marft_probes" else 0).write(described)
    if side in ("marft", "marft_probes"):
        command: list[Any] = [sys.executable, "-m", "versus.marft_steps", described.absolute(), str(steps)]
    else:
        prompts = (output / f"{setting.name}-prompts.json").absolute()
        command = [python.absolute(), "-m", "versus.trl_steps", described.absolute(), prompts, str(steps)]
    command.append(str(warm_up))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MKL_", "GOMP_"))}
    environment |= {"GOMP_SPINCOUNT": "300000", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "prompts" in row:
        (output / f"{setting.name}-prompts.json").write_text(json.dumps(row.pop("prompts")))
    return row


def rows_of(setting: Setting, output: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the stored measurements, by side."""
    found = {side: sorted(output.glob(f"{setting.name}-{side}-*.json")) for side in SIDES}
    rows = {side: [json.loads(path.read_text()) for path in paths] for side, paths in found.items()}
    for row in (row for of_side in rows.values() for row in of_side):
        if row.pop("setting") != asdict(setting):
            raise SystemExit(f"{output} was measured with other settings; delete it, or use another --output")
    return rows


def summary(setting: Setting, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return medians over all steps of all processes per side, and TRL's time as a multiple of MARFT's."""
    sides = {}
    for side, mine in rows.items():
        steps = [step for row in mine for step in row["steps"]]
        if not steps:
            continue
        seconds = [sum(step[phase] for phase in PHASES) for step in steps]
        sides[side] = {
            "steps": len(steps),
            "seconds": float(np.median(seconds)),
            "fastest": min(seconds),
            "slowest": max(seconds),
            **{phase: float(np.median([step[phase] for step in steps])) for phase in PHASES},
            "peak_memory_mb": max(row["peak_memory_mb"] for row in mine),
        }
    ratio = sides["trl"]["seconds"] / sides["marft"]["seconds"] if {"trl", "marft"} <= sides.keys() else None
    return {"setting": asdict(setting) | {"model": setting.name}, "sides": sides, "ratio": ratio}


def table(summaries: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| model | | seconds a step | generating | learning | s a completion | ms a token | peak memory | × MARFT |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in summaries:
        setting = one["setting"]
        completions = setting["tasks"] * setting["samples"]
        tokens = completions * setting["tokens"]
        for side, row in one["sides"].items():
            cells = [
                setting["name"], SIDES[side],
                f"{row['seconds']:.3g} ({row['fastest']:.3g} to {row['slowest']:.3g})",
                *(f"{row[phase]:.3g}" for phase in PHASES), f"{row['seconds'] / completions:.3g}",
                f"{1000 * row['seconds'] / tokens:.3g}", f"{row['peak_memory_mb'] / 1000:.1f} GB",
                f"{row['seconds'] / one['sides']['marft']['seconds']:.2f}" if "marft" in one["sides"] else "",
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def save(results: Path, summaries: Sequence[Mapping[str, Any]]) -> None:
    results.mkdir(parents=True, exist_ok=True)
    whole = {"machine": machine.describe(), "trl": TRL, "models": list(summaries)}
    (results / "against_trl.json").write_text(json.dumps(whole, indent=2) + "\n")
    (results / "against_trl.md").write_text(table(summaries))
    print(table(summaries))


def _said(row: Mapping[str, Any]) -> str:
    return "; ".join(" + ".join(f"{step[phase]:.2f} s {phase}" for phase in PHASES) for step in row["steps"])


if __name__ == "__main__":
    main()
