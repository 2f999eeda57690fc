"""One process a run: a lock on a file of its folder, which the system lets go of however its owner ends.

It is ``flock``: unlike a file whose mere presence is the lock, it is gone with its owner, also after ``kill -9`` or a
power cut, so that nothing has to guess whether an owner still lives; unlike ``fcntl``'s record locks it also keeps two
threads of one process apart, and is not lost when some other part of the process opens and closes the file. What the
file says (who holds it, since when) is for people alone, but on file systems without locks: there an owner counts as
gone when it was on this machine and no such process is left.
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

WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
WITHOUT_FOLDERS = (errno.EBADF, errno.EINVAL, errno.EISDIR)  # of network file systems that lock files alone
_held: set[int] = set()


@contextmanager
def folder_held(path: Path, otherwise: str = "or give this run another name (--name …)") -> Iterator[None]:
    """Hold the lock of the file at ``path``, and of the folder that it is in: a file can be deleted or replaced beside
    its owner, and the folder stays locked.

    Args:
        otherwise: as of :func:`held`.

    Raises:
        ValueError: somebody else holds it; the message says who, as far as the file says so.
    """
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    _held.add(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _refusal(path, _owner_at(path), otherwise) from None
        except OSError as error:
            if error.errno not in (*WITHOUT_LOCKS, *WITHOUT_FOLDERS):
                raise
        with held(path, otherwise):
            yield
    finally:
        _held.discard(descriptor)
        os.close(descriptor)


@contextmanager
def held(path: Path, otherwise: str = "or give this run another name (--name …)") -> Iterator[None]:
    """Hold the lock of the file at ``path``, which is made where it is not there.

    Args:
        otherwise: what else can be done where somebody holds it than to wait for it or to stop it.

    Raises:
        ValueError: somebody else holds it; the message says who.
    """
    descriptor = _locked(path, otherwise)
    _held.add(descriptor)
    try:
        os.ftruncate(descriptor, 0)
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now().isoformat(" ", "seconds")}
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)
        yield
    finally:
        with suppress(OSError):  # a full disk, at the worst
            os.ftruncate(descriptor, 0)
        _held.discard(descriptor)
        os.close(descriptor)


def _owner_at(path: Path) -> dict[str, object]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return {}
    try:
        return _owner(descriptor)
    finally:
        os.close(descriptor)


def at_work(path: Path) -> bool:
    """Whether somebody may hold the lock of the file at ``path``, going by what it says: to try and take it would be in
    the way of whoever begins."""
    try:
        if not path.is_file():  # from a pipe nothing may ever come
            return False
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return _may_live(_owner(descriptor))
    finally:
        os.close(descriptor)


def _locked(path: Path, otherwise: str) -> int:
    while True:
        descriptor = _opened(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):  # and not a file that its last owner has removed
                return descriptor
        except BlockingIOError:
            owner = _owner(descriptor)
            os.close(descriptor)
            raise _refusal(path, owner, otherwise) from None
        except OSError as error:
            owner = _owner(descriptor)
            if error.errno in WITHOUT_LOCKS and not _may_live(owner):
                return descriptor
            os.close(descriptor)
            raise _refusal(path, owner, otherwise) if error.errno in WITHOUT_LOCKS else error from None
        os.close(descriptor)


def _opened(path: Path) -> int:
    """The file, which is made where it is not there. What a link leads to is somebody else's, and is not written to."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ValueError(f"{path} is no file of the run's, so that nothing can be locked with it; move it away")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _owner(descriptor: int) -> dict[str, object]:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return owner if isinstance(owner, dict) and isinstance(owner.get("pid"), int) else {}


def _may_live(owner: dict[str, Any]) -> bool:
    """Whether an owner that no lock tells of may be at work still."""
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


def _refusal(path: Path, owner: dict[str, object], otherwise: str) -> ValueError:
    who = f"process {owner['pid']} on {owner.get('host')}, since {owner.get('since')}" if owner else "another process"
    return ValueError(
        f"{path.parent} is at work: {who}. Wait for it or stop it; {otherwise}. If it is gone for sure, and the folder "
        f"is on a file system without locks, delete {path}"
    )


def _let_go() -> None:
    """A forked child does not own what its parent holds: else the lock would outlive the parent."""
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
