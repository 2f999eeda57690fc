"""The stages of ``gpu.py``, in the order of their value."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from accelerator.demo import SEEDS
from accelerator.runner import Stage
from accelerator.source import ROOT
from accelerator.stage import SIMULATED, Setting, describe_error, seconds_of

MACHINE = Stage("machine", 120, alone=True)  # torch may be read from a slow disk
STAGES = (
    Stage("tests", 150),
    *(Stage(f"demo-{seed}", 180) for seed in SEEDS),
    Stage("parity", 120),
    Stage("speed", 150, alone=True),
    Stage("launches", 90, alone=True),
    Stage("four-bits", 120, alone=True),
)
TESTS = ("tests/marft/trainer/test_gpu.py", "tests/marft_serve/test_vllm.py")
SIMULATED_PYTEST = """\
import sys, peft, pytest
from tests.simulated_gpu import simulated_gpu
with simulated_gpu():
    sys.exit(pytest.main(sys.argv[1:]))
"""
PACKAGES = (
    "torch", "triton", "transformers", "tokenizers", "peft", "safetensors", "numpy", "pydantic", "scipy", "pyarrow",
    "bitsandbytes",
)  # fmt: skip


def run_stage(name: str, setting: Setting) -> None:
    """Run a stage in this process, which ends with its parent."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    if setting.device == SIMULATED:
        sys.path.insert(0, str(ROOT))
        import_module("peft")  # imports bitsandbytes, which asks the CUDA build of torch for more than is simulated
        with import_module("tests.simulated_gpu").simulated_gpu():
            _functions()[name](setting)
    else:
        _functions()[name](setting)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _functions() -> dict[str, Callable[[Setting], None]]:
    """Return the function of each stage; each imports what it needs, so that a missing package stops no other."""
    return {
        "machine": describe_machine,
        "tests": run_tests,
        **{f"demo-{seed}": partial(_call, "demo", "train_demo", seed=seed) for seed in SEEDS},
        "parity": partial(_call, "parity", "compare_with_cpu"),
        "speed": partial(_call, "speed", "measure_speed"),
        "launches": partial(_call, "launches", "count_launches"),
        "four-bits": partial(_call, "speed", "measure_speed", quantization="nf4"),
    }


def _call(module: str, function: str, setting: Setting, **arguments: Any) -> None:
    getattr(import_module(f"accelerator.{module}"), function)(setting, **arguments)


def describe_machine(setting: Setting) -> None:
    """Save what the machine is, and the rates of its GPU; report why no GPU is usable."""
    setting.save(versions={name: found for name in PACKAGES if (found := _version(name))}, glibc=platform.libc_ver()[1])
    try:
        import machine
        import torch
    except ImportError as error:
        setting.save(no_gpu=f"torch cannot be imported: {describe_error(error)}")
        return
    if setting.torch_device == "cuda" and not torch.cuda.is_available():
        build = "its build has no CUDA" if torch.version.cuda is None else "is a driver installed?"
        setting.save(no_gpu=f"torch finds none ({build})")
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = shutil.disk_usage(setting.scratch).free
    setting.save(machine=machine.describe(), memory_gib=memory / 2**30, scratch_free_gib=free / 2**30)
    if setting.torch_device != "cuda":
        return
    setting.save(driver=query_driver())
    properties = torch.cuda.get_device_properties(0)
    setting.save(gpu_memory_bytes=properties.total_memory, multiprocessors=properties.multi_processor_count)
    with setting.part("rates"):
        setting.save(rates=measure_rates(setting.small))


def query_driver() -> str:
    """Return the driver's version and the compute mode; "" without nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=driver_version,compute_mode", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=False, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def measure_rates(small: bool) -> dict[str, float]:
    """Return the reached rates: products in bfloat16 and float32, copies in memory, and seconds of a launch."""
    import torch

    size, wait = 256 if small else 8192, torch.cuda.synchronize
    rates: dict[str, float] = {}
    for dtype, name in ((torch.bfloat16, "bfloat16_flops"), (torch.float32, "float32_flops")):
        a, b = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
        rates[name] = 2 * size**3 / min(seconds_of(lambda a=a, b=b: a @ b, wait) for _ in range(8))  # type: ignore[misc]
    data = torch.empty(2**20 if small else 2**31, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(data)
    rates["copy_bytes_per_second"] = (
        2 * data.numel() / min(seconds_of(lambda: target.copy_(data), wait) for _ in range(8))
    )
    number = torch.zeros(1, device="cuda")
    rates["launch_seconds"] = seconds_of(lambda: [number.add_(1) for _ in range(1000)], wait) / 1000
    return rates


def run_tests(setting: Setting) -> None:
    """Run the tests of a GPU; save the failed and skipped ones and the summary, and fail if one failed."""
    run = ["-c", SIMULATED_PYTEST] if setting.device == SIMULATED else ["-m", "pytest"]
    options = ["-p", "no:cacheprovider", "-vv", "-rfEs", "--tb=short"]
    done = subprocess.run(
        [sys.executable, *run, *options, *TESTS], cwd=ROOT,
        env={**os.environ, "MARFT_GPU": setting.torch_device, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    print(done.stdout)
    lines = done.stdout.splitlines()
    told = [line[:400] for line in lines if line.startswith(("FAILED", "ERROR", "SKIPPED"))]
    setting.save(passed=sum(" PASSED " in f"{line} " for line in lines), lines=told, status_of_pytest=done.returncode)
    if done.returncode:
        raise SystemExit(1)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def name_of(machine: dict[str, Any]) -> str:
    """Return a file name for a machine.

    >>> name_of({"device": "NVIDIA H100 80GB HBM3", "processor": "Xeon"})
    'nvidia-h100-80gb-hbm3'
    >>> name_of({"device": "cpu", "processor": "A (B)"})
    'a-b'
    """
    name = machine["processor"] if machine["device"] == "cpu" else machine["device"]
    return re.sub(r"[^a-z0-9]+", "-", str(name).lower()).strip("-")
