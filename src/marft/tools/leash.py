"""Run a command that ends when the process that started it does: ``python leash.py PARENT COMMAND …``."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

DIE_WITH_PARENT = 1


def main() -> None:
    parent = int(sys.argv[1])
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == parent:  # it may have gone before we asked
        os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
