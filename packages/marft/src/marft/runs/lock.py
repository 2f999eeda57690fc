"""Lock on a run folder: one process for each run, released by the system on any exit.

The lock is ``flock`` on a file in the folder. Unlike a file that is a lock by its presence, it is released with its
owner, also after ``kill -9`` or a power cut. Unlike ``fcntl`` record locks, it also separates two threads of one
process, and is not lost if another part of the process opens and closes the file. The content of the file (owner and
start time) is for people. On file systems without locks, the content decides instead: an owner counts as gone if it ran
on this machine and its process no longer exists.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from marft.common.errors import UserError

NO_LOCK_ERRORS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
NO_FOLDER_LOCK_ERRORS = (errno.EBADF, errno.EINVAL, errno.EISDIR)  # of network file systems that lock files only
_open_locks: set[int] = set()


@contextmanager
def lock_folder(path: Path, alternative: str = "or give this run another name (--name …)") -> Iterator[None]:
    """Lock the file at ``path`` and its folder.

    The file can be deleted or replaced while it is locked; the folder then stays locked.

    Args:
        alternative: see :func:`lock_file`.

    Raises:
        UserError: another process holds the lock; the message names it, as far as the file does.
    """
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    _open_locks.add(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _lock_error(path, _read_owner_at(path), alternative) from None
        except OSError as error:
            if error.errno not in (*NO_LOCK_ERRORS, *NO_FOLDER_LOCK_ERRORS):
                raise
        with lock_file(path, alternative):
            yield
    finally:
        _open_locks.discard(descriptor)
        os.close(descriptor)


@contextmanager
def lock_file(path: Path, alternative: str = "or give this run another name (--name …)") -> Iterator[None]:
    """Lock the file at ``path``, creating it if missing.

    Args:
        alternative: an alternative to waiting for the other process or stopping it, for the error message.

    Raises:
        UserError: another process holds the lock; the message names it.
    """
    descriptor = _acquire(path, alternative)
    _open_locks.add(descriptor)
    try:
        os.ftruncate(descriptor, 0)
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now().isoformat(" ", "seconds")}
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)
        yield
    finally:
        with suppress(OSError):  # at worst a full disk
            os.ftruncate(descriptor, 0)
        _open_locks.discard(descriptor)
        os.close(descriptor)


def _read_owner_at(path: Path) -> dict[str, object]:
    """Return the owner in a lock file; empty if unknown. Opening a pipe does not block."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return {}
    try:
        return _read_owner(descriptor)
    finally:
        os.close(descriptor)


def is_in_use(path: Path) -> bool:
    """Return True if a running process owns the lock, according to the file's content.

    Trying to take the lock would block a process that starts at that moment.
    """
    return _may_be_running(_read_owner_at(path))


def _acquire(path: Path, alternative: str) -> int:
    while True:
        descriptor = _open_file(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):  # and not a file that its last owner has removed
                return descriptor
        except BlockingIOError:
            owner = _read_owner(descriptor)
            os.close(descriptor)
            raise _lock_error(path, owner, alternative) from None
        except OSError as error:
            owner = _read_owner(descriptor)
            if error.errno in NO_LOCK_ERRORS and not _may_be_running(owner):
                return descriptor
            os.close(descriptor)
            raise _lock_error(path, owner, alternative) if error.errno in NO_LOCK_ERRORS else error from None
        os.close(descriptor)


def _open_file(path: Path) -> int:
    """Open the lock file, creating it if missing, without following links.

    Raises:
        UserError: the path is a link or not a regular file.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UserError(f"{path} is no file of the run's, so that nothing can be locked with it; move it away")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _read_owner(descriptor: int) -> dict[str, object]:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return owner if isinstance(owner, dict) and isinstance(owner.get("pid"), int) else {}


def _may_be_running(owner: dict[str, Any]) -> bool:
    """Return True if an owner may still run, for file systems without locks."""
    if not owner or owner["pid"] == os.getpid():
        return False
    if owner.get("host") != socket.gethostname():
        return True
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _lock_error(path: Path, owner: dict[str, object], alternative: str) -> ValueError:
    holder = (
        f"process {owner['pid']} on {owner.get('host')}, since {owner.get('since')}" if owner else "another process"
    )
    return UserError(
        f"{path.parent} is at work: {holder}. Wait for it or stop it; {alternative}. If it is gone for sure, and the "
        f"folder is on a file system without locks, delete {path}"
    )


def _close_inherited() -> None:
    """Close inherited locks in a forked child. Otherwise, the locks would outlive the parent."""
    for descriptor in _open_locks:
        with suppress(OSError):
            os.close(descriptor)
    _open_locks.clear()


os.register_at_fork(after_in_child=_close_inherited)
