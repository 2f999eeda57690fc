"""Root folder of a jail: Python's files read-only, and empty writable folders.

All of it is in memory and in a mount namespace of its own, and disappears with the last process. The machine's
folders stay unchanged.
"""

from __future__ import annotations

import os
import struct

from marft.agents.sandbox.kernel import PIVOT_ROOT, check, libc

READ_ONLY, NO_SUID, NO_DEVICES, NO_PROGRAMS, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2
MOUNT_SETATTR, HERE, WHOLE_TREE = 442, -100, 0x8000  # Linux 5.12
STAGE = "/tmp"  # exists on every machine; hidden in the jail's mounts only
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
NEVER_SHOWN = ("/", "/etc", "/home", "/root", "/var", "/tmp", "/usr")
PACKAGES = ("site-packages", "dist-packages")
LIBRARIES = "/lib"  # every loader searches here; /lib64 is a link to it


def build(folder: str, needs: dict[str, object], disk_mb: int, files: int) -> None:
    """Build a root with an empty working folder, and move there permanently."""
    os.umask(0o022)
    mount("none", "/", "", PRIVATE | RECURSIVE, "")
    mount("tmpfs", STAGE, "tmpfs", NO_SUID | NO_DEVICES, "size=1m,mode=755")
    for name in ("old", "new"):
        os.mkdir(f"{STAGE}/{name}")
    pivot(STAGE, f"{STAGE}/old")
    os.chdir("/")
    mount("tmpfs", "/new", "tmpfs", NO_SUID | NO_DEVICES, "size=1m,mode=755")
    for device in DEVICES:
        make_file("/new" + device)
        mount("/old" + device, "/new" + device, "", BIND, "")
    make_space((folder, "/tmp", "/dev/shm"), disk_mb, files)
    show_python(needs)  # Python may be installed below /tmp
    os.chdir("/new")
    pivot(".", ".")
    check(libc.umount2(b".", DETACH), "old root")
    os.chdir("/")
    mount("none", "/", "", REMOUNT | READ_ONLY | NO_SUID | NO_DEVICES, "")


def show_python(needs: dict[str, object]) -> None:
    """Mount the interpreter, its shared libraries by name, and the standard library without installed packages.

    Raises:
        OSError: Python is in a folder that must not be shown.
    """
    os.mkdir("/new" + LIBRARIES)
    os.symlink(LIBRARIES[1:], "/new/lib64")
    for name, source in dict(needs["libraries"]).items():  # type: ignore[call-overload]
        show(source, f"{LIBRARIES}/{name}")
    for name, source in dict(needs["files"]).items():  # type: ignore[call-overload]
        show(source, name)
    for name, source in dict(needs["folders"]).items():  # type: ignore[call-overload]
        if name in NEVER_SHOWN or source in NEVER_SHOWN:
            raise OSError(0, "Python must not live there, for all of it would be shown", name)
        show(source, name)
        for packages in PACKAGES:
            if os.path.isdir(f"/new{name}/{packages}"):
                mount("tmpfs", f"/new{name}/{packages}", "tmpfs", READ_ONLY | NO_SUID | NO_DEVICES, "nr_inodes=1")


def show(source: str, name: str) -> None:
    """Mount a file or folder read-only under a name, including mounts inside it."""
    old, new = "/old" + source, "/new" + name
    if os.path.lexists(new):
        return
    if os.path.isdir(old):
        os.makedirs(new)
    else:
        make_file(new)
    mount(old, new, "", BIND | RECURSIVE, "")
    wanted = struct.pack("4Q", READ_ONLY | NO_SUID | NO_DEVICES, 0, 0, 0)
    check(libc.syscall(MOUNT_SETATTR, HERE, new.encode(), WHOLE_TREE, wanted, len(wanted)), source)


def make_space(places: tuple[str, ...], disk_mb: int, files: int) -> None:
    """Mount the writable folders, with a common size limit and a common file limit."""
    os.mkdir("/new/space")
    limits = f"size={disk_mb}m,nr_inodes={files + len(places) + 1},mode=755"
    mount("tmpfs", "/new/space", "tmpfs", NO_SUID | NO_DEVICES, limits)
    for place in places:
        part = f"/new/space/{os.path.basename(place)}"
        os.mkdir(part)
        os.chmod(part, 0o777)
        os.makedirs("/new" + place)
        mount(part, "/new" + place, "", BIND, "")
    check(libc.umount2(b"/new/space", DETACH), "space")
    os.rmdir("/new/space")


def make_file(path: str) -> None:
    """Create an empty file with its parent folders."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8"):
        pass


def pivot(new: str, old: str) -> None:
    """Change the root mount."""
    check(libc.syscall(PIVOT_ROOT[os.uname().machine], new.encode(), old.encode()), new)


def mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    """Mount a file system."""
    check(libc.mount(source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None), target)
