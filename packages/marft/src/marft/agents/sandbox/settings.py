"""Resource limits for model-written code."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from marft.config.settings import Settings

Limit = Annotated[int, Field(ge=1, le=10**8)]


class SandboxSettings(Settings):
    """Limits of one run. A run that exceeds a limit ends, and the result reports it; nothing else is affected."""

    timeout_seconds: Annotated[float, Field(gt=0, le=1e6)] = 10.0  # timeout in seconds of wall-clock time
    cpu_seconds: Limit = 10  # CPU time of each process, in seconds
    memory_mb: Limit = 512  # memory of all processes and files together, and address space of each process, in MiB
    disk_mb: Limit = 64  # size of all files together, in MiB
    files: Limit = 4096  # maximum files, including folders and links
    open_files: Limit = 64  # maximum open files of each process
    processes: Limit = 16  # maximum processes and threads together
    output_kb: Limit = 256  # maximum size of standard output, and of standard error, in KiB
    # whether to require a jail with namespaces; "none" applies only limits and the filter, on machines without
    # namespaces
    isolation: Literal["required", "none"] = "required"
