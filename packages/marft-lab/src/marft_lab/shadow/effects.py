"""A second line of defence: while a shadow plays, Python itself refuses to start, connect, write or remove anything.

Tools are stubs in any case. What is left are parts of the author's own (an organization, a channel), which may do as
they like. Python's audit hook hears of most that it does; functions of its library that tell no hook are told of here.
What compiled code asks of the system by itself nobody hears: it is a net below the stubs, not a jail.
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
SILENT = ((_posixsubprocess, "fork_exec"), (os, "mkfifo"), (os, "mknod"))  # effects of which no audit hook hears
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NOWHERE = ("/dev/null", b"/dev/null")


class _Held:
    """What is refused, and how often it was."""

    def __init__(self, refused: frozenset[str]) -> None:
        self.refused, self.times = refused, Counter[str]()


_holding = list[_Held]()


@contextmanager
def held_back(network: bool = False) -> Iterator[Counter[str]]:
    """Refuse effects of this process meanwhile → how often, by what was asked for.

    Args:
        network: connections are allowed: models behind endpoints are asked.
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
    """A hook, once a process: Python takes none back."""
    sys.addaudithook(_hear)
    for module, name in SILENT:
        setattr(module, name, _heard(name, getattr(module, name)))


def _heard(name: str, effect: Callable[..., object]) -> Callable[..., object]:
    """An effect that is heard before it happens."""

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
