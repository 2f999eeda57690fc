"""Test a machine with a GPU, and measure MARFT on it: ``make gpu``.

    python benchmarks/gpu.py                         # exits with status 2 if the machine has no GPU
    python benchmarks/gpu.py --stages tests,parity   # some stages
    python benchmarks/gpu.py --device cpu            # rehearse all stages on a CPU, with small shapes
    python benchmarks/gpu.py --device simulated      # the same with tensors that say they are on "cuda"
    python benchmarks/gpu.py --collect-wheels build/wheels --python python3.12
    python benchmarks/gpu.py --reference             # train the demo on a CPU: the figures to compare with

The script runs from source: the machine needs Python 3.11, torch, transformers, peft, scipy, pyarrow and matplotlib.
What else is missing comes from wheels, collected elsewhere with ``--collect-wheels`` (by default in ``build/wheels``).

Each stage is a process of its own with a time limit, and all stages together have ``--budget`` seconds. Results are
written whenever a stage reports one, so a killed run keeps them, and later runs of other stages add to them:

- ``tests``: the tests of a GPU.
- ``demo-0`` to ``demo-2``: does the demo learn as on a CPU?
- ``parity``: log-probabilities and gradients of SmolLM2's shape, against the CPU's.
- ``speed``: a team on Qwen2.5-3B's shape, beside ``marft plan``.
- ``launches``: kernels of a step, and the share of time the GPU works.
- ``four-bits``: speed of the same team on a base in 4 bits, with bitsandbytes.

Exits with status 1 if a stage failed. Writes results/gpu/<machine>.json and .md, and the same with a log to the folder
that the variable OUT names.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from accelerator import demo
from accelerator.runner import Runner
from accelerator.source import ROOT, WHEELS, SourceError, collect_wheels, prepare
from accelerator.stage import Setting
from accelerator.stages import MACHINE, STAGES, name_of, run_stage
from accelerator.tables import table

RESULTS = ROOT / "benchmarks" / "results" / "gpu"
MEMORY_DISK = Path("/dev/shm")  # where the random models lie, if there is room
NO_GPU, SCRATCH_BYTES = 2, 16e9
MAX_JOBS, CORES_PER_JOB, SLOW = 5, 2, 20
MAX_LOG = 8_000_000  # characters


def main(words: Sequence[str] | None = None) -> int:
    arguments = parse(words)
    if arguments.stage:
        is_small = arguments.device != "cuda" and not arguments.reference
        run_stage(arguments.stage, Setting(arguments.device, arguments.report, arguments.scratch, is_small))
        return 0
    if arguments.collect_wheels:
        try:
            collect_wheels(arguments.collect_wheels, arguments.python)
        except SourceError as error:
            sys.exit(f"gpu.py: {error}")
        return 0
    signal.signal(signal.SIGTERM, _stop)
    with tempfile.TemporaryDirectory(prefix="marft-gpu-", dir=scratch_folder(), ignore_cleanup_errors=True) as scratch:
        return measure(arguments, Path(scratch))


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [stage.name for stage in STAGES]
    parser.add_argument("--device", choices=("cuda", "cpu", "simulated"), default="cuda")
    parser.add_argument("--stages", default=",".join(names), help="stages to run, separated by commas")
    parser.add_argument("--budget", type=float, default=420.0, help="seconds for all stages on a GPU")
    parser.add_argument("--jobs", type=int, default=0, help="concurrent stages, of those that measure no time")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="folder of wheels for missing packages")
    parser.add_argument("--collect-wheels", type=Path, metavar="FOLDER", help="download these wheels, and do no more")
    parser.add_argument("--python", default="python3.12", help="Python with pip, of the version on the GPU machine")
    parser.add_argument("--reference", action="store_true", help="train the demo on this CPU, and do no more")
    for hidden in ("--stage", "--report", "--scratch"):  # of a stage's process
        parser.add_argument(hidden, type=str if hidden == "--stage" else Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    arguments.chosen = [stage for stage in STAGES if stage.name in arguments.stages.split(",")]
    if unknown := set(arguments.stages.split(",")) - set(names):
        parser.error(f"--stages: no stage is called {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if arguments.reference:
        arguments.device = "cpu"
        arguments.chosen = [stage for stage in STAGES if stage.name.startswith("demo-")]
    if arguments.device != "cuda":  # a rehearsal takes the time that it takes
        arguments.budget = math.inf
        arguments.chosen = [replace(stage, seconds=SLOW * stage.seconds) for stage in arguments.chosen]
    return arguments


def measure(arguments: argparse.Namespace, scratch: Path) -> int:
    """Run all stages; return the exit status."""
    jobs = arguments.jobs or (
        min(MAX_JOBS, max(1, (os.cpu_count() or 1) // CORES_PER_JOB)) if arguments.device == "cuda" else 1
    )
    runner = Runner(
        lambda name, report: command(arguments, scratch, name, report), prepare(scratch, arguments.wheels), scratch,
        time.monotonic() + arguments.budget, jobs, lambda _: None,
    )  # fmt: skip
    found = runner.run([replace(MACHINE, seconds=MACHINE.seconds * (1 if arguments.device == "cuda" else SLOW))])[
        "machine"
    ]
    if "no_gpu" in found:
        print(f"no GPU here: {found['no_gpu']}. Run make gpu on a machine with a GPU, or try the script with: "
              "python benchmarks/gpu.py --device cpu")  # fmt: skip
        return NO_GPU
    if "Exclusive" in found.get("driver", ""):  # the GPU takes one process at a time
        runner.jobs = 1
    runner.on_change = lambda results: save(arguments, scratch, results)
    runner.on_change(runner.results)
    try:
        results = runner.run(arguments.chosen)
    except KeyboardInterrupt:
        print("interrupted: what the stages have reported is saved")
        return 1
    if arguments.reference:
        return save_reference(results)
    print(save(arguments, scratch, results))
    return int(any(result["status"] != "done" for result in results.values()))


def command(arguments: argparse.Namespace, scratch: Path, name: str, report: Path) -> list[str]:
    """Return the command of a stage's process."""
    words = [sys.executable, __file__, "--stage", name, "--report", str(report), "--scratch", str(scratch)]
    return [*words, "--device", arguments.device, *(["--reference"] if arguments.reference else [])]


def save(arguments: argparse.Namespace, scratch: Path, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Write all results so far, and the log of all stages; return the table."""
    about = results["machine"].get("machine")
    name = name_of(about) if about else "unknown"
    results = {**read_stages(arguments.results / f"{name}.json"), **results}
    compared = demo.compare([found for stage, found in results.items() if stage.startswith("demo-")])
    text = table(results, compared)
    folders = [arguments.results, *([Path(os.environ["OUT"])] if os.environ.get("OUT") else [])]
    for folder in folders if not arguments.reference else []:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write(folder / f"{name}.json", json.dumps({**results, "demo": compared}, indent=2) + "\n")
            write(folder / f"{name}.md", text)
            if folder != arguments.results:
                logs = (f"== {log.stem}\n{log.read_text(errors='replace')}\n" for log in sorted(scratch.glob("*.log")))
                write(folder / "gpu-log.txt", "".join(logs)[-MAX_LOG:])
        except OSError as error:  # no space: the results are still printed at the end
            print(f"{folder}: {error.strerror}", file=sys.stderr)
    return text


def write(path: Path, text: str) -> None:
    """Replace a file at once: without space, the earlier one stays."""
    temporary = path.with_suffix(".part")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_stages(path: Path) -> dict[str, dict[str, Any]]:
    """Return the stages in a file of results; none if there is no such file."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {stage.name: found[stage.name] for stage in (MACHINE, *STAGES) if stage.name in found}


def save_reference(results: Mapping[str, Mapping[str, Any]]) -> int:
    """Write the demo's results on this CPU, to which those of a GPU are compared."""
    rows = [found for name, found in results.items() if name.startswith("demo-")]
    if any(row["status"] != "done" for row in rows):
        return 1
    RESULTS.mkdir(parents=True, exist_ok=True)
    reference = {"machine": results["machine"]["machine"], "rows": rows}
    demo.REFERENCE.write_text(json.dumps(reference, indent=2) + "\n")
    print(f"{demo.REFERENCE}: {', '.join(format(row['success'], '.1%') for row in rows)}")
    return 0


def scratch_folder() -> Path | None:
    """Return the folder for models and runs: in memory, if there is room; None for the usual one."""
    try:
        return MEMORY_DISK if shutil.disk_usage(MEMORY_DISK).free > SCRATCH_BYTES else None
    except OSError:
        return None


def _stop(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    """End as an interrupt does: kill the stages, and keep their reports."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
