"""A stage of ``gpu.py``: what it is given, and how it reports."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SIMULATED = "simulated"  # device whose tensors are computed on the CPU (tests/simulated_gpu.py)


@dataclass(slots=True)
class Setting:
    """Setting of one stage in its own process.

    Args:
        device: "cuda", "cpu" or "simulated".
        report: file of the stage's results, written after each of them.
        scratch: folder for models and runs, shared by all stages.
        small: True for the shapes of a rehearsal.
        results: results so far.
    """

    device: str
    report: Path
    scratch: Path
    small: bool
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def torch_device(self) -> str:
        """Name of the device for torch and recipes."""
        return "cuda" if self.device == SIMULATED else self.device

    def save(self, **results: Any) -> None:
        """Add results and write all of them at once: a killed stage keeps them."""
        self.results |= results
        temporary = self.report.with_suffix(".part")
        temporary.write_text(json.dumps(self.results))
        temporary.replace(self.report)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Run a part of the stage: save its error under ``name``, and continue after it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  a later part may still work
            self.save(**{name: {"error": describe_error(error)}})


def describe_error(error: BaseException) -> str:
    """Return the type and the first line of an error."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:300]


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device had too little memory; other errors may carry its message."""
    return "out of memory" in str(error).lower()


def seconds_of(work: Callable[[], object], synchronize: Callable[[], object] = lambda: None) -> float:
    """Return the seconds of ``work``, until the device has finished it."""
    synchronize()
    began = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - began
