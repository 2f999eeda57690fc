"""The filter that the kernel puts every call of the code through: a list of what is allowed (seccomp, mode 2).

A classic BPF program (the kernel's ``Documentation/userspace-api/seccomp_filter.rst``). It kills whoever calls through
another architecture's door (``int 0x80``), answers "no such call" to everything that is not on the list, x32 numbers
included, so that libraries fall back on what is (``clone3`` → ``clone``), and looks at one argument of a few calls.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass

from marft.agents.sandbox.calls import ATTRIBUTES, BY_ARGUMENT, FREE, MACHINES, numbers

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_…
X32 = 0x40000000  # and above: the calls of a third ABI
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; arguments are little-endian, of 8 bytes
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000  # REFUSE + errno
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06

NEW_NAMESPACES = 0x7E020000  # of clone: mounts, cgroups, names, IPC, users, processes, network
HUGE_PAGES = 0x40000  # of mmap: not counted as memory of the process
UNIX = 1


@dataclass(frozen=True, slots=True)
class Check:
    """What one argument must be: one of some values, or without some bits; else the call fails with an error."""

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
    # duplicates, flags, locks, close-on-exec, the size of a pipe (to be read): no leases, signals, larger pipes
    "fcntl": Check(1, errno.EINVAL, (*range(8), 36, 37, 38, 1030, 1032)),
    # is it a terminal, and how large; how much is there to read; block or not; close on exec or not
    "ioctl": Check(1, errno.ENOTTY, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),
    "prctl": Check(0, errno.EINVAL, (1, 2, 3, 15, 16, 38, 39)),  # parent's death, dumps, names, no new privileges
}


def program(machine: str) -> bytes:
    """The filter for a machine, as an array of ``struct sock_filter``.

    Raises:
        ValueError: the calls of this machine are not known.
    """
    if machine not in MACHINES:
        raise ValueError(f"the calls of {machine} are not known, only those of {' and '.join(MACHINES)}")
    code = [
        _step(LOAD, ARCHITECTURE), _step(EQUAL, ARCHITECTURES[machine], 1, 0), _step(RETURN, KILL),
        _step(LOAD, NUMBER), _step(AT_LEAST, X32, 0, 1), _step(RETURN, REFUSE + errno.ENOSYS),
    ]  # fmt: skip
    for number in numbers(FREE, machine).values():
        code += _case(number, [_step(RETURN, ALLOW)])
    for number in numbers(ATTRIBUTES, machine).values():  # copies of files do without them where a disk has none
        code += _case(number, [_step(RETURN, REFUSE + errno.ENOTSUP)])
    for name, number in numbers(BY_ARGUMENT, machine).items():
        code += _case(number, _checked(CHECKS[name]))
    return b"".join([*code, _step(RETURN, REFUSE + errno.ENOSYS)])


def _case(number: int, then: list[bytes]) -> list[bytes]:
    return [_step(EQUAL, number, 0, len(then)), *then]


def _checked(check: Check) -> list[bytes]:
    """Only the low half of an argument: the kernel reads no more of these."""
    steps = [_step(LOAD, ARGUMENTS + 8 * check.argument)]
    for value in check.one_of:
        steps += _case(value, [_step(RETURN, ALLOW)])
    if check.without:
        steps += [_step(ANY_BIT, check.without, 1, 0), _step(RETURN, ALLOW)]
    return [*steps, _step(RETURN, REFUSE + check.error)]


def _step(operation: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, if_so, if_not, value)
