"""How much model-written code may use."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from marft.config.settings import Settings

Amount = Annotated[int, Field(ge=1)]


class SandboxSettings(Settings):
    """Limits of one run of code. Everything beyond them ends the run, which is reported and harms nothing else."""

    seconds: Annotated[float, Field(gt=0)] = 10.0  # on the clock
    cpu_seconds: Amount = 10  # for each process
    memory_mb: Amount = 512  # address space of each process
    disk_mb: Amount = 64  # of the working folder
    open_files: Amount = 64
    processes: Amount = 16  # and threads, together
    output_kb: Amount = 256  # of standard output and error, each
    isolation: Literal["required", "none"] = "required"  # none: limits alone, on a machine that offers no namespaces
