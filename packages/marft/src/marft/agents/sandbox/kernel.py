"""Linux kernel calls missing from Python, for the jail; standard library only."""

from __future__ import annotations

import ctypes
import errno
import os

NEW_MOUNT_NAMESPACE, NEW_HOSTNAME_NAMESPACE, NEW_IPC_NAMESPACE = 0x00020000, 0x04000000, 0x08000000
NEW_USER_NAMESPACE, NEW_PID_NAMESPACE, NEW_NETWORK_NAMESPACE = 0x10000000, 0x20000000, 0x40000000
PARENT_DEATH_SIGNAL, SET_SECCOMP, DROP_BOUNDING, SECURE_BITS, ADOPT_ORPHANS, NO_NEW_PRIVILEGES = 1, 22, 24, 28, 36, 38
SECCOMP_FILTER = 2  # the second mode of seccomp
ROOT_IS_NOBODY = 0b101111  # no capabilities for uid 0, none kept after setuid, settings locked
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
KEYCTL = {"x86_64": 250, "aarch64": 219}
JOIN_SESSION_KEYRING = 1

libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def check_result(result: int, name: str = "") -> None:
    """Raise the last call's errno if the call failed.

    Raises:
        OSError: ``result`` is negative.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def unshare(namespaces: int) -> None:
    """Leave namespaces for new ones."""
    check_result(libc.unshare(namespaces), "unshare")


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process."""
    check_result(libc.prctl(option, value, 0, 0, 0), "prctl")


def replace_keyring() -> None:
    """Replace the parent's session keyring, if the kernel has keyrings and permits it."""
    number = KEYCTL.get(os.uname().machine)
    joined = -1 if number is None else libc.syscall(number, JOIN_SESSION_KEYRING, None)
    if joined < 0 and ctypes.get_errno() not in (0, errno.ENOSYS, errno.EPERM, errno.EACCES):
        check_result(joined, "keyring")


def install_filter(program: bytes) -> None:
    """Filter further system calls by this process and its descendants."""
    steps = _Program(len(program) // 8, program)
    check_result(libc.prctl(SET_SECCOMP, SECCOMP_FILTER, ctypes.byref(steps), 0, 0), "filter")
