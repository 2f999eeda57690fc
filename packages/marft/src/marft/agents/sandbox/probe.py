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

SKIPPED_PREFIXES = ("_test", "_ctypes_test", "_tkinter", "xx")  # tests, and windows that a jail could not show
EXTRA_LIBRARIES = ("libgcc_s.so.1",)  # loaded by the C library when a thread is cancelled
DATA_FOLDERS = ("/usr/share/zoneinfo", "/usr/lib/locale")  # read by zoneinfo and locale
PROGRAM_INTERPRETER, SEGMENTS_OFFSET, SEGMENT_SIZE_OFFSET = 3, 32, 54  # offsets and constants in a 64-bit ELF file


class LibraryInfo(ctypes.Structure):
    """Beginning of ``struct dl_phdr_info``."""

    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]


def main() -> None:
    """Print the requirements as JSON."""
    paths = [path for path in sys.path if os.path.isdir(path)]
    for folder in paths:
        for name in os.listdir(folder):
            if name.endswith(".so") and not name.startswith(SKIPPED_PREFIXES):
                load_library(os.path.join(folder, name))
    for name in EXTRA_LIBRARIES:
        load_library(name)
    python = os.path.realpath(sys.executable)
    files = [python, *filter(os.path.isfile, sys.path), *filter(None, [find_loader(python)])]
    top_paths = [path for path in paths if not any(path.startswith(parent + "/") for parent in paths)]
    outside = {os.path.basename(p): os.path.realpath(p) for p in list_libraries() if not p.startswith(tuple(top_paths))}
    requirements = {
        "python": python,
        "libraries": outside,
        "files": {path: os.path.realpath(path) for path in files},
        "folders": {path: os.path.realpath(path) for path in [*top_paths, *filter(os.path.isdir, DATA_FOLDERS)]},
    }
    json.dump(requirements, sys.stdout)


def load_library(library: str) -> None:
    """Load a library into this process."""
    try:
        ctypes.CDLL(library, mode=os.RTLD_LAZY)
    except OSError:  # a library of this module is missing on the machine, and thus in the jail
        pass


def list_libraries() -> list[str]:
    """Return the paths of all shared libraries in this process, under their requested names."""
    libraries = []

    def note(entry: ctypes._Pointer[LibraryInfo], _size: int, _data: int | None) -> int:
        """Store a library's path."""
        name = os.fsdecode(entry.contents.name or b"")
        if name.startswith("/"):
            libraries.append(name)
        return 0

    walk: Callable[..., int] = ctypes.CDLL(None).dl_iterate_phdr
    walk(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(LibraryInfo), ctypes.c_size_t, ctypes.c_void_p)(note), None)
    return libraries


def find_loader(program: str) -> str:
    """Return the path to a program's expected dynamic loader, or "" for a static program."""
    with open(program, "rb") as file:
        header = file.read(64)
        (at,) = struct.unpack_from("=Q", header, SEGMENTS_OFFSET)
        size, count = struct.unpack_from("=HH", header, SEGMENT_SIZE_OFFSET)
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
