"""Seccomp filter (mode 2) for the code's system calls: an allowlist.

The filter is a classic BPF program (the kernel's ``Documentation/userspace-api/seccomp_filter.rst``). It kills a
process that calls through another architecture's entry (``int 0x80``). Calls outside the list, including x32
numbers, fail with "no such call", so that libraries fall back on allowed calls (``clone3`` → ``clone``). For a few
calls, the filter checks one argument.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass

from marft.agents.sandbox.calls import ATTRIBUTES, BY_ARGUMENT, FREE, MACHINES, numbers

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_… constants
X32 = 0x40000000  # numbers from here on belong to a third ABI
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; arguments are little-endian, 8 bytes each
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000  # REFUSE + errno
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06

NEW_NAMESPACES = 0x7E020000  # clone flags: mounts, cgroups, names, IPC, users, processes, network
HUGE_PAGES = 0x40000  # mmap flag; such memory does not count as memory of the process
UNIX = 1


@dataclass(frozen=True, slots=True)
class Check:
    """Rule for one argument: a set of allowed values, or forbidden bits; otherwise the call fails with ``error``."""

    argument: int
    error: int
    one_of: tuple[int, ...] = ()
    without: int = 0


CHECKS = {
    "clone": Check(0, errno.EPERM, without=NEW_NAMESPACES),
    "mmap": Check(3, errno.ENOMEM, without=HUGE_PAGES),
    "socket": Check(0, errno.EAFNOSUPPORT, (UNIX,)),
    "socketpair": Check(0, errno.EAFNOSUPPORT, (UNIX,)),
    "setsockopt": Check(2, errno.ENOPROTOOPT, (2, 16, 20, 21)),  # address reuse, credentials, timeouts
    # duplicates, flags, locks, close-on-exec, reading the size of a pipe; no leases, signals or larger pipes
    "fcntl": Check(1, errno.EINVAL, (*range(8), 36, 37, 38, 1030, 1032)),
    # terminal check and size, number of readable bytes, blocking mode, close-on-exec
    "ioctl": Check(1, errno.ENOTTY, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),
    # parent-death signal, core dumps, names, no new privileges
    "prctl": Check(0, errno.EINVAL, (1, 2, 3, 15, 16, 38, 39)),
}


def program(machine: str) -> bytes:
    """Return the filter for a machine, as an array of ``struct sock_filter``.

    Raises:
        ValueError: the machine's system call numbers are unknown.
    """
    if machine not in MACHINES:
        raise ValueError(f"the calls of {machine} are not known, only those of {' and '.join(MACHINES)}")
    code = [
        _step(LOAD, ARCHITECTURE), _step(EQUAL, ARCHITECTURES[machine], 1, 0), _step(RETURN, KILL),
        _step(LOAD, NUMBER), _step(AT_LEAST, X32, 0, 1), _step(RETURN, REFUSE + errno.ENOSYS),
    ]  # fmt: skip
    for number in numbers(FREE, machine).values():
        code += _case(number, [_step(RETURN, ALLOW)])
    # copying a file works without them, as on a disk without extended attributes
    for number in numbers(ATTRIBUTES, machine).values():
        code += _case(number, [_step(RETURN, REFUSE + errno.ENOTSUP)])
    for name, number in numbers(BY_ARGUMENT, machine).items():
        code += _case(number, _checked(CHECKS[name]))
    return b"".join([*code, _step(RETURN, REFUSE + errno.ENOSYS)])


def _case(number: int, then: list[bytes]) -> list[bytes]:
    return [_step(EQUAL, number, 0, len(then)), *then]


def _checked(check: Check) -> list[bytes]:
    """Return the steps for one argument's low half; the kernel reads no more for these calls."""
    steps = [_step(LOAD, ARGUMENTS + 8 * check.argument)]
    for value in check.one_of:
        steps += _case(value, [_step(RETURN, ALLOW)])
    if check.without:
        steps += [_step(ANY_BIT, check.without, 1, 0), _step(RETURN, ALLOW)]
    return [*steps, _step(RETURN, REFUSE + check.error)]


def _step(operation: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, if_so, if_not, value)
