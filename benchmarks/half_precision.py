"""Compare a bfloat16 base with a float32 one on this processor: rates of matrix products, and seconds of a step.

    python benchmarks/half_precision.py --smollm2 FOLDER      # folder from tools/smollm2.py

The step is that of ``against_trl.py``: completions of 64 tokens, LoRA of rank 8 on all linear layers, GRPO with one
update. It has 4, 8 or 32 completions. The precisions alternate in separate processes, and the fastest step counts.
Writes results/half_precision.json and .md, with rows for each kind of processor.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import machine
import torch
from versus.setting import Setting

DTYPES = ("float32", "bfloat16")
SIZES = ((2, 2), (4, 2), (4, 8))  # prompts, and completions per prompt
INSTRUCTIONS = ("avx2", "avx512_f", "avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
TURNS, STEPS, WARM_UP = 2, 2, 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", required=True, help="folder created by tools/smollm2.py")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    setting = Setting("smollm2", arguments.smollm2, threads=arguments.threads)
    save(arguments.results, {**machine.describe(), "instructions": instructions()} | measure(setting))


def instructions() -> list[str]:
    """Return this processor's instructions for half precision."""
    has = torch.cpu.get_capabilities()
    return [name for name in INSTRUCTIONS if has.get(name)]


def measure(setting: Setting) -> dict[str, Any]:
    rates = {name: machine.matmul_rate(dtype=getattr(torch, name)) / 1e9 for name in DTYPES}
    steps = {}
    for tasks, samples in SIZES:
        sized = replace(setting, tasks=tasks, samples=samples)
        runs = [(name, _process(replace(sized, dtype=name))) for name in TURNS * DTYPES]
        for name in DTYPES:
            steps[f"{tasks * samples} {name}"] = fastest([run for of, run in runs if of == name])
    return {"gflop_per_second": rates, "steps": steps}


def _process(setting: Setting) -> dict[str, Any]:
    """Measure steps in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "setting.json"
        setting.write(given)
        said = subprocess.run(
            [sys.executable, "-m", "versus.marft_steps", str(given), str(STEPS), str(WARM_UP)],
            cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True, check=True,
        ).stdout  # fmt: skip
    measured: dict[str, Any] = json.loads(said.splitlines()[-1])
    return measured


def fastest(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the minimum seconds of each phase over all steps, and the peak memory. Other load can only add time.

    >>> fastest([{"steps": [{"generating": 2.0, "learning": 1.0}, {"generating": 1.5, "learning": 3.0}],
    ...           "peak_memory_mb": 700.0}])
    {'generating': 1.5, 'learning': 1.0, 'peak_memory_mb': 700.0}
    """
    steps = [step for run in runs for step in run["steps"]]
    phases = {name: min(step[name] for step in steps) for name in ("generating", "learning")}
    return {**phases, "peak_memory_mb": max(run["peak_memory_mb"] for run in runs)}


def table(hosts: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a line per processor, precision and number of completions."""
    lines = [
        "| processor | threads | base in | products, GFLOP/s | completions | generating | learning | memory |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for host in hosts.values():
        said = f"{host['processor']} ({', '.join(host['instructions'])})"
        for what, step in host["steps"].items():
            completions, name = what.split()
            lines.append(
                f"| {said} | {host['threads']} | {name} | {host['gflop_per_second'][name]:.0f} | {completions} "
                f"| {step['generating']:.1f} s | {step['learning']:.1f} s | {step['peak_memory_mb'] / 1024:.1f} GiB |"
            )
            said = ""
    return "\n".join(lines) + "\n"


def save(results: Path, result: Mapping[str, Any]) -> None:
    results.mkdir(parents=True, exist_ok=True)
    path = results / "half_precision.json"
    hosts = json.loads(path.read_text()) if path.is_file() else {}
    hosts[f"{result['processor']} {' '.join(result['instructions'])}, {result['threads']} threads"] = result
    path.write_text(json.dumps(hosts, indent=2) + "\n")
    (results / "half_precision.md").write_text(table(hosts))
    print(table(hosts))


if __name__ == "__main__":
    main()
