"""Root folder of a jail: Python's files read-only, and empty writable folders.

All of it is in memory and in a mount namespace of its own, and disappears with the last process. The machine's
folders stay unchanged.
"""

from __future__ import annotations

import os
import struct

from marft.agents.sandbox.kernel import PIVOT_ROOT, check_result, libc

READ_ONLY, NO_SUID, NO_DEVICES, NO_PROGRAMS, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2
MOUNT_SETATTR, CURRENT_FOLDER, RECURSIVE_ATTRIBUTE = 442, -100, 0x8000  # Linux 5.12
STAGING_FOLDER = "/tmp"  # exists on every machine; hidden in the jail's mounts only
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
FORBIDDEN_FOLDERS = ("/", "/etc", "/home", "/root", "/var", "/tmp", "/usr")
PACKAGE_FOLDERS = ("site-packages", "dist-packages")
LIBRARY_FOLDER = "/lib"  # every loader searches here; /lib64 is a link to it


def build_root(folder: str, needs: dict[str, dict[str, str]], disk_mb: int, files: int) -> None:
    """Build a root with an empty working folder, and move there permanently."""
    os.umask(0o022)
    mount("none", "/", "", PRIVATE | RECURSIVE, "")
    mount("tmpfs", STAGING_FOLDER, "tmpfs", NO_SUID | NO_DEVICES, "size=1m,mode=755")
    for name in ("old", "new"):
        os.mkdir(f"{STAGING_FOLDER}/{name}")
    change_root(STAGING_FOLDER, f"{STAGING_FOLDER}/old")
    os.chdir("/")
    mount("tmpfs", "/new", "tmpfs", NO_SUID | NO_DEVICES, "size=1m,mode=755")
    for device in DEVICES:
        create_file("/new" + device)
        mount("/old" + device, "/new" + device, "", BIND, "")
    mount_writable((folder, "/tmp", "/dev/shm"), disk_mb, files)
    mount_python(needs)  # Python may be installed below /tmp
    os.chdir("/new")
    change_root(".", ".")
    check_result(libc.umount2(b".", DETACH), "old root")
    os.chdir("/")
    mount("none", "/", "", REMOUNT | READ_ONLY | NO_SUID | NO_DEVICES, "")


def mount_python(needs: dict[str, dict[str, str]]) -> None:
    """Mount the interpreter, its shared libraries by name, and the standard library without installed packages.

    Raises:
        OSError: Python is in a folder that must not be shown.
    """
    os.mkdir("/new" + LIBRARY_FOLDER)
    os.symlink(LIBRARY_FOLDER[1:], "/new/lib64")
    for name, source in needs["libraries"].items():
        mount_read_only(source, f"{LIBRARY_FOLDER}/{name}")
    for name, source in needs["files"].items():
        mount_read_only(source, name)
    for name, source in needs["folders"].items():
        if name in FORBIDDEN_FOLDERS or source in FORBIDDEN_FOLDERS:
            raise OSError(0, "Python must not live there, for all of it would be shown", name)
        mount_read_only(source, name)
        for packages in PACKAGE_FOLDERS:
            if os.path.isdir(f"/new{name}/{packages}"):
                mount("tmpfs", f"/new{name}/{packages}", "tmpfs", READ_ONLY | NO_SUID | NO_DEVICES, "nr_inodes=1")


def mount_read_only(source: str, name: str) -> None:
    """Mount a file or folder read-only under a name, including mounts inside it."""
    old, new = "/old" + source, "/new" + name
    if os.path.lexists(new):
        return
    if os.path.isdir(old):
        os.makedirs(new)
    else:
        create_file(new)
    mount(old, new, "", BIND | RECURSIVE, "")
    wanted = struct.pack("4Q", READ_ONLY | NO_SUID | NO_DEVICES, 0, 0, 0)
    check_result(
        libc.syscall(MOUNT_SETATTR, CURRENT_FOLDER, new.encode(), RECURSIVE_ATTRIBUTE, wanted, len(wanted)), source
    )


def mount_writable(places: tuple[str, ...], disk_mb: int, files: int) -> None:
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
    check_result(libc.umount2(b"/new/space", DETACH), "space")
    os.rmdir("/new/space")


def create_file(path: str) -> None:
    """Create an empty file with its parent folders."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8"):
        pass


def change_root(new: str, old: str) -> None:
    """Change the root mount."""
    check_result(libc.syscall(PIVOT_ROOT[os.uname().machine], new.encode(), old.encode()), new)


def mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    """Mount a file system."""
    check_result(
        libc.mount(source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None), target
    )
