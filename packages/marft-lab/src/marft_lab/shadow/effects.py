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

NETWORK_EVENTS = frozenset({
    "socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname",
    "socket.gethostbyaddr", "socket.getnameinfo",
})  # fmt: skip
PROCESS_EVENTS = frozenset(
    {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "fork_exec"}
)
FILE_EVENTS = frozenset({
    "os.chmod", "os.chown", "os.kill", "os.killpg", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir",
    "os.setxattr", "os.symlink", "os.truncate", "os.utime", "sqlite3.connect", "mkfifo", "mknod",
})  # fmt: skip
# functions without an audit event
UNAUDITED_FUNCTIONS = ((_posixsubprocess, "fork_exec"), (os, "mkfifo"), (os, "mknod"))
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NULL_DEVICES = ("/dev/null", b"/dev/null")


class _EffectBlock:
    """Active block of side effects, with counts of rejected effects."""

    def __init__(self, refused: frozenset[str]) -> None:
        self.refused, self.counts = refused, Counter[str]()


_active_blocks = list[_EffectBlock]()


@contextmanager
def block_effects(network: bool = False) -> Iterator[Counter[str]]:
    """Block side effects of this process within the context.

    Args:
        network: True to allow connections, for models behind endpoints.

    Yields:
        The number of rejected effects, by event.

    Raises:
        PermissionError: in the code that attempts an effect.
    """
    _install_hook()
    block = _EffectBlock(PROCESS_EVENTS | FILE_EVENTS | (frozenset() if network else NETWORK_EVENTS))
    _active_blocks.append(block)
    try:
        yield block.counts
    finally:
        _active_blocks.remove(block)


@cache
def _install_hook() -> None:
    """Install the audit hook once per process, because Python cannot remove audit hooks."""
    sys.addaudithook(_audit)
    for module, name in UNAUDITED_FUNCTIONS:
        setattr(module, name, _with_hook(name, getattr(module, name)))


def _with_hook(name: str, effect: Callable[..., object]) -> Callable[..., object]:
    """Wrap a function, so that the hook runs before the effect."""

    @wraps(effect)
    def wrapper(*args: object, **kwargs: object) -> object:
        _audit(name, ())
        return effect(*args, **kwargs)

    return wrapper


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    for block in _active_blocks:
        if event in block.refused or (event == "open" and _is_write(arguments)):
            block.counts[event] += 1
            raise PermissionError(errno.EPERM, f"a shadow has no effects, and this is one: {event}")


def _is_write(arguments: tuple[object, ...]) -> bool:
    path, _, flags = arguments
    return isinstance(flags, int) and bool(flags & WRITE_FLAGS) and path not in NULL_DEVICES
