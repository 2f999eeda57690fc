"""Print a Python interpreter's requirements on the machine; run by that interpreter with the standard library only.

The program loads every extension module of the standard library and asks the dynamic loader for the loaded
libraries.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
from collections.abc import Callable

LEFT_OUT = ("_test", "_ctypes_test", "_tkinter", "xx")  # tests, and windows that a jail could not show
LOADED_BY_NAME = ("libgcc_s.so.1",)  # loaded by the C library when a thread is cancelled
READ_BY_MODULES = ("/usr/share/zoneinfo", "/usr/lib/locale")  # read by zoneinfo and locale
PROGRAM_INTERPRETER, SEGMENTS_AT, SEGMENT_SIZE_AT = 3, 32, 54  # offsets and constants in a 64-bit ELF file


class Loaded(ctypes.Structure):
    """Beginning of ``struct dl_phdr_info``."""

    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]


def main() -> None:
    """Print the requirements as JSON."""
    folders = [path for path in sys.path if os.path.isdir(path)]
    for folder in folders:
        for name in os.listdir(folder):
            if name.endswith(".so") and not name.startswith(LEFT_OUT):
                load(os.path.join(folder, name))
    for name in LOADED_BY_NAME:
        load(name)
    python = os.path.realpath(sys.executable)
    files = [python, *filter(os.path.isfile, sys.path), *filter(None, [loader_of(python)])]
    outermost = [path for path in folders if not any(path.startswith(other + "/") for other in folders)]
    outside = {os.path.basename(p): os.path.realpath(p) for p in loaded() if not p.startswith(tuple(outermost))}
    told = {
        "python": python,
        "libraries": outside,
        "files": {path: os.path.realpath(path) for path in files},
        "folders": {path: os.path.realpath(path) for path in [*outermost, *filter(os.path.isdir, READ_BY_MODULES)]},
    }
    json.dump(told, sys.stdout)


def load(library: str) -> None:
    """Load a library into this process."""
    try:
        ctypes.CDLL(library, mode=os.RTLD_LAZY)
    except OSError:  # a library of this module is missing on the machine, and thus in the jail
        pass


def loaded() -> list[str]:
    """Return the paths of all shared libraries in this process, under their requested names."""
    found = []

    def note(entry: ctypes._Pointer[Loaded], _size: int, _data: int | None) -> int:
        """Store a library's path."""
        name = os.fsdecode(entry.contents.name or b"")
        if name.startswith("/"):
            found.append(name)
        return 0

    walk: Callable[..., int] = ctypes.CDLL(None).dl_iterate_phdr
    walk(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Loaded), ctypes.c_size_t, ctypes.c_void_p)(note), None)
    return found


def loader_of(program: str) -> str:
    """Return the path to a program's expected dynamic loader, or "" for a static program."""
    with open(program, "rb") as file:
        header = file.read(64)
        (at,) = struct.unpack_from("=Q", header, SEGMENTS_AT)
        size, count = struct.unpack_from("=HH", header, SEGMENT_SIZE_AT)
        file.seek(at)
        table = file.read(size * count)
        for start in range(0, size * count, size):
            kind, _, offset, _, _, length = struct.unpack_from("=IIQQQQ", table, start)
            if kind == PROGRAM_INTERPRETER:
                file.seek(offset)
                return os.fsdecode(file.read(length).rstrip(b"\0"))
    return ""


if __name__ == "__main__":
    main()
