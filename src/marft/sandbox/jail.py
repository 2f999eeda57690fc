"""The jail, from the inside: run as a program of its own, with nothing but the standard library.

Three processes. The first makes namespaces (users, mounts, processes, network, IPC, names) and waits. The second is the
first one of the new process namespace, so that all others end with it: it builds a root folder of its own out of
read-only system folders and an empty working folder, and leaves the old root behind. The third gives up every
capability, takes on its limits and runs the code.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import resource
import signal
import struct
import sys

NEW_MOUNTS, NEW_NAMES, NEW_IPC = 0x00020000, 0x04000000, 0x08000000
NEW_USERS, NEW_PROCESSES, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
READ_ONLY, NO_SUID, NO_DEVICES, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
DETACH = 2
DIE_WITH_PARENT, DROP_BOUNDING, SECURE_BITS, NO_NEW_PRIVILEGES = 1, 24, 28, 38
ROOT_IS_NOBODY = 0b101111  # no capabilities for uid 0, none kept over setuid, all of it locked
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
MOUNT_SETATTR, HERE, WHOLE_TREE = 442, -100, 0x8000  # Linux 5.12
NOBODY = 65534
ISOLATION_FAILED = 97
SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/sbin")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
NEVER_SHOWN = ("/", "/etc", "/home", "/root", "/var", "/tmp")

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    libc.prctl(DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    order = json.load(sys.stdin)
    order["python"] = os.path.realpath(sys.executable)
    if order["isolation"] == "none":
        os.chdir(order["root"])
        execute(order, order["root"])
    try:
        enter_namespaces()
    except OSError as error:
        print(f"namespaces: {error.strerror}", file=sys.stderr)
        sys.exit(ISOLATION_FAILED)
    first = os.fork()
    if first == 0:
        become_first(order)
    sys.exit(status_of(os.waitpid(first, 0)[1]))


def enter_namespaces() -> None:
    """New namespaces; inside, uid 0 is who we are, and where we may, uid 1000 is nobody."""
    user, group = os.getuid(), os.getgid()
    told, tell = os.pipe()
    done, report = os.pipe()
    me = os.getpid()
    mapper = os.fork()
    if mapper == 0:  # still outside: may map other users than itself
        os.close(tell)
        os.read(told, 1)
        try:
            extra = user == 0
            write(f"/proc/{me}/setgroups", "deny")
            write(f"/proc/{me}/uid_map", f"0 {user} 1\n" + (f"1000 {NOBODY} 1\n" if extra else ""))
            write(f"/proc/{me}/gid_map", f"0 {group} 1\n" + (f"1000 {NOBODY} 1\n" if extra else ""))
            os.write(report, b"y")
        except OSError:
            os.write(report, b"n")
        os._exit(0)
    os.close(report)
    check(libc.unshare(NEW_USERS | NEW_MOUNTS | NEW_PROCESSES | NEW_NETWORK | NEW_IPC | NEW_NAMES))
    os.write(tell, b"g")
    mapped = os.read(done, 1)
    os.waitpid(mapper, 0)
    if mapped != b"y":
        raise OSError(0, "users cannot be mapped")


def become_first(order: dict[str, object]) -> None:
    """Build the root, leave the old one, and run the code in a child."""
    libc.prctl(DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    try:
        build_root(str(order["root"]), int(str(order["disk_mb"])))
        write("/proc/sys/user/max_user_namespaces", "0")
        leave_old_root(str(order["root"]))
    except OSError as error:
        print(f"mounts: {error.strerror} ({error.filename or ''})", file=sys.stderr)
        os._exit(ISOLATION_FAILED)
    child = os.fork()
    if child == 0:
        execute(order, "/work")
    while True:  # whatever loses its parent in here becomes ours
        pid, status = os.wait()
        if pid == child:
            os._exit(status_of(status))


def build_root(root: str, disk_mb: int) -> None:
    mount("none", "/", "", PRIVATE | RECURSIVE, "")
    mount("tmpfs", root, "tmpfs", NO_SUID | NO_DEVICES, "size=1m,mode=755")
    prefixes = {os.path.realpath(p) for p in (sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable)))}
    for folder in [*SYSTEM, *sorted(prefixes)]:
        if folder in NEVER_SHOWN:
            raise OSError(0, "Python must not live there, for all of it would be shown", folder)
        if os.path.islink(folder):
            os.symlink(os.readlink(folder), root + folder)
        elif os.path.isdir(folder) and not any(folder.startswith(shown + "/") for shown in SYSTEM):
            os.makedirs(root + folder, exist_ok=True)
            show(folder, root + folder)
    os.mkdir(root + "/dev")
    for device in DEVICES:
        write(root + device, "")
        mount(device, root + device, "", BIND, "")
    for folder, size in (("/work", disk_mb), ("/tmp", disk_mb)):
        os.mkdir(root + folder)
        mount("tmpfs", root + folder, "tmpfs", NO_SUID | NO_DEVICES, f"size={size}m,mode=777")


def show(folder: str, where: str) -> None:
    """A folder of the machine, to be read and nothing else."""
    mount(folder, where, "", BIND | RECURSIVE, "")
    wanted = struct.pack("4Q", READ_ONLY | NO_SUID | NO_DEVICES, 0, 0, 0)
    check(libc.syscall(MOUNT_SETATTR, HERE, where.encode(), WHOLE_TREE, wanted, len(wanted)), where)


def leave_old_root(root: str) -> None:
    os.mkdir(root + "/old")
    check(libc.syscall(PIVOT_ROOT[os.uname().machine], root.encode(), (root + "/old").encode()), root)
    os.chdir("/")
    check(libc.umount2(b"/old", DETACH), "/old")
    os.rmdir("/old")
    mount("none", "/", "", REMOUNT | READ_ONLY | NO_SUID | NO_DEVICES, "")


def execute(order: dict[str, object], folder: str) -> None:
    """Take on the limits, give up all rights, and become the program."""
    os.chdir(folder)
    with open(".stdin", "w+", encoding="utf-8") as file:
        file.write(str(order["stdin"]))
        file.flush()
        file.seek(0)
        os.dup2(file.fileno(), 0)
    os.unlink(".stdin")
    for name, content in dict(order["files"]).items():  # type: ignore[call-overload]
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        with open(name, "wb") as data:
            data.write(base64.b64decode(content))
    with open(str(order["program"]), "w", encoding="utf-8") as file:
        file.write(str(order["code"]))
    megabyte = 1 << 20
    for what, amount in (
        (resource.RLIMIT_CPU, int(str(order["cpu_seconds"]))),
        (resource.RLIMIT_AS, int(str(order["memory_mb"])) * megabyte),
        (resource.RLIMIT_FSIZE, int(str(order["disk_mb"])) * megabyte),
        (resource.RLIMIT_NOFILE, int(str(order["open_files"]))),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (amount, amount))
    if order["isolation"] != "none":
        for capability in range(64):
            libc.prctl(DROP_BOUNDING, capability, 0, 0, 0)
        try:
            os.setgid(1000)
            os.setuid(1000)
        except OSError:  # only our own user could be mapped, which was no root outside
            check(libc.prctl(SECURE_BITS, ROOT_IS_NOBODY, 0, 0, 0))
        resource.setrlimit(resource.RLIMIT_NPROC, (int(str(order["processes"])), int(str(order["processes"]))))
    check(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    os.closerange(3, 1 << 10)
    environment = {"PATH": "/usr/bin:/bin", "HOME": folder, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    python = str(order["python"])
    os.execve(python, [python, "-I", "-S", "-B", str(order["program"])], environment)


def mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    check(libc.mount(source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None), target)


def check(result: int, name: str = "") -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def status_of(status: int) -> int:
    """As a shell has it: 128 + signal for what was killed."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


if __name__ == "__main__":
    main()
