"""Become the program: lay out its files, take on the limits, give up all rights. Standard library alone."""

from __future__ import annotations

import base64
import os
import resource
from typing import TYPE_CHECKING

from marft.agents.sandbox import kernel

if TYPE_CHECKING:
    from typing import Any

NOBODY = 65534
INSIDE = 1000  # nobody's number in the jail, where the parent is root
FEW = 64  # signals and timers that wait
MOST_FILES = 1 << 20  # no process has a file of a higher number, unless its limit says so
NO_CORE = 1  # byte: less than any core; with 0 a handler of the machine would still be started


def execute(order: dict[str, Any], folder: str) -> None:
    """Run the code in place of this process.

    Raises:
        OSError: something could not be done; the code has not been started.
    """
    lay_out(order, folder)
    isolated = order["limits"]["isolation"] != "none"
    most_files = max(MOST_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])  # a new limit closes nothing
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
    """The program, the files that come with it, and standard input."""
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
    """What the kernel limits for each process."""
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
    """No capabilities, now or after any ``exec``; nobody's user and group where they could be mapped."""
    for capability in range(64):
        kernel.libc.prctl(kernel.DROP_BOUNDING, capability, 0, 0, 0)
    try:
        os.setgid(INSIDE)
        os.setuid(INSIDE)
    except OSError:  # only our own user could be mapped, which was no root outside
        kernel.prctl(kernel.SECURE_BITS, kernel.ROOT_IS_NOBODY)
        processes += 2  # the keeper and the first process are that user's too
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
