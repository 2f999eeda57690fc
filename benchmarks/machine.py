"""Description of the machine (processor, cores, float32 matrix rate for floors), and measurement of resources."""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def matmul_rate(size: int = 2048, seconds: float = 1.5, dtype: torch.dtype = torch.float32) -> float:
    """Return the best matrix-multiplication rate of several tries, in operations per second."""
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    best, began = float("inf"), time.perf_counter()
    while time.perf_counter() - began < seconds:
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def describe() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


class Watch(threading.Thread):
    """Thread that records the peak memory, threads and open files of this process (Linux)."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.done = footprint(), threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.02):
            self.most = {what: max(value, self.most[what]) for what, value in footprint().items()}

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.join()


def footprint() -> dict[str, int]:
    """Return the current resident memory, threads and open files of this process (Linux)."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "memory_mb": int(status["VmRSS"].split()[0]) // 1024,
        "threads": int(status["Threads"]),
        "files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
    }


def save(name: str, result: Any) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
