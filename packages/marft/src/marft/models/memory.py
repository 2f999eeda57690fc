"""Keep freed memory instead of handing it back to the system.

A forward on a CPU frees and takes megabytes many times over. By default the C library returns such blocks at once and
the kernel hands out fresh, zeroed pages each time, which costs as much as the arithmetic of a small model.
"""

from __future__ import annotations

import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt(3)


def keep_freed_memory() -> bool:
    """Have glibc reuse what this process frees → whether that could be arranged; other C libraries are left alone."""
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_THRESHOLD, 2**30)) and bool(mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
