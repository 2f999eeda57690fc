"""Test a machine with a GPU, and measure the demo on it: ``make gpu``.

    python benchmarks/gpu.py                 # exits with status 2 if the machine has no GPU
    python benchmarks/gpu.py --device cpu    # try the script on a CPU, with results in --results

The script first runs ``tests/marft/trainer/test_gpu.py``: decoding and learning as on a CPU, half precision, GPU idle
time, memory. If MARFT_VLLM names a Python with vLLM, it also runs the vLLM tests. Then it trains the demo for some
steps in float32 and bfloat16, and measures seconds by phase, tokens per second and peak memory. It exits with status 1
if a test failed. Writes results/gpu/<machine>.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import machine
import torch

from marft.cli.handlers import silence_transformers
from marft.config import load_recipe
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train

ROOT = Path(__file__).parents[1]
FILES = ("tests/marft/trainer/test_gpu.py", "tests/marft_serve/test_vllm.py")
NO_GPU = 2
COLUMNS = {
    "seconds/sampling": "sampling, s", "seconds/learning": "learning, s",
    "tokens_per_second/sampling": "sampled, tokens/s", "tokens_per_second/learning": "read while learning, tokens/s",
}  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--results", type=Path, default=machine.RESULTS / "gpu")
    arguments = parser.parse_args(words)
    if arguments.device != "cpu" and not torch.cuda.is_available():
        print(
            "no GPU here: torch finds none "
            f"({'its build has no CUDA' if torch.version.cuda is None else 'is a driver installed?'}). "
            "Run make gpu on a machine with a GPU, or try the script with: python benchmarks/gpu.py --device cpu"
        )
        return NO_GPU
    code, said = tested(arguments.device)
    result = {
        "machine": machine.describe(),
        "memory_bytes": 0 if arguments.device == "cpu" else torch.cuda.get_device_properties(0).total_memory,
        "tests": said,
        "demo": {dtype: demo(arguments.device, dtype, arguments.steps) for dtype in ("float32", "bfloat16")},
    }
    path = save(arguments.results, result)
    print(f"{table(result)}\n{path}")
    return code


def tested(device: str) -> tuple[int, list[str]]:
    """Run the tests; return 0 if all pass, a line per failed or skipped test, and the summary line."""
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *FILES],
        cwd=ROOT, env={**os.environ, "MARFT_GPU": device}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = answer.stdout.splitlines()
    told = [line for line in lines if line.startswith(("FAILED", "ERROR", "SKIPPED"))]
    return int(answer.returncode != 0), [
        *told,
        *[line for line in lines[-1:] if re.search(r"passed|failed|100%", line)],
    ]


def demo(device: str, dtype: str, steps: int) -> dict[str, float]:
    """Train the demo for some steps; return the last step's metrics, and the peak of allocated device memory."""
    silence_transformers()
    with tempfile.TemporaryDirectory() as output:
        words = {
            "device": device, "models.base.dtype": dtype, "training.steps": str(steps), "output": output,
            "evaluation.every": "0", "checkpoints.every": str(steps),
        }  # fmt: skip
        run = load_recipe("demo", [word for key, value in words.items() for word in (f"--{key}", value)])
        folder = RunFolder(Path(run.output) / run.name)
        if device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        train(run, folder)
        last = folder.read_metrics()[-1]
    peak = 0 if device == "cpu" else torch.cuda.max_memory_allocated()
    return {**{name: float(last[name]) for name in COLUMNS if name in last}, "peak_bytes": float(peak)}


def name_of(described: Mapping[str, Any]) -> str:
    """Return a file name for a machine.

    >>> name_of({"device": "NVIDIA H100 80GB HBM3", "processor": "Xeon"})
    'nvidia-h100-80gb-hbm3'
    >>> name_of({"device": "cpu", "processor": "A (B)"})
    'a-b'
    """
    name = described["processor"] if described["device"] == "cpu" else described["device"]
    return re.sub(r"[^a-z0-9]+", "-", str(name).lower()).strip("-")


def table(result: Mapping[str, Any]) -> str:
    about = result["machine"]
    lines = [
        f"{about['device']}, {about['processor']}, torch {about['torch']}",
        "",
        *(f"- {line}" for line in result["tests"]),
        "",
        f"| a step of the demo in | {' | '.join(COLUMNS.values())} | most memory, GiB |",
        f"| --- |{' ---: |' * (len(COLUMNS) + 1)}",
    ]
    for dtype, found in result["demo"].items():
        cells = [f"{found[name]:.2f}" if name in found else "" for name in COLUMNS]
        lines.append(f"| {dtype} | {' | '.join(cells)} | {found['peak_bytes'] / 2**30:.2f} |")
    return "\n".join(lines) + "\n"


def save(folder: Path, result: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name_of(result['machine'])}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    path.with_suffix(".md").write_text(table(result))
    return path.with_suffix(".md")


if __name__ == "__main__":
    sys.exit(main())
