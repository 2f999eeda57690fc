"""How much model-written code may use."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from marft.config.settings import Settings

Amount = Annotated[int, Field(ge=1, le=10**8)]


class SandboxSettings(Settings):
    """Limits of one run of code. Everything beyond them ends the run, which is reported and harms nothing else."""

    seconds: Annotated[float, Field(gt=0, le=1e6)] = 10.0  # on the clock
    cpu_seconds: Amount = 10  # for each process
    memory_mb: Amount = 512  # of all processes and files together; also address space of each process
    disk_mb: Amount = 64  # of all files together
    files: Amount = 4096  # with folders and links
    open_files: Amount = 64  # of each process
    processes: Amount = 16  # and threads, together
    output_kb: Amount = 256  # of standard output and error, each
    isolation: Literal["required", "none"] = "required"  # none: limits and filter alone, where there are no namespaces
