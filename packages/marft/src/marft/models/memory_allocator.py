"""Memory reuse: glibc keeps freed memory instead of returning it to the system.

A CPU forward frees and allocates megabytes many times. By default, the C library returns such blocks at once, and the
kernel provides new zeroed pages each time. That costs as much as the arithmetic of a small model.
"""

from __future__ import annotations

import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # options of glibc's mallopt(3)


def keep_freed_memory() -> bool:
    """Configure glibc to reuse freed memory; return whether it worked. Other C libraries stay unchanged."""
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_THRESHOLD, 2**30)) and bool(mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
