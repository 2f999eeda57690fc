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

from marft.agents.sandbox.system_calls import ALLOWED_CALLS, ARCHITECTURES, ATTRIBUTE_CALLS, CHECKED_CALLS, call_numbers

AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_… constants
X32_NUMBERS = 0x40000000  # numbers from here on belong to a third ABI
# offsets in struct seccomp_data; arguments are little-endian, 8 bytes each
NUMBER_OFFSET, ARCHITECTURE_OFFSET, ARGUMENTS_OFFSET = 0, 4, 16
ALLOW, RETURN_ERROR, KILL = 0x7FFF0000, 0x00050000, 0x80000000  # RETURN_ERROR + errno
LOAD, EQUAL, AT_LEAST, HAS_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06

NEW_NAMESPACES = 0x7E020000  # clone flags: mounts, cgroups, names, IPC, users, processes, network
HUGE_PAGES = 0x40000  # mmap flag; such memory does not count as memory of the process
UNIX_FAMILY = 1


@dataclass(frozen=True, slots=True)
class Check:
    """Rule for one argument: a set of allowed values, or forbidden bits; otherwise the call fails with ``error``."""

    argument: int
    error: int
    allowed: tuple[int, ...] = ()
    forbidden_bits: int = 0


CHECKS = {
    "clone": Check(0, errno.EPERM, forbidden_bits=NEW_NAMESPACES),
    "mmap": Check(3, errno.ENOMEM, forbidden_bits=HUGE_PAGES),
    "socket": Check(0, errno.EAFNOSUPPORT, (UNIX_FAMILY,)),
    "socketpair": Check(0, errno.EAFNOSUPPORT, (UNIX_FAMILY,)),
    "setsockopt": Check(2, errno.ENOPROTOOPT, (2, 16, 20, 21)),  # address reuse, credentials, timeouts
    # duplicates, flags, locks, close-on-exec, reading the size of a pipe; no leases, signals or larger pipes
    "fcntl": Check(1, errno.EINVAL, (*range(8), 36, 37, 38, 1030, 1032)),
    # terminal check and size, number of readable bytes, blocking mode, close-on-exec
    "ioctl": Check(1, errno.ENOTTY, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),
    # parent-death signal, core dumps, names, no new privileges
    "prctl": Check(0, errno.EINVAL, (1, 2, 3, 15, 16, 38, 39)),
}


def build_filter(architecture: str) -> bytes:
    """Return the filter for a machine, as an array of ``struct sock_filter``.

    Raises:
        ValueError: the machine's system call numbers are unknown.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(f"the calls of {architecture} are not known, only those of {' and '.join(ARCHITECTURES)}")
    code = [
        _instruction(LOAD, ARCHITECTURE_OFFSET),
        _instruction(EQUAL, AUDIT_ARCHITECTURES[architecture], 1, 0),
        _instruction(RETURN, KILL),
        _instruction(LOAD, NUMBER_OFFSET),
        _instruction(AT_LEAST, X32_NUMBERS, 0, 1),
        _instruction(RETURN, RETURN_ERROR + errno.ENOSYS),
    ]
    for number in call_numbers(ALLOWED_CALLS, architecture).values():
        code += _branch(number, [_instruction(RETURN, ALLOW)])
    # copying a file works without them, as on a disk without extended attributes
    for number in call_numbers(ATTRIBUTE_CALLS, architecture).values():
        code += _branch(number, [_instruction(RETURN, RETURN_ERROR + errno.ENOTSUP)])
    for name, number in call_numbers(CHECKED_CALLS, architecture).items():
        code += _branch(number, _check_argument(CHECKS[name]))
    return b"".join([*code, _instruction(RETURN, RETURN_ERROR + errno.ENOSYS)])


def _branch(number: int, steps: list[bytes]) -> list[bytes]:
    return [_instruction(EQUAL, number, 0, len(steps)), *steps]


def _check_argument(check: Check) -> list[bytes]:
    """Return the steps for one argument's low half; the kernel reads no more for these calls."""
    steps = [_instruction(LOAD, ARGUMENTS_OFFSET + 8 * check.argument)]
    for value in check.allowed:
        steps += _branch(value, [_instruction(RETURN, ALLOW)])
    if check.forbidden_bits:
        steps += [_instruction(HAS_BITS, check.forbidden_bits, 1, 0), _instruction(RETURN, ALLOW)]
    return [*steps, _instruction(RETURN, RETURN_ERROR + check.error)]


def _instruction(operation: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, if_so, if_not, value)
