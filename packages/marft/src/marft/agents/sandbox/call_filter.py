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

AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_… constants
X32_NUMBERS = 0x40000000  # numbers from here on belong to a third ABI
# offsets in struct seccomp_data; arguments are little-endian, 8 bytes each
NUMBER_OFFSET, ARCHITECTURE_OFFSET, ARGUMENTS_OFFSET = 0, 4, 16
ALLOW, RETURN_ERROR, KILL = 0x7FFF0000, 0x00050000, 0x80000000  # RETURN_ERROR + errno
LOAD, EQUAL, AT_LEAST, HAS_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06

NEW_NAMESPACES = 0x7E020000  # clone flags: mounts, cgroups, names, IPC, users, processes, network
HUGE_PAGES = 0x40000  # mmap flag; such memory does not count as memory of the process
UNIX_FAMILY = 1
ARCHITECTURES = ("x86_64", "aarch64")

DATA_CALLS = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69, pwritev 296 70,
preadv2 327 286, pwritev2 328 287, sendfile 40 71, copy_file_range 326 285, lseek 8 62, close 3 57,
close_range 436 436, dup 32 23, dup2 33 -, dup3 292 24, pipe 22 -, pipe2 293 59
"""
FILE_CALLS = """
open 2 -, openat 257 56, creat 85 -, access 21 -, faccessat 269 48, faccessat2 439 439, stat 4 -, fstat 5 80,
lstat 6 -, newfstatat 262 79, statx 332 291, statfs 137 43, fstatfs 138 44, truncate 76 45, ftruncate 77 46,
fallocate 285 47, fadvise64 221 223, fsync 74 82, fdatasync 75 83, flock 73 32, getdents 78 -, getdents64 217 61,
getcwd 79 17, chdir 80 49, fchdir 81 50, mkdir 83 -, mkdirat 258 34, rmdir 84 -, rename 82 -, renameat 264 38,
renameat2 316 276, link 86 -, linkat 265 37, unlink 87 -, unlinkat 263 35, symlink 88 -, symlinkat 266 36,
readlink 89 -, readlinkat 267 78, mknod 133 -, mknodat 259 33, chmod 90 -, fchmod 91 52, fchmodat 268 53,
fchmodat2 452 452, chown 92 -, fchown 93 55, lchown 94 -, fchownat 260 54, umask 95 166, utime 132 -, utimes 235 -,
futimesat 261 -, utimensat 280 88
"""
POLL_CALLS = """
poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -, epoll_create1 291 20, epoll_ctl 233 21,
epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441, eventfd 284 -, eventfd2 290 19, timerfd_create 283 85,
timerfd_settime 286 86, timerfd_gettime 287 87
"""
MEMORY_CALLS = """
brk 12 214, munmap 11 215, mremap 25 216, mprotect 10 226, madvise 28 233, msync 26 227
"""
SOCKET_CALLS = """
bind 49 200, listen 50 201, accept 43 202, accept4 288 242, connect 42 203, getsockname 51 204, getpeername 52 205,
sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, shutdown 48 210, getsockopt 55 209
"""
PROCESS_CALLS = """
fork 57 -, vfork 58 -, execve 59 221, exit 60 93, exit_group 231 94, wait4 61 260, waitid 247 95, kill 62 129,
tkill 200 130, tgkill 234 131, pidfd_open 434 434, pidfd_send_signal 424 424, getpid 39 172, getppid 110 173,
gettid 186 178, getpgid 121 155, setpgid 109 154, getpgrp 111 -, getsid 124 156, setsid 112 157, getuid 102 174,
geteuid 107 175, getgid 104 176, getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158,
capget 125 90, set_tid_address 218 96, set_robust_list 273 99, get_robust_list 274 100, rseq 334 293, futex 202 98,
membarrier 324 283, arch_prctl 158 -, restart_syscall 219 128
"""
TIME_CALLS = """
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigqueueinfo 129 138,
rt_sigsuspend 130 133, rt_sigreturn 15 139, sigaltstack 131 132, pause 34 -, alarm 37 -, getitimer 36 102,
setitimer 38 103, timer_create 222 107, timer_settime 223 110, timer_gettime 224 108, timer_getoverrun 225 109,
timer_delete 226 111, nanosleep 35 101, clock_nanosleep 230 115, clock_gettime 228 113, clock_getres 229 114,
gettimeofday 96 169, time 201 -, times 100 153
"""
SYSTEM_CALLS = """
sched_yield 24 124, sched_getaffinity 204 123, sched_setaffinity 203 122, sched_getparam 143 121,
sched_getscheduler 145 120, sched_get_priority_max 146 125, sched_get_priority_min 147 126,
sched_rr_get_interval 148 127, getpriority 140 141, setpriority 141 140, getcpu 309 168, getrlimit 97 163,
setrlimit 160 164, prlimit64 302 261, getrusage 98 165, sysinfo 99 179, uname 63 160, getrandom 318 278
"""
ALLOWED_CALLS = ",".join(
    (DATA_CALLS, FILE_CALLS, POLL_CALLS, MEMORY_CALLS, SOCKET_CALLS, PROCESS_CALLS, TIME_CALLS, SYSTEM_CALLS)
)
CHECKED_CALLS = """
clone 56 220, fcntl 72 25, ioctl 16 29, mmap 9 222, prctl 157 167, setsockopt 54 208, socket 41 198,
socketpair 53 199
"""
ATTRIBUTE_CALLS = """
getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10, listxattr 194 11, llistxattr 195 12, flistxattr 196 13,
setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16
"""


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


def call_numbers(table: str, architecture: str) -> dict[str, int]:
    """Return the call numbers by name for a machine.

    >>> call_numbers("read 0 63, fork 57 -", "aarch64")
    {'read': 63}
    """
    column = 1 + ARCHITECTURES.index(architecture)
    rows = [row.split() for row in table.replace("\n", " ").split(",")]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}
