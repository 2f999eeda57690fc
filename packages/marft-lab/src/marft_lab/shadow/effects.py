"""Second line of defense: an audit hook rejects side effects of Python code while a shadow plays.

Rejected effects are processes, connections, and changes of files. Tools are stubs in any case. The remaining risk is
user code, such as an organization or a channel. Python's audit hook reports most effects; library functions without an
audit event are wrapped. System calls of compiled code are not detected. The hook is a safety net below the stubs, not a
sandbox.
"""

from __future__ import annotations

import _posixsubprocess
import errno
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps

NETWORK = frozenset({
    "socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname",
    "socket.gethostbyaddr", "socket.getnameinfo",
})  # fmt: skip
PROGRAMS = frozenset(
    {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "fork_exec"}
)
FILES = frozenset({
    "os.chmod", "os.chown", "os.kill", "os.killpg", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir",
    "os.setxattr", "os.symlink", "os.truncate", "os.utime", "sqlite3.connect", "mkfifo", "mknod",
})  # fmt: skip
SILENT = ((_posixsubprocess, "fork_exec"), (os, "mkfifo"), (os, "mknod"))  # functions without an audit event
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NOWHERE = ("/dev/null", b"/dev/null")


class _Held:
    """Active block of side effects, with counts of rejected effects."""

    def __init__(self, refused: frozenset[str]) -> None:
        self.refused, self.times = refused, Counter[str]()


_holding = list[_Held]()


@contextmanager
def held_back(network: bool = False) -> Iterator[Counter[str]]:
    """Block side effects of this process within the context.

    Args:
        network: True to allow connections, for models behind endpoints.

    Yields:
        The number of rejected effects, by event.

    Raises:
        PermissionError: in the code that attempts an effect.
    """
    _installed()
    held = _Held(PROGRAMS | FILES | (frozenset() if network else NETWORK))
    _holding.append(held)
    try:
        yield held.times
    finally:
        _holding.remove(held)


@cache
def _installed() -> None:
    """Install the audit hook once per process, because Python cannot remove audit hooks."""
    sys.addaudithook(_hear)
    for module, name in SILENT:
        setattr(module, name, _heard(name, getattr(module, name)))


def _heard(name: str, effect: Callable[..., object]) -> Callable[..., object]:
    """Wrap a function, so that the hook runs before the effect."""

    @wraps(effect)
    def heard(*given: object, **named: object) -> object:
        _hear(name, ())
        return effect(*given, **named)

    return heard


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    for held in _holding:
        if event in held.refused or (event == "open" and _writes(arguments)):
            held.times[event] += 1
            raise PermissionError(errno.EPERM, f"a shadow has no effects, and this is one: {event}")


def _writes(arguments: tuple[object, ...]) -> bool:
    path, _, flags = arguments
    return isinstance(flags, int) and bool(flags & WRITES) and path not in NOWHERE
