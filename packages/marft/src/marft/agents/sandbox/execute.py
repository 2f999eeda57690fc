"""Start of the sandboxed program: write its files, set the limits, drop all privileges. Standard library only."""

from __future__ import annotations

import base64
import os
import resource
from typing import TYPE_CHECKING

from marft.agents.sandbox import kernel

if TYPE_CHECKING:
    from typing import Any

NOBODY = 65534
INSIDE = 1000  # uid of nobody in the jail, where the parent is root
FEW = 64  # maximum pending signals and timers
MOST_FILES = 1 << 20  # file descriptors stay below this number unless the process's limit is higher
NO_CORE = 1  # 1 byte, less than any core dump; with 0, the machine's core handler would still start


def execute(order: dict[str, Any], folder: str) -> None:
    """Run the code in place of this process.

    Raises:
        OSError: a step failed; the code has not started.
    """
    lay_out(order, folder)
    isolated = order["limits"]["isolation"] != "none"
    # a lower limit does not close open files
    most_files = max(MOST_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    for what, amount in limits_of(order["limits"]).items():
        resource.setrlimit(what, (amount, amount))
    if isolated:
        drop_rights(order["limits"]["processes"])
    kernel.prctl(kernel.NO_NEW_PRIVILEGES, 1)
    os.closerange(3, most_files)
    if order["filter"]:
        kernel.install_filter(base64.b64decode(order["filter"]))
    environment = {"PATH": "", "HOME": folder, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    if isolated:
        environment["LD_LIBRARY_PATH"] = "/lib"
    python = order["needs"]["python"]
    os.execve(python, [python, "-I", "-S", "-B", order["program"]], environment)


def lay_out(order: dict[str, Any], folder: str) -> None:
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


def limits_of(limits: dict[str, Any]) -> dict[int, int]:
    """Return the kernel's limits for each process, by resource."""
    megabyte = 1 << 20
    return {
        resource.RLIMIT_CPU: limits["cpu_seconds"],
        resource.RLIMIT_AS: limits["memory_mb"] * megabyte,
        resource.RLIMIT_FSIZE: limits["disk_mb"] * megabyte,
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_CORE: NO_CORE,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: FEW,
    }


def drop_rights(processes: int) -> None:
    """Drop capabilities, including after any ``exec``, and become user and group nobody if mapped."""
    for capability in range(64):
        kernel.libc.prctl(kernel.DROP_BOUNDING, capability, 0, 0, 0)
    try:
        os.setgid(INSIDE)
        os.setuid(INSIDE)
    except OSError:  # only our own unprivileged user could be mapped
        kernel.prctl(kernel.SECURE_BITS, kernel.ROOT_IS_NOBODY)
        processes += 2  # the keeper and the init process also belong to this user
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
