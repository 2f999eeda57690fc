"""Start of the sandboxed program: write its files, set the limits, drop all privileges. Standard library only."""

from __future__ import annotations

import base64
import os
import resource
from typing import TYPE_CHECKING

from marft.agents.sandbox import kernel

if TYPE_CHECKING:
    from typing import Any

HOST_NOBODY_UID = 65534
NOBODY_UID = 1000  # uid of nobody in the jail, where the parent is root
MAX_PENDING_SIGNALS = 64  # maximum pending signals and timers
MAX_FILE_DESCRIPTORS = 1 << 20  # file descriptors stay below this number unless the process's limit is higher
CORE_BYTES = 1  # 1 byte, less than any core dump; with 0, the machine's core handler would still start


def execute(order: dict[str, Any], folder: str) -> None:
    """Run the code in place of this process.

    Raises:
        OSError: a step failed; the code has not started.
    """
    write_files(order, folder)
    isolated = order["limits"]["isolation"] != "none"
    # a lower limit does not close open files
    max_descriptors = max(MAX_FILE_DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    for resource_id, limit in resource_limits(order["limits"]).items():
        resource.setrlimit(resource_id, (limit, limit))
    if isolated:
        drop_privileges(order["limits"]["max_processes"])
    kernel.prctl(kernel.NO_NEW_PRIVILEGES, 1)
    os.closerange(3, max_descriptors)
    if order["filter"]:
        kernel.install_filter(base64.b64decode(order["filter"]))
    environment = {"PATH": "", "HOME": folder, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    if isolated:
        environment["LD_LIBRARY_PATH"] = "/lib"
    python = order["needs"]["python"]
    os.execve(python, [python, "-I", "-S", "-B", order["program"]], environment)


def write_files(order: dict[str, Any], folder: str) -> None:
    """Write the program, its input files and standard input."""
    os.chdir(folder)
    with open(".stdin", "w+", encoding="utf-8") as file:
        file.write(order["stdin"])
        file.flush()
        file.seek(0)
        os.dup2(file.fileno(), 0)
    os.unlink(".stdin")
    for name, content in order["given"].items():
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        with open(name, "wb") as data:
            data.write(base64.b64decode(content))
    with open(order["program"], "w", encoding="utf-8") as file:
        file.write(order["code"])


def resource_limits(limits: dict[str, Any]) -> dict[int, int]:
    """Return the kernel's limits for each process, by resource."""
    megabyte = 1 << 20
    return {
        resource.RLIMIT_CPU: limits["cpu_seconds"],
        resource.RLIMIT_AS: limits["memory_mb"] * megabyte,
        resource.RLIMIT_FSIZE: limits["disk_mb"] * megabyte,
        resource.RLIMIT_NOFILE: limits["max_open_files"],
        resource.RLIMIT_CORE: CORE_BYTES,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: MAX_PENDING_SIGNALS,
    }


def drop_privileges(processes: int) -> None:
    """Drop capabilities, including after any ``exec``, and become user and group nobody if mapped."""
    for capability in range(64):
        kernel.libc.prctl(kernel.DROP_BOUNDING, capability, 0, 0, 0)
    try:
        os.setgid(NOBODY_UID)
        os.setuid(NOBODY_UID)
    except OSError:  # only our own unprivileged user could be mapped
        kernel.prctl(kernel.SECURE_BITS, kernel.ROOT_IS_NOBODY)
        processes += 2  # the keeper and the init process also belong to this user
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
